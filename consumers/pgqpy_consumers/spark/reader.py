"""Reading one slice, on an executor, on a connection of its own.

This code runs in Spark's Python workers, far from the session that planned it: all its input
came pickled in an `EventSource` and a `Slice`.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from pgqpy import dsn
from pgqpy.errors import ConnectionFailed, TickNotFound
from pgqpy_consumers.spark.schema import EVENT_COLUMNS, SELECT_LIST, arrow_schema
from pgqpy_consumers.spark.slices import Slice

if TYPE_CHECKING:
    import pyarrow as pa

# The size of a record batch: small enough to stay in the processor's caches on its way to Java, and
# for several to fit into a task's memory; and Java begins while the server is still sending.
_BATCH_BYTES = 1024 * 1024
_BATCH_SIZE = "adbc.postgresql.batch_size_hint_bytes"

_GONE = {"PQ008": "rotation has removed them", "42P01": "the queue was dropped"}


class EventsGoneError(TickNotFound):
    """The events of a DataFrame may have been rotated away."""


@dataclass(frozen=True, slots=True)
class EventSource:
    """The source of a DataFrame's events; the same on every machine."""

    conninfo: str = field(repr=False)
    """The conninfo for libpq, with the password: never to be shown."""
    query: str = field(repr=False)
    """The query of all events, with the columns of ``pgq.get_batch_events``."""
    description: str
    """A name of the batch, or of the ticks, for people."""
    columns: tuple[str, ...] = EVENT_COLUMNS
    """The columns to fetch."""
    condition: str = field(default="true", repr=False)
    """The events to fetch: SQL over `SELECT_LIST`."""
    still_there: str | None = field(default=None, repr=False)
    """A query that gives a row as long as the events may be read. Only needed if the main query
    does not fail by itself when rotation has truncated its tables."""

    def statement(self, part: Slice) -> str:
        """The query for the events of a slice."""
        return (
            f"select {', '.join(self.columns)}"
            f" from (select {SELECT_LIST} from ({self.query}) e) events"
            f" where ({self.condition}) and {part.condition()}"
        )

    def read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """The events of a slice as Arrow record batches of `columns`.

        Raises EventsGoneError; ConnectionFailed, which names host and database.
        """
        # Autocommit: each statement has its own snapshot. The check must not share the one of the
        # read: a reader whose snapshot is older than a TRUNCATE finds no rows,
        # and its check would pass.
        with _connect(self.conninfo) as connection:
            try:
                yield from self._rows(connection, part)
            except Exception as error:
                self._check_gone(connection, error)
                raise
            if self.still_there is not None:
                self._check(connection, self.still_there)

    def _rows(self, connection: Any, part: Slice) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(self.columns)
        with connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{_BATCH_SIZE: str(_BATCH_BYTES)})
            cursor.execute(self.statement(part))
            with cursor.fetch_record_batch() as stream:
                for batch in stream:
                    yield batch.cast(schema)

    def _check_gone(self, connection: Any, failure: Exception) -> None:
        """Raises EventsGoneError if that is why reading failed.

        An error while Arrow streams has no SQLSTATE, so the check queries again.
        """
        import adbc_driver_manager as adbc

        try:
            with connection.cursor() as cursor:
                cursor.execute(f"select 1 from ({self.query}) e limit 1")
                cursor.fetchone()
        except adbc.Error as error:
            if error.sqlstate in _GONE:
                raise EventsGoneError(
                    f"{self.description}: events are gone, {_GONE[error.sqlstate]}",
                    hint="Rotation keeps what a registered consumer has not finished: register"
                    " one before reading, or set a longer rotation_period.",
                    sqlstate=error.sqlstate,
                ) from failure

    def _check(self, connection: Any, still_there: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(still_there)
            if cursor.fetchone() is None:
                raise EventsGoneError(
                    f"{self.description} is finished, and its events may be gone: its DataFrame"
                    " can be read only inside process_batch.",
                    hint="Keep what you need of it with df.persist(), df.localCheckpoint() or"
                    " by writing it somewhere.",
                )


@dataclass(frozen=True)
class EventPartition(InputPartition):
    """The input of one task of the data source."""

    source: EventSource
    part: Slice

    def read(self) -> Iterator[pa.RecordBatch]:
        """Read like `EventSource.read`."""
        return self.source.read(self.part)


@contextmanager
def _connect(conninfo: str) -> Iterator[Any]:
    import adbc_driver_manager
    from adbc_driver_manager.dbapi import Connection

    try:
        connection = adbc_driver_manager.AdbcConnection(_database(conninfo))
    except adbc_driver_manager.Error as error:
        raise ConnectionFailed(
            f"{socket.gethostname()} cannot connect to {dsn.redact(conninfo)}",
            detail=str(error).strip(),
            hint="Executors connect by themselves: host names must mean the same there, and"
            " pg_hba.conf, firewalls and max_connections must let each of them in.",
        ) from error
    with Connection(_Kept(), connection, autocommit=True) as kept:  # type: ignore[arg-type]
        yield kept


@lru_cache(maxsize=8)
def _database(conninfo: str) -> Any:
    """ADBC's cached types of a server: loading them takes ten times as long as connecting."""
    import adbc_driver_postgresql

    return adbc_driver_postgresql.connect(conninfo)


class _Kept:
    """A stand-in for the database, which a connection would close with itself."""

    def close(self) -> None:
        """Do nothing: the next task of this worker needs the database, too."""
