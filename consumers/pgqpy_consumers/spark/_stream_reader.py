"""Structured Streaming from a queue: a micro-batch is a range of ticks.

Spark keeps the reader in a process of its own on the driver, from start to end of a query's run,
and calls its methods one after the other. There it holds a session (`DriverSession`). It
pickles another reader for the executors, on which only ``read`` is called.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, LiteralString

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

import pgqpy
from pgqpy.errors import ConsumerNotRegistered, TickNotFound
from pgqpy_consumers.spark import _ranges as ranges
from pgqpy_consumers.spark._driver_session import DriverSession
from pgqpy_consumers.spark._events import DEFAULT_PARTITIONS, EventPartition, slices_between
from pgqpy_consumers.spark._options import StreamOptions
from pgqpy_consumers.spark._ranges import Offset
from pgqpy_consumers.spark._reader import decoding

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

AFTER = "after"
"""The key in an end offset for the offset after which its micro-batch begins. Spark writes end
offsets before it runs a micro-batch, but asks for the initial offset again when it repeats the
first one: then another tick may be the latest, or the earliest."""

NO_LIMIT = 2**63 - 1

# A new query with a given start may start before its consumer's position.
_MOVE_BACK: LiteralString = """
select pgq.register_consumer_at(queue_name, consumer_name, %(tick)s)
  from pgq.get_consumer_info(%(queue)s, %(consumer)s)
 where current_batch is null
   and last_tick > %(tick)s
"""
_FOLLOW: LiteralString = "select pgq.advance_consumer(%(queue)s, %(consumer)s, %(tick)s)"

# The last tick before the first one over the limit, or that one if there is none before it.
_UP_TO: LiteralString = """
with q as (
    select queue_id from pgq.queue where queue_name = %(queue)s),
too_much as (
    select least(
           (select tick_id
              from pgq.tick
             where tick_queue = (select queue_id from q)
               and tick_id > %(after)s
               and tick_event_seq > %(seq)s
             order by tick_id
             limit 1),
           (select tick_id
              from pgq.tick
             where tick_queue = (select queue_id from q)
               and tick_id > %(after)s
               and %(ticks)s::int8 is not null
             order by tick_id
            offset %(ticks)s
             limit 1)) as tick_id)
select coalesce(
       (select max(tick_id)
          from pgq.tick
         where tick_queue = (select queue_id from q)
           and tick_id > %(after)s
           and tick_id < too_much.tick_id),
       too_much.tick_id)
  from too_much
"""


def default_limit(options: StreamOptions) -> ReadLimit:
    """The limit of a micro-batch by the options."""
    if options.max_events_per_trigger is not None:
        return ReadMaxRows(options.max_events_per_trigger)
    if options.max_ticks_per_trigger is not None:
        # Spark has no limit of ticks: this one only says that there is a limit.
        return ReadMaxRows(NO_LIMIT)
    return ReadAllAvailable()


class PgqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches of a queue's events, on behalf of a registered consumer.

    The consumer's position follows the checkpoint: rotation keeps the events that an uncommitted
    micro-batch may read again.
    """

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._decoding = decoding(options, schema)
        self._session = DriverSession(options)
        self._initial: dict[str, Any] | None = None
        self._target: Offset | None = None
        self._latest: Offset | None = None
        self._idle: tuple[dict[str, Any], Offset] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Sessions are not pickled.
        return type(self), (self._options, self._schema)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The start of a query without a checkpoint."""
        if self._initial is None:
            self._initial = self._session.run(self._start).to_dict()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limits of maxEventsPerTrigger and maxTicksPerTrigger."""
        return default_limit(self._options)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the micro-batch that begins after ``start``.

        Spark asks when everything up to ``start`` is committed, so the consumer is moved here.
        ``commit`` is called only when the next micro-batch is planned, for an idle queue never.
        """
        return self._session.run(lambda conn: self._plan(conn, start, limit))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """From now on, return no tick after the newest one of this moment."""
        self._target = self._session.run(lambda conn: ranges.newest(conn, self._options.queue))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The newest tick, as of the last `latestOffset`; for the query's progress."""
        return None if self._latest is None else self._latest.to_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The slices of a micro-batch."""
        if AFTER not in end:
            # A first micro-batch without events: it ends where it begins.
            return []
        return [*self.slices(end, self._options.num_partitions or DEFAULT_PARTITIONS)]

    def slices(self, end: dict[str, Any], most: int) -> list[EventPartition]:
        """At most this many slices of the micro-batch that ends there, and is not an empty first
        one."""
        return self._session.run(lambda conn: self._slices(conn, end, most))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one slice, in no order; runs on an executor."""
        assert isinstance(partition, EventPartition)
        return map(self._decoding.decode, partition.read())

    def stop(self) -> None:
        """Release the consumer. Spark may also just kill the process, with the same effect."""
        self._session.close()

    def _start(self, conn: pgqpy.Connection) -> Offset:
        queue = self._options.queue
        try:
            match self._options.starting_position:
                case "consumer":
                    return ranges.position(conn, queue, self._options.consumer)
                case "earliest":
                    return ranges.earliest(conn, queue)
                case int() as tick:
                    return ranges.offset_at(conn, queue, tick)
                case datetime() as time:
                    return ranges.before(conn, queue, time)
        except ConsumerNotRegistered:
            pass
        except TickNotFound as error:
            return self._skip_to_earliest(conn, error)
        return ranges.newest(conn, queue)

    def _plan(
        self, conn: pgqpy.Connection, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        last = self._target or ranges.newest(conn, self._options.queue)
        if (start, last) == self._idle:
            # Spark asks a hundred times a second.
            return start
        after = self._follow(conn, start)
        self._latest = last
        end = self._up_to(conn, after, last, limit)
        if end.tick <= int(start["tick"]):
            self._idle = start, last
            return start
        return end.to_dict() | {AFTER: after.to_dict()}

    def _up_to(
        self, conn: pgqpy.Connection, after: Offset, last: Offset, limit: ReadLimit
    ) -> Offset:
        """The last tick that the limits allow."""
        if isinstance(limit, ReadAllAvailable):
            return last
        assert isinstance(limit, ReadMaxRows)
        place = {
            "queue": self._options.queue,
            "after": after.tick,
            "seq": min(after.seq + limit.max_rows, NO_LIMIT),
            "ticks": self._options.max_ticks_per_trigger,
        }
        # One transaction, so that an early tick is not forgotten between the two statements.
        with conn.transaction():
            (tick,) = conn.execute(_UP_TO, place).fetchone() or (None,)
            if tick is None or tick >= last.tick:
                return last
            return ranges.offset_at(conn, self._options.queue, tick)

    def _slices(
        self, conn: pgqpy.Connection, end: dict[str, Any], most: int
    ) -> list[EventPartition]:
        last = ranges.here(conn, self._options.queue, Offset.from_dict(end))
        after = self._follow(conn, end[AFTER])
        if after.tick >= last.tick:
            return []
        with self._options.standby("pgqpy spark stream") as standby:
            source = ranges.range_source(
                conn,
                self._options.queue,
                after,
                last,
                columns=self._decoding.columns,
                where=self._options.where,
                standby=standby,
            )
        return [EventPartition(source, part) for part in slices_between(after.seq, last.seq, most)]

    def _follow(self, conn: pgqpy.Connection, start: dict[str, Any]) -> Offset:
        """Move the consumer to the checkpoint; returns the position from which events exist."""
        offset = ranges.here(conn, self._options.queue, Offset.from_dict(start))
        first = ranges.earliest(conn, self._options.queue)
        if offset.tick < first.tick:
            offset = self._skip_to_earliest(
                conn,
                TickNotFound(
                    f"rotation has removed events of queue {self._options.queue!r} after tick"
                    f" {offset.tick}, where this query has to go on; from tick {first.tick} on"
                    " all are there",
                    hint="Was the consumer unregistered meanwhile, or the checkpoint an old one?"
                    " Set option failOnDataLoss to false to go on without them.",
                ),
            )
        place = {
            "queue": self._options.queue,
            "consumer": self._options.consumer,
            "tick": offset.tick,
        }
        if start == self._initial and self._latest is None:
            conn.execute(_MOVE_BACK, place)
        conn.execute(_FOLLOW, place)
        return offset

    def _skip_to_earliest(self, conn: pgqpy.Connection, loss: TickNotFound) -> Offset:
        if self._options.fail_on_data_loss:
            raise loss
        first = ranges.earliest(conn, self._options.queue)
        _log.warning("%s; going on with tick %s", loss.message, first.tick)
        return first
