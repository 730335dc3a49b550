"""Structured Streaming from all shards of a logical queue: a micro-batch is a range of each.

An offset has the position of each shard, as a stream of that database alone would have it::

    {"shards": {"a": {"queue": ..., "tick": 41, "seq": ..., "snapshot": ...}, "b": {...}}}

In an end offset, only the shards of which the micro-batch has events have an ``after``. So the end
alone says what a micro-batch holds, whatever Spark gives as its start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING, Any, LiteralString, TypeAlias, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

import pgqpy
from pgqpy.errors import (
    ConnectionFailed,
    ConsumerNotRegistered,
    InvalidShardMap,
    TickNotFound,
)
from pgqpy.retry import Backoff
from pgqpy.shards import CurrentMap, Shard
from pgqpy_consumers.spark import _ranges as ranges
from pgqpy_consumers.spark._events import DEFAULT_PARTITIONS, EventPartition
from pgqpy_consumers.spark._options import StreamOptions
from pgqpy_consumers.spark._ranges import SHARDS, ForeignOffset, Offset
from pgqpy_consumers.spark._reader import decoding
from pgqpy_consumers.spark._shards import dealt, for_each, named, shares, waiting
from pgqpy_consumers.spark._stream_reader import AFTER, NO_LIMIT, PgqStreamReader, default_limit

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

Place: TypeAlias = dict[str, Any]
"""The offset of one shard, as in a checkpoint."""

_log = logging.getLogger(__name__)

GRACE = 5.0
"""Seconds after which a shard that has not answered is down."""

SHARDS_AT_A_TIME = 64


_GAINED: LiteralString = "select shard_name, shard_gained from pgq.get_shard_info(%s)"


class Member(PgqStreamReader):
    """The stream of one shard, and whether that can be reached. It makes one call at a time."""

    def __init__(self, shard: Shard, options: StreamOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.shard = shard.name
        self.dsn = options.dsn
        self.version = shard.version
        self.left_out = False
        """Whether this run takes nothing of it."""
        self.is_held = False
        """Whether it has events that wait for a newer map."""
        self._is_down = False
        self._call: Future[Any] | None = None
        self._backoff = Backoff(0.1, 2.0)
        self._again = 0.0

    def latestOffset(self, start: Place, limit: ReadLimit) -> Place:  # noqa: N802
        """The end of the shard's part of a micro-batch; none while the map is older than keys that
        the shard has got, for it must say what is to be read first."""
        end = super().latestOffset(start, limit)
        self.is_held = end != start and not self._session.run(self._is_current)
        return start if self.is_held else end

    def _is_current(self, conn: pgqpy.Connection) -> bool:
        for name, gained in conn.execute(_GAINED, [self._options.queue]):
            if name != self.shard:
                raise InvalidShardMap(f"this database is that of shard {name!r}")
            if gained > self.version:
                return False
        return True

    def joined(self) -> Place:
        """Where it starts if it is not in the checkpoint: at its consumer, or its oldest events."""
        return self._session.run(self._join).to_dict()

    def _join(self, conn: pgqpy.Connection) -> Offset:
        try:
            return ranges.position(conn, self._options.queue, self._options.consumer)
        except ConsumerNotRegistered:
            return ranges.earliest(conn, self._options.queue)
        except TickNotFound as error:
            return self._skip_to_earliest(conn, error)

    def fingerprint(self) -> str:
        """The queue's, as offsets have it."""
        return self._session.run(lambda conn: ranges.fingerprint(conn, self._options.queue))

    def alone(self, call: Callable[[], T]) -> T:
        """Make this call when an earlier one has ended."""
        if self._call is not None:
            wait([self._call])
        return call()

    def begin(self, pool: ThreadPoolExecutor, call: Callable[[], T]) -> Future[T] | None:
        """Make this call in a thread, unless the shard is down; then see whether it still is."""
        if self._is_down:
            if self._call is None and monotonic() >= self._again:
                self._call = pool.submit(call)
            if self._call is None or not self._call.done():
                return None
            if self._failed(self._call):
                return None
            _log.warning("shard %r is back", self.shard)
        self._call = pool.submit(call)
        return self._call

    def has_answered(self, call: Future[Any]) -> bool:
        """Whether the call has a result; if not, the shard is down. Raises the call's error if that
        is another one."""
        if call.done():
            return not self._failed(call)
        self._is_down = True
        _log.warning("shard %r has not answered for %g seconds", self.shard, GRACE)
        return False

    def _failed(self, call: Future[Any]) -> bool:
        self._call = None
        try:
            with named(self.shard):
                call.result()
        except ConnectionFailed as error:
            self._again = monotonic() + self._backoff.pause(error)
            _log.log(self._backoff.level, "going on without %s", error.message)
            self._is_down = True
            return True
        self._backoff.reset()
        self._is_down = False
        return False


class ShardsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches of the events of all shards, on behalf of a consumer in each of them. The map
    is read again when its file has changed."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._decoding = decoding(options, schema)
        self._current: CurrentMap | None = None
        self._members: dict[str, Member] = {}
        self._available_now = False
        self._pool = ThreadPoolExecutor(SHARDS_AT_A_TIME)

    def __reduce__(self) -> tuple[Any, ...]:
        # Sessions and threads are not pickled.
        return type(self), (self._options, self._schema)

    def initialOffset(self) -> Place:  # noqa: N802
        """The start of a query without a checkpoint; every shard must be there for it."""
        self._load()
        starts = {name: partial(m.alone, m.initialOffset) for name, m in self._members.items()}
        return {SHARDS: for_each(starts)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limits of maxEventsPerTrigger, of all shards, and maxTicksPerTrigger, of each."""
        return default_limit(self._options)

    def latestOffset(self, start: Place, limit: ReadLimit) -> Place:  # noqa: N802
        """The end of the micro-batch that begins after ``start``; like that of a queue it moves the
        consumers to ``start``."""
        self._load()
        places = self._places(start)
        places |= self._ask(
            {name: member.joined for name, member in self._members.items() if name not in places}
        )
        ends = self._plan(places, limit)
        drained = [
            name
            for name, end in ends.items()
            if not (name in self._shards or _has_events(end) or self._members[name].is_held)
        ]
        for name in drained:
            _log.warning("shard %r has left the map, and is drained", name)
            self._members.pop(name).stop()
            del places[name]
        result = {name: ends.get(name, _still(places[name])) for name in sorted(places)}
        is_same = SHARDS in start and result.keys() == start[SHARDS].keys()
        return start if is_same and not any(map(_has_events, result.values())) else {SHARDS: result}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """From now on, return no tick after the newest ones of this moment, and none of a shard
        that is down or comes later."""
        self._load()
        self._available_now = True
        there = self._ask({n: m.prepareForTriggerAvailableNow for n, m in self._members.items()})
        for name, member in self._members.items():
            member.left_out = name not in there

    def reportLatestOffset(self) -> Place | None:  # noqa: N802
        """The newest tick of each shard, as of the last `latestOffset`."""
        newest = {name: member.reportLatestOffset() for name, member in self._members.items()}
        return {SHARDS: {name: each for name, each in newest.items() if each is not None}}

    def partitions(self, start: Place, end: Place) -> list[InputPartition]:
        """The slices of a micro-batch."""
        self._load()
        ends = {name: each for name, each in self._places(end).items() if _has_events(each)}
        events = {name: each["seq"] - each[AFTER]["seq"] for name, each in ends.items()}
        most = shares(events, self._options.num_partitions or DEFAULT_PARTITIONS)
        calls = {}
        for name, each in ends.items():
            member = self._members[name]
            calls[name] = partial(member.alone, partial(member.slices, each, most[name]))
        return dealt(self._options, for_each(waiting(self._options, calls)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one slice, in no order; runs on an executor."""
        assert isinstance(partition, EventPartition)
        return map(self._decoding.decode, partition.read())

    def stop(self) -> None:
        """Release the consumers."""
        for member in self._members.values():
            member.stop()
        self._pool.shutdown(wait=False)

    # --- the shards

    @property
    def _shards(self) -> Mapping[str, Shard]:
        assert self._current is not None
        return self._current.map.shards

    def _load(self) -> None:
        """Read the map if it has changed. A member that has left it stays until it is drained."""
        if self._current is None:
            # Not on executors, which need not have the file.
            assert self._options.shards is not None
            current = CurrentMap(self._options.shards)
            current.require(self._options.queue)
            self._current = current
        elif self._available_now or not self._current.renew():
            return
        for name, shard in sorted(self._shards.items()):
            member = self._members.get(name)
            if member is None or member.dsn != shard.dsn:
                if member is not None:
                    member.stop()
                options = self._options.with_values(dsn=shard.dsn)
                self._members[name] = Member(shard, options, self._schema)
            self._members[name].version = shard.version

    def _places(self, offset: Place) -> dict[str, Place]:
        """The places in an offset. Raises InvalidShardMap if it has one of a shard that is gone."""
        if SHARDS not in offset:
            return self._places_of_one(offset)
        places = {}
        for name, place in offset[SHARDS].items():
            if name in self._members:
                places[name] = place
            elif name in (self._options.forget_shards or ()):
                _log.warning("what was not read of shard %r is given up", name)
            else:
                raise InvalidShardMap(
                    f"this stream has a position in shard {name!r}, tick {place['tick']}, and"
                    f" {self._options.shards} has no such shard",
                    hint="Put it back, with hashes = [], and take it out while the stream runs,"
                    f" which then reads the rest. Option forgetShards, {name}, gives up the rest.",
                )
        return places

    def _places_of_one(self, offset: Place) -> dict[str, Place]:
        """The place of the shard that was the only database, when the checkpoint was written."""
        found = for_each(
            {name: partial(m.alone, m.fingerprint) for name, m in self._members.items()}
        )
        for name, queue in found.items():
            if queue == offset.get("queue"):
                return {name: offset}
        raise ForeignOffset(
            "the checkpoint is that of a stream from one database, which is none of the shards"
        )

    def _plan(self, places: dict[str, Place], limit: ReadLimit) -> dict[str, Place]:
        """The ends of a micro-batch that begins there, for shards that can be reached."""

        def ask(limits: Mapping[str, ReadLimit]) -> dict[str, Place]:
            return self._ask(
                {
                    name: partial(self._members[name].latestOffset, places[name], each)
                    for name, each in limits.items()
                }
            )

        found = ask(dict.fromkeys(places, limit))
        ends = {
            name: end
            if end != places[name] and self._is_due(name, places)
            else _still(places[name])
            for name, end in found.items()
        }
        events = {n: e["seq"] - e[AFTER]["seq"] for n, e in ends.items() if _has_events(e)}
        if not isinstance(limit, ReadMaxRows) or limit.max_rows == NO_LIMIT:
            return ends
        fair = fair_shares(events, limit.max_rows)
        return ends | ask(
            {name: ReadMaxRows(max(fair[name], 1)) for name in fair if fair[name] < events[name]}
        )

    def _is_due(self, name: str, places: Mapping[str, Place]) -> bool:
        """Whether the shards that it is after are as far as they must be."""
        shard = self._shards.get(name)
        return shard is None or all(
            other in places and places[other]["tick"] >= tick for other, tick in shard.after.items()
        )

    def _ask(self, calls: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """Call the functions of shards at the same time; by option without those that are down."""
        calls = {name: call for name, call in calls.items() if not self._members[name].left_out}
        if not self._options.waits:
            return for_each(calls, self._pool)
        begun = {}
        for name, call in calls.items():
            future = self._members[name].begin(self._pool, call)
            if future is not None:
                begun[name] = future
        wait(begun.values(), GRACE)
        return {
            name: future.result()
            for name, future in begun.items()
            if self._members[name].has_answered(future)
        }


def fair_shares(events: Mapping[str, int], most: int) -> dict[str, int]:
    """The events to take of each shard: what some do not need is for the others."""
    taken = {}
    for done, (name, wanted) in enumerate(sorted(events.items(), key=itemgetter(1))):
        taken[name] = min(wanted, most // (len(events) - done))
        most -= taken[name]
    return taken


def _has_events(end: Place) -> bool:
    return AFTER in end


def _still(place: Place) -> Place:
    """The place as the end of a micro-batch without events of it."""
    return {key: value for key, value in place.items() if key != AFTER}
