# WARNING: generated from pgqpy/shards/sharded_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Consumers over shards: one process reads all, or several share them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Literal

from pgqpy._runtime.acompat import Slots
from pgqpy._runtime.io import Io
from pgqpy._runtime.stoppable import Stoppable
from pgqpy.consumer.base import Consumer
from pgqpy.consumer.remote import TargetConsumer
from pgqpy.errors import InvalidConsumer
from pgqpy.shards._current import CurrentMap, MapSource
from pgqpy.shards._map import Shard
from pgqpy.shards._reader import Reader
from pgqpy.shards._share import Share, raise_failures


class ShardedConsumer(Stoppable):
    """Runs a consumer on all shards of its queue, concurrently.

    In each shard's database the consumer has a position of its own, under the same name::

        ShardedConsumer(OrderMails, "shards.toml").run()

    Several processes share the shards: each is read by one of them, and by another if that one
    ends. A process that has two more than one that waits gives one up. Workers of a `GroupConsumer`
    or `CoopConsumer` share each shard as they share a queue.

    A file is read again when it has changed, as is a map that a function reads: shards that are new
    are read, those that are gone are drained first. A shard that is down stops no other, and is
    read when it is back.
    """

    _io = Io()

    reload_interval: float = 2.0
    """Seconds between looks whether the map has changed."""

    def __init__(self, make: Callable[[str], Consumer], shards: MapSource) -> None:
        """``make`` is the consumer's class, or a function that makes one for a DSN. ``shards`` is a
        `ShardMap`, the file of one, or a function that reads one."""
        self._make = make
        self._current = CurrentMap(shards)
        for shard in self._current.map.shards.values():
            if not isinstance(made := make(shard.dsn), Consumer):
                raise InvalidConsumer(f"{made!r:.80} is no consumer that can be run over shards")
            self._current.require(made.queue)
        self._readers: dict[str, Reader] = {}
        self._share = Share(self._look_again)

    def run(
        self,
        *,
        until_empty: bool = False,
        handle_signals: bool = True,
        ticker: Literal["auto"] | None = None,
    ) -> None:
        """Process batches of all shards until `stop`, or with ``until_empty`` until there are none.

        The arguments are those of `Consumer.run`, as is what happens in a shard. Errors that
        waiting does not cure end all readers, after their batches, and are raised. With
        ``until_empty`` the other shards are read first; ConnectionFailed names those that were
        down. Shards that another process reads are left to it.
        """
        self._current.renew()
        options: dict[str, Any] = {"until_empty": until_empty, "ticker": ticker}
        with self._running(handle_signals=handle_signals) as waker:
            slots = Slots(waker.wake)
            try:
                self._follow(slots, options)
                while len(slots) and not self.stopping:
                    slots.check()
                    waker.wait(self.reload_interval)
                    if not until_empty and self._current.renew():
                        self._follow(slots, options)
            finally:
                for reader in self._readers.values():
                    reader.stop()
                while len(slots):
                    waker.wait(1.0)
                ended = self._readers.copy()
                self._readers.clear()
            slots.check()
        raise_failures(ended)

    def _follow(self, slots: Slots, options: dict[str, Any]) -> None:
        """Have a reader for each shard of the map."""
        shards = self._current.map.shards
        for name, reader in [*self._readers.items()]:
            if name not in shards:
                reader.drain()
            elif reader.ended:
                del self._readers[name]
            elif reader.shard != shards[name]:
                reader.change(shards[name])
        new = [shards[name] for name in shards.keys() - self._readers.keys()]
        # Processes that begin together take different ones.
        random.shuffle(new)
        shared = self._make_for, self._readers, self._share
        self._readers |= {shard.name: Reader(self._io, shard, *shared, options) for shard in new}
        for shard in new:
            self._io.start(slots, self._readers[shard.name].run)

    def _make_for(self, shard: Shard) -> Consumer:
        """Return the consumer of a shard. A target has a position for each name, so that of a
        consumer with a target is followed by the shard's."""
        made = self._make(shard.dsn)
        if isinstance(made, TargetConsumer):
            made.consumer += f"@{shard.name}"
        return made

    def _look_again(self) -> None:
        if self._waker is not None:
            self._waker.wake()

    @property
    def claimed(self) -> int:
        """The number of shards that are claimed."""
        return len(self._share.claimed)
