# WARNING: generated from pgqpy/consumer/_standby_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Reading batches on a standby: the primary opens and finishes them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection
from tempfile import SpooledTemporaryFile
from time import monotonic
from typing import TypeVar

from psycopg import sql

from pgqpy._runtime.acompat import Waker
from pgqpy._runtime.fetch import fetch
from pgqpy._runtime.session import Session
from pgqpy._wire.copy_format import decode_events
from pgqpy.connection import Connection
from pgqpy.consumer._batch import BatchFields
from pgqpy.consumer._readers import Reader
from pgqpy.consumer._settings import ConsumerSettings
from pgqpy.consumer._statements import DATABASE, HAS_REPLAYED, IF_REPLAYED
from pgqpy.errors import PERMANENT, NotReplayed, PgqError, SchemaMissing
from pgqpy.event import Event, Retries
from pgqpy.log import logger

T = TypeVar("T")

#: Seconds until the first looks at the standby, which are twice as long each, up to the last.
_FIRST, _LONGEST = 0.001, 0.1
#: Seconds to wait if batches are never read on the primary; then the batch is retried.
_PATIENCE = 10.0
#: Seconds for which the primary is read, when the patience with the standby has ended.
_AGAIN = 30.0
#: The maximum bytes of a batch in memory; more is in a temporary file.
_IN_MEMORY = 16 * 1024 * 1024


class Standby:
    """Reads batches on a standby, as soon as it has replayed them."""

    def __init__(
        self, consumer: ConsumerSettings, waker: Waker, primary: Session, dsn: str
    ) -> None:
        self._consumer = consumer
        self._waker = waker
        self._primary = primary
        self._dsn = dsn
        self._conn: Connection | None = None
        #: Whether the patience has ended, and the time to look at the standby again.
        self._away = False
        self._look_at = 0.0

    def read(self, batch: BatchFields) -> Reader | None:
        """Return a batch's events; None: read them on the primary. Raises like `use`."""

        def spooled(conn: Connection, query: str) -> Reader:
            reader = _SpooledReader(conn)
            try:
                reader.start(query, batch.event_types)
            except BaseException:
                reader.close()
                raise
            return reader

        return self.use(batch, spooled)

    def use(self, batch: BatchFields, work: Callable[[Connection, str], T]) -> T | None:
        """Return what is done with the standby and the query of a batch; None: use the primary.

        The query fails where the batch is not replayed. The work may be repeated.

        Raises the last reason, such as NotReplayed, if the primary is not wanted; and errors that
        waiting does not cure.
        """
        patience = self._consumer.read_patience
        if patience is not None and self._away and monotonic() < self._look_at:
            return None
        until = monotonic() + (0 if self._away else _PATIENCE if patience is None else patience)
        pause = _FIRST
        while True:
            try:
                done = self._try(batch, work)
                self._note(None)
                return done
            except PERMANENT:
                raise
            except PgqError as failed:
                error = failed
            left = until - monotonic()
            if left <= 0 or self._consumer.stopping:
                break
            self._waker.wait(min(pause, left))
            pause = min(2 * pause, _LONGEST)
        if patience is None:
            raise error
        self._note(error)
        return None

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        if self._conn is not None:
            self._conn.close()

    def _try(self, batch: BatchFields, work: Callable[[Connection, str], T]) -> T:
        if self._conn is None or self._conn.closed:
            self._conn = self._primary.connect_to_read(self._dsn)
            self._check_copy(self._conn)
        place = self._consumer.queue, batch.tick, batch.tick_time
        ((replayed,),) = fetch(self._conn, HAS_REPLAYED, place)
        if not replayed:
            raise NotReplayed(
                f"the standby has not replayed tick {batch.tick} of queue {batch.queue}",
                hint="Is read_dsn a standby of the queue's server, and does it follow?",
            )
        # A pooler may give the second statement to another server than the first.
        query = sql.SQL(IF_REPLAYED).format(sql.SQL(batch.sql), *map(sql.Literal, place))
        try:
            return work(self._conn, query.as_string(None))
        except SchemaMissing as error:
            # A group's key may be a function that was created after the tick.
            raise NotReplayed(f"the standby lacks what the query needs: {error.message}") from error

    def _check_copy(self, conn: Connection) -> None:
        """Raise NotReplayed unless it is a copy of the database. Nodes of a cascaded queue have the
        same ticks, and other transactions."""
        primary = self._primary.reading()
        if fetch(conn, DATABASE) == fetch(primary, DATABASE):
            return
        conn.close()
        raise NotReplayed(
            "read_dsn is no copy of the queue's database",
            hint="Give a physical standby of the queue's server, and the same database.",
        )

    def _note(self, error: PgqError | None) -> None:
        """Log where batches are read, if that changes."""
        self._look_at = monotonic() + _AGAIN
        if self._away == (error is not None):
            return
        self._away, fields = error is not None, self._consumer.log_fields()
        if error is None:
            logger.info("batches are read on the standby again", extra=fields)
        else:
            reason = error.message.partition("\n")[0]
            logger.warning("batches are read on the primary: %s", reason, extra=fields)


class _SpooledReader(Reader):
    """One COPY that has been received as a whole before its first event is processed.

    While a query runs, replay cannot remove what it sees. The server cancels it after a while, but
    not if it waits for the client to take what it has sent: then replay would wait, too.
    """

    def __init__(self, conn: Connection) -> None:
        super().__init__(conn)
        self._file = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 (closed by `close`)

    def start(self, batch_sql: str, event_types: Collection[str] | None) -> None:
        super().start(batch_sql, event_types)
        while rows := self.rows():
            pickle.dump(rows, self._file)
        pickle.dump([], self._file)
        self._file.seek(0)

    def read(self, retries: Retries | None) -> list[Event]:
        return decode_events(pickle.load(self._file), retries)

    def close(self) -> None:
        super().close()
        self._file.close()
