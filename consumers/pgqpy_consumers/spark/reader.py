"""Reading one slice, on an executor, on a connection of its own.

What is here runs in Spark's Python workers, far from the session that planned it:
all it knows came pickled in an `EventSource` and a `Slice`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pgqpy_consumers.spark.slices import Slice

if TYPE_CHECKING:
    import pyarrow as pa


class EventsGoneError(Exception):
    """The events of a DataFrame may have been rotated away."""


@dataclass(frozen=True, slots=True)
class EventSource:
    """Where a DataFrame's events come from; the same on whichever machine it is read."""

    conninfo: str = field(repr=False)
    """libpq's, with the password: never to be shown."""
    query: str = field(repr=False)
    """All events, with the columns of the schema."""
    still_there: str = field(repr=False)
    """Gives a row as long as rotation keeps its hands off the events."""
    description: str
    """For people: names the batch."""

    def read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """The events of a slice in order of ev_id, as Arrow record batches."""
        import adbc_driver_postgresql.dbapi as adbc

        # Autocommit: each statement has a snapshot of its own. The check must not
        # share the one of the read: a reader whose snapshot is older than a TRUNCATE
        # finds no rows, and would find that all is well.
        with adbc.connect(self.conninfo, autocommit=True) as connection:
            yield from self._rows(connection, part)
            self._check(connection)

    def _rows(self, connection: Any, part: Slice) -> Iterator[pa.RecordBatch]:
        from pgqpy_consumers.spark.schema import arrow_schema

        with connection.cursor() as cursor:
            cursor.execute(f"select * from ({self.query}) events where {part.condition()}")
            with cursor.fetch_record_batch() as stream:
                for batch in stream:
                    yield batch.cast(arrow_schema())

    def _check(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(self.still_there)
            if cursor.fetchone() is None:
                raise EventsGoneError(
                    f"{self.description} is finished, and its events may be gone: its DataFrame"
                    " can be read only inside process_batch. Keep what you need of it with"
                    " df.persist(), df.localCheckpoint() or by writing it somewhere."
                )
