"""The shard map as it is now: read again when it may have changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from pgqpy.errors import InvalidParameter, InvalidShardMap, StaleShardMap, WrongShard
from pgqpy.log import logger
from pgqpy.shards._map import ShardMap

#: A map, the file in which it is, or a function that reads it, for instance from a table.
MapSource: TypeAlias = ShardMap | str | Path | Callable[[], ShardMap]

#: The shard of a connection's database, which keeps its version until the transaction ends.
ENTER_SHARD = b"select shard_name, shard_version from pgq.enter_shard(%s)"


class CurrentMap:
    """The map of a queue, which may change."""

    def __init__(self, source: MapSource, queue: str | None = None) -> None:
        self._source = source
        self._queue = queue
        self._stamp: object = None
        self.map = self._read()

    def require(self, queue: str) -> None:
        """Raise InvalidShardMap if the map, as it is or will be, is another queue's."""
        self.map.check_queue(queue)
        self._queue = queue

    def renew(self) -> bool:
        """Read the map again if it may have changed; True if it has.

        One that makes no sense is logged, and the last one stays.
        """
        before = self.map
        try:
            self.map = self._read()
        except InvalidShardMap as error:
            logger.error("the shard map stays as it was: %s", error.message)
        return self.map != before

    def _read(self) -> ShardMap:
        if isinstance(self._source, ShardMap):
            found = self._source
        elif callable(self._source):
            found = self._source()
        else:
            stamp = _stamp(self._source)
            if stamp == self._stamp:
                return self.map
            self._stamp = stamp
            found = ShardMap.load(self._source)
        if self._queue is not None:
            found.check_queue(self._queue)
        return found

    def writable(self, name: str | None, version: int | None) -> Callable[[Any], None]:
        """Return the check of the keys of events that a transaction writes into a shard.

        ``name`` and ``version`` are what `ENTER_SHARD` has returned. Raises WrongShard,
        StaleShardMap; the check raises WrongShard, and InvalidParameter for what is
        no key.
        """
        queue = self._queue
        if name is None or version is None:
            raise WrongShard(
                f"queue {queue!r} of this database is no shard",
                hint="Connect to the database of a shard; pgqpy shards apply makes it one.",
            )
        shard = self.map.shards.get(name)
        if (shard is None or shard.version != version) and self.renew():
            shard = self.map.shards.get(name)
        if shard is None:
            raise StaleShardMap(f"queue {queue!r} is shard {name!r} here, which is not in the map")
        if shard.version != version:
            raise StaleShardMap(
                f"the map has version {shard.version} of shard {name!r} of queue {queue!r}, "
                f"and its database has version {version}"
            )
        shard_map = self.map

        def check(key: Any) -> None:
            if not isinstance(key, str):
                raise InvalidParameter(
                    f"an event for a shard needs a shard_key, a str, not {key!r:.80}",
                    hint='Give the key that decides: insert_event(..., shard_key="acme"); for many '
                    "events a function: insert_events(..., shard_key=lambda event: ...).",
                )
            owner = shard_map.shard_for(key)
            if owner.name != name and self.renew():
                self.writable(name, version)(key)
            elif owner.name != name:
                raise WrongShard(
                    f"key {key!r:.80} of queue {queue!r} belongs to shard {owner.name!r}, "
                    f"and this is the database of shard {name!r}",
                    hint=f"Write the event in a transaction in the database of {owner.name!r}: "
                    "ShardMap.shard_for(key).dsn",
                )

        return check


def _stamp(path: str | Path) -> object:
    """Return what changes when the file does."""
    try:
        found = Path(path).stat()
    except OSError:
        return "not there"
    return found.st_mtime_ns, found.st_ino, found.st_size
