"""Events as rows, and reading them on executors: each slice on a connection of its own.

A batch is a set of events that any connection can read repeatedly, because its query holds the
snapshots as literals. A slice is that query and a range of event ids. Ranges of transaction ids
would not help with a batch that one large transaction wrote. Ranges of event ids balance in any
case, and keep PgQ's order: slice after slice, a batch is read in order of ev_id.

Executors unpickle an `EventSource` and a `Slice`, and have no other input.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from tempfile import SpooledTemporaryFile
from time import monotonic, sleep
from typing import IO, TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pgqpy import dsn
from pgqpy.errors import ConnectionFailed, NotReplayed, PgqError, TickNotFound
from pgqpy.retry import Backoff

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

_log = logging.getLogger(__name__)

# --- an event as a row, with the names and the order of pgq.get_batch_events

_TYPES: dict[str, DataType] = {
    "ev_id": LongType(),
    "ev_time": TimestampType(),
    "ev_txid": LongType(),
    "ev_retry": IntegerType(),
    **dict.fromkeys(("ev_type", "ev_data"), StringType()),
    **dict.fromkeys(("ev_extra1", "ev_extra2", "ev_extra3", "ev_extra4"), StringType()),
}

EVENT_COLUMNS = tuple(_TYPES)
"""The names of the columns."""

EVENT_SCHEMA = StructType([StructField(name, type_) for name, type_ in _TYPES.items()])
"""The schema of every DataFrame of events."""

SHARD = StructField("shard", StringType())
"""The last column of the events of several shards: the name of their shard."""

SHARDS_SCHEMA = StructType([*EVENT_SCHEMA, SHARD])

# The times that Spark's TIMESTAMP can hold and Python's datetime can show. PostgreSQL has
# more on both sides, and infinity beyond, which would arrive as another time.
_TIME = (
    "case when ev_time >= timestamptz '0001-01-01 00:00:00+00'"
    " and ev_time < timestamptz '10000-01-01 00:00:00+00' then ev_time end as ev_time"
)

SELECT_LIST = ", ".join(_TIME if name == "ev_time" else name for name in _TYPES)
"""The select list over a batch query that gives `EVENT_SCHEMA`."""


@cache
def arrow_schema(columns: Sequence[str] = EVENT_COLUMNS) -> Any:
    """The Arrow schema of `EVENT_SCHEMA`, or of some of its columns, for record batches."""
    return to_arrow_schema(StructType([EVENT_SCHEMA[name] for name in columns]), timezone="UTC")


# --- slices

# Each slice costs a connection and a task, however small it is.
EVENTS_PER_SLICE = 5_000

# Where Spark does not say how many tasks run at a time.
DEFAULT_PARTITIONS = 8


@dataclass(frozen=True, slots=True)
class Slice:
    """The events with ``lower <= ev_id < upper``; None is open."""

    lower: int | None
    upper: int | None

    def condition(self, column: str = "ev_id") -> str:
        """The slice as a condition in SQL. Integers only, so nothing to quote."""
        bounds = []
        if self.lower is not None:
            bounds.append(f"{column} >= {self.lower:d}")
        if self.upper is not None:
            bounds.append(f"{column} < {self.upper:d}")
        return " and ".join(bounds) or "true"


def slices_between(seq_start: int, seq_end: int, most: int) -> list[Slice]:
    """Slices of the events between two ticks, ``most`` of them at most.

    The event sequence at the two ticks gives the approximate number of events and their ids:
    others may have been committed late, or may be retried.
    """
    wanted = -(-(seq_end - seq_start) // EVENTS_PER_SLICE)
    return cut(seq_start + 1, seq_end, max(min(wanted, most), 1))


def cut(first: int, last: int, parts: int) -> list[Slice]:
    """Cut the ids from ``first`` to ``last`` into at most ``parts`` slices of equal width. The
    outermost slices are open: every id is in exactly one slice, even outside the range."""
    if parts < 1:
        raise ValueError(f"parts is {parts}, must be at least 1")
    width = max(last - first + 1, 1)
    parts = min(parts, width)
    edges = [first + width * part // parts for part in range(1, parts)]
    return [
        Slice(lower, upper) for lower, upper in zip([None, *edges], [*edges, None], strict=True)
    ]


# --- reading, on an executor

# The size of a record batch: small enough to stay in the processor's caches on its way to Java, and
# for several to fit into a task's memory; and Java begins while the server is still sending.
_BATCH_BYTES = 1024 * 1024
_BATCH_SIZE = "adbc.postgresql.batch_size_hint_bytes"

# The seconds that a task waits for a standby, how often it reads a slice there, and the bytes of a
# slice that it keeps in memory.
_REPLAY = 60.0
_ATTEMPTS = 5
_IN_MEMORY = 16 * 1024 * 1024

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
    replayed: str | None = field(default=None, repr=False)
    """A query that tells whether the server, a standby, has replayed the events; None: it is not
    asked."""
    patient: bool = False
    """Wait for a server that cannot be reached."""

    def statement(self, part: Slice) -> str:
        """The query for the events of a slice."""
        return (
            f"select {', '.join(self.columns)}"
            f" from (select {SELECT_LIST} from ({self.query}) e) events"
            f" where ({self.condition}) and {part.condition()}"
        )

    def read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """The events of a slice as Arrow record batches of `columns`. Raises EventsGoneError;
        ConnectionFailed, which names host and database; of a standby NotReplayed, and PgqError if
        it fails several times."""
        if self.replayed is None:
            yield from self._streamed(part)
            return
        import pyarrow as pa

        with self._received(part) as file, pa.ipc.open_stream(file) as stream:
            yield from stream

    def _received(self, part: Slice) -> IO[bytes]:
        """The rows of a slice in a file, from a standby. Replay may cancel the query at any time:
        it is repeated while Spark has none of its rows. Nor does replay wait for Spark."""
        import adbc_driver_manager as adbc
        import pyarrow as pa

        backoff = Backoff(0.1, 2.0)
        for left in reversed(range(_ATTEMPTS)):
            file = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 (closed by the caller)
            try:
                with pa.ipc.new_stream(file, arrow_schema(self.columns)) as writer:
                    for batch in self._streamed(part):
                        writer.write_batch(batch)
            except BaseException as error:
                file.close()
                # While rows arrive ADBC tells no SQLSTATE, so any error of a query is repeated.
                if not isinstance(error, OSError | adbc.Error):
                    raise
                if not left:
                    raise PgqError(
                        f"{self.description}: the standby failed {_ATTEMPTS} times to read them;"
                        f" at last: {str(error).strip()}",
                        hint="If replay cancels queries, set hot_standby_feedback to on there, or a"
                        " longer max_standby_streaming_delay.",
                    ) from error
                sleep(backoff.pause(error))
            else:
                file.seek(0)
                return file
        raise AssertionError

    def _streamed(self, part: Slice) -> Iterator[pa.RecordBatch]:
        # Autocommit: each statement has its own snapshot. The check must not share the one of the
        # read: a reader whose snapshot is older than a TRUNCATE finds no rows,
        # and its check would pass.
        with connect(self.conninfo, patient=self.patient) as connection:
            if self.replayed is not None:
                self._await_replay(connection, self.replayed)
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

    def _await_replay(self, connection: Any, replayed: str) -> None:
        until, pause = monotonic() + _REPLAY, 0.001
        with connection.cursor() as cursor:
            while True:
                cursor.execute(replayed)
                if cursor.fetchone()[0]:
                    return
                if monotonic() > until:
                    raise NotReplayed(
                        f"{self.description}: the standby has not replayed them within"
                        f" {_REPLAY:.0f} s",
                        hint="See whether it follows the primary, or leave out option readDsn.",
                    )
                sleep(pause)
                pause = min(2 * pause, 0.1)

    def _check_gone(self, connection: Any, failure: Exception) -> None:
        """Raises EventsGoneError if that is why reading failed. An error while Arrow streams has no
        SQLSTATE, so the check queries again."""
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
    shard: str | None = None

    def read(self) -> Iterator[pa.RecordBatch]:
        """The events, with their shard as the last column if they are of one."""
        import pyarrow as pa

        for events in self.source.read(self.part):
            if self.shard is None:
                yield events
            else:
                shards = pa.repeat(pa.scalar(self.shard, pa.string()), events.num_rows)
                yield events.append_column(SHARD.name, shards)


def events_frame(spark: SparkSession, partitions: Sequence[EventPartition]) -> DataFrame:
    """The events of the partitions. Lazy: each action reads again.

    They travel in the pickled function, not in options of a data source: plans, event logs
    and the web interface show options, and a source holds the password.
    """

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from partitions[number].read()

    schema = EVENT_SCHEMA
    if any(each.shard is not None for each in partitions):
        schema = SHARDS_SCHEMA
    parts = len(partitions)
    return spark.range(0, parts, 1, parts).mapInArrow(read, schema)


@contextmanager
def connect(conninfo: str, *, patient: bool = False) -> Iterator[Any]:
    """An ADBC connection in autocommit. Raises ConnectionFailed, which names this machine, unless
    it is ``patient``."""
    from adbc_driver_manager.dbapi import Connection

    connection = patiently(partial(_open, conninfo)) if patient else _open(conninfo)
    with Connection(_Kept(), connection, autocommit=True) as kept:  # type: ignore[arg-type]
        yield kept


def _open(conninfo: str) -> Any:
    import adbc_driver_manager

    try:
        return adbc_driver_manager.AdbcConnection(_database(conninfo))
    except adbc_driver_manager.Error as error:
        raise ConnectionFailed(
            f"{socket.gethostname()} cannot connect to {dsn.redact(conninfo)}",
            detail=str(error).strip(),
            hint="Executors connect by themselves: host names must mean the same there, and"
            " pg_hba.conf, firewalls and max_connections must let each of them in.",
        ) from error


def patiently(call: Callable[[], T]) -> T:
    """What the call returns, as soon as the server can be reached."""
    backoff = Backoff(0.1, 2.0)
    while True:
        try:
            return call()
        except ConnectionFailed as error:
            pause = backoff.pause(error)
            _log.log(backoff.level, "waiting for a server: %s", error.message)
            sleep(pause)


@lru_cache(maxsize=8)
def _database(conninfo: str) -> Any:
    """ADBC's cached types of a server: loading them takes ten times as long as connecting."""
    import adbc_driver_postgresql

    return adbc_driver_postgresql.connect(conninfo)


class _Kept:
    """A stand-in for the database, which a connection would close with itself."""

    def close(self) -> None:
        """Do nothing: the next task of this worker needs the database, too."""
