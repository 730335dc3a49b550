"""A `SparkConsumer` over shards: a loop a shard, as of `ShardedConsumer`, and batches in one call.

In the middle of its transaction each loop hands its batch over and waits; when the call has
returned, it finishes its batch, or rolls back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, NoReturn, TypeAlias, Unpack

import pgqpy
from pgqpy.consumer import RunOptions, on_stop_signals
from pgqpy.shards import ShardedConsumer
from pgqpy_consumers.spark._shards import for_each

Conns: TypeAlias = Mapping[str, pgqpy.Connection]
Batches: TypeAlias = Mapping[str, pgqpy.Batch]
Deliver: TypeAlias = Callable[[pgqpy.Connection, pgqpy.Batch], None]

GATHER = 0.5
"""Seconds that a batch waits for those of other shards: less than a job of Spark costs."""


@dataclass(frozen=True)
class Arrival:
    """A batch whose loop waits."""

    shard: str
    conn: pgqpy.Connection
    batch: pgqpy.Batch
    done: Future[None] = field(default_factory=Future)


class ShardLoops:
    """Has the methods of the loop of one database, for all shards."""

    def __init__(
        self,
        shards: str,
        make: Callable[[str, str, Deliver], pgqpy.Consumer],
        process: Callable[[Conns, Batches], None] | None = None,
    ) -> None:
        """``make`` returns the loop for a shard's name and DSN, which may deliver its batches to
        the function, to be processed by ``process`` together with those of others."""
        self._path = shards
        self._make = make
        self._process = process
        self._names: dict[str, str] = {}
        self._arrivals = SimpleQueue[Arrival | None]()
        self._all = ShardedConsumer(self._loop, shards)

    def register(self, *, at_tick: int | None = None) -> bool:
        """Register in each shard; True if it was not in one of them."""
        if at_tick is not None:
            raise TypeError("a tick is one database's: register in each shard by itself")
        return any(for_each({name: loop.register for name, loop in self._loops()}).values())

    def unregister(self) -> bool:
        """Unregister in each shard."""
        return any(for_each({name: loop.unregister for name, loop in self._loops()}).values())

    def run_once(self) -> NoReturn:
        """Raises TypeError."""
        raise TypeError("run_once is for one database: over shards use run(until_empty=True)")

    def run(self, **options: Unpack[RunOptions]) -> None:
        """Process batches until `stop`, like `ShardedConsumer.run`."""
        handles = options.get("handle_signals", True)
        options["handle_signals"] = False
        signals = on_stop_signals(self.stop) if handles else nullcontext()
        with signals, ThreadPoolExecutor(1) as pool:
            running = pool.submit(self._all.run, **options)
            running.add_done_callback(lambda _: self._arrivals.put(None))
            try:
                while not running.done():
                    self._turn()
            except BaseException:
                self.stop()
                self._refuse(running)
                raise
        running.result()

    def stop(self) -> None:
        """Make `run` return after the current batches."""
        self._all.stop()

    def _turn(self) -> None:
        """Wait for batches, and process those that come at about the same time."""
        arrived = list[Arrival]()
        try:
            self._gather(arrived)
            if not arrived:
                return
            conns = {each.shard: each.conn for each in arrived}
            batches = {each.shard: each.batch for each in arrived}
            assert self._process is not None
            self._process(conns, batches)
        except BaseException as error:
            # An interruption, too, while it waits for more.
            for each in arrived:
                each.done.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            for each in arrived:
                each.done.set_result(None)

    def _gather(self, arrived: list[Arrival]) -> None:
        """Wait for a batch, and for those that come at about the same time."""
        arrival = self._arrivals.get()
        end = monotonic() + GATHER
        while arrival is not None:
            arrived.append(arrival)
            left = end - monotonic() if len(arrived) < len(self._names) else 0
            try:
                arrival = self._arrivals.get(timeout=max(left, 0))
            except Empty:
                break

    def _refuse(self, running: Future[Any]) -> None:
        """Release the loops that wait, and those that will, when no call is to come."""
        while not running.done():
            arrival = self._arrivals.get()
            if arrival is not None:
                arrival.done.set_exception(RuntimeError("the consumer was interrupted"))

    def _deliver(self, shard: str, conn: pgqpy.Connection, batch: pgqpy.Batch) -> None:
        arrival = Arrival(shard, conn, batch)
        self._arrivals.put(arrival)
        arrival.done.result()

    def _loop(self, dsn: str) -> pgqpy.Consumer:
        if dsn not in self._names:
            shards = pgqpy.ShardMap.load(self._path).shards
            self._names |= {shard.dsn: name for name, shard in shards.items()}
        name = self._names[dsn]
        return self._make(name, dsn, partial(self._deliver, name))

    def _loops(self) -> Iterator[tuple[str, pgqpy.Consumer]]:
        for name, shard in pgqpy.ShardMap.load(self._path).shards.items():
            yield name, self._loop(shard.dsn)
