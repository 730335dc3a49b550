"""A `SparkConsumer` over shards: a loop a shard in a thread of its own, and batches in one call.

Each loop has its shard's connections, failures and pauses, so that one that is down stops no other.
In the middle of its transaction it hands its batch over and waits; when the call has returned it
finishes its batch, or rolls back.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, Unpack

import pgqpy
from pgqpy.admin import Admin
from pgqpy.consumer import RunOptions
from pgqpy.errors import ConnectionFailed, PgqError
from pgqpy.models import Start
from pgqpy.retry import Backoff
from pgqpy.shards import Shard
from pgqpy_consumers.spark._shards import MapFile, for_each, named

T = TypeVar("T")

Conns: TypeAlias = Mapping[str, pgqpy.Connection]
Batches: TypeAlias = Mapping[str, pgqpy.Batch]
Deliver: TypeAlias = Callable[[pgqpy.Connection, pgqpy.Batch], None]

logger = logging.getLogger("pgqpy")

GATHER = 0.5
"""Seconds that a batch waits for those of other shards: less than a job of Spark costs."""

LOOK = 1.0
"""Seconds between looks at the map."""

SHARDS_AT_A_TIME = 64


@dataclass(frozen=True)
class Arrival:
    """A batch whose loop waits."""

    shard: str
    conn: pgqpy.Connection
    batch: pgqpy.Batch
    done: Future[None] = field(default_factory=Future)


class ShardLoop(Protocol):
    """A consumer of one shard."""

    queue: str
    consumer: str
    start: Start

    def register(self) -> bool: ...
    def unregister(self) -> bool: ...
    def run_once(self) -> bool: ...
    def run(self, **options: Unpack[RunOptions]) -> None: ...
    def stop(self) -> None: ...


class ShardLoops:
    """Has the methods of the loop of one database, for all shards."""

    def __init__(
        self,
        shards: str,
        queue: str,
        make: Callable[[Shard, Deliver, Callable[[], bool]], ShardLoop],
        process: Callable[[Conns, Batches], None] | None = None,
    ) -> None:
        """``make`` returns the loop of a shard, which may deliver its batches to the function, to
        be processed by ``process``, and takes none before the other one returns true."""
        self._path = shards
        self._queue = queue
        self._make = make
        self._process = process
        self._file = MapFile(shards, queue)
        self._loops: dict[str, ShardLoop] = {}
        self._arrivals = SimpleQueue[Arrival | None]()
        self._stopping = threading.Event()

    def register(self, *, at_tick: int | None = None) -> bool:
        """Register in each shard."""
        if at_tick is not None:
            raise TypeError("a tick is one database's: register in each shard by itself")
        self._load()
        return any(for_each({name: loop.register for name, loop in self._loops.items()}).values())

    def unregister(self) -> bool:
        """Unregister in each shard."""
        self._load()
        found = for_each({name: loop.unregister for name, loop in self._loops.items()})
        return any(found.values())

    def run_once(self) -> bool:
        """Process one batch of each shard that has one, in one call or several."""
        return any(self._together(lambda loop: loop.run_once(), stays=False))

    def run(
        self,
        *,
        until_empty: bool = False,
        handle_signals: bool = True,
        ticker: Literal["auto"] | None = None,
    ) -> None:
        """Process batches until `stop`."""

        def work(loop: ShardLoop) -> None:
            loop.run(until_empty=until_empty, handle_signals=False, ticker=ticker)

        with _signals(self.stop, handle=handle_signals):
            self._together(work, stays=not until_empty)

    def stop(self) -> None:
        """Make `run` return after the current batches."""
        self._stopping.set()
        for loop in list(self._loops.values()):
            loop.stop()

    def _together(self, work: Callable[[ShardLoop], T], *, stays: bool) -> list[T]:
        """Let the loops work, and process what they deliver. Raises the error of one of them."""
        calls: dict[str, Future[T]] = {}
        # Anew: one that had ended before it was told to stop would do so in its next run.
        self._file, self._loops = MapFile(self._path, self._queue), {}
        with ThreadPoolExecutor(SHARDS_AT_A_TIME) as pool:
            try:
                while True:
                    self._load()
                    for name in self._loops.keys() - calls.keys():
                        calls[name] = pool.submit(self._serve, name, work, stays)
                        calls[name].add_done_callback(lambda _: self._arrivals.put(None))
                    if all(call.done() for call in calls.values()):
                        break
                    self._turn(calls)
                    if any(_is_fatal(call) for call in calls.values()):
                        self.stop()
            except BaseException:
                self.stop()
                self._refuse(calls)
                raise
            finally:
                self._stopping.clear()
        return [call.result() for call in calls.values()]

    def _serve(self, name: str, work: Callable[[ShardLoop], T], stays: bool) -> T:
        """Let a loop work; if it is to stay, until its server is there."""
        backoff = Backoff(0.1, 2.0)
        while True:
            try:
                with named(name):
                    return work(self._loops[name])
            except ConnectionFailed as error:
                pause = backoff.pause(error)
                logger.log(backoff.level, "the others go on: %s", error.message)
                if not stays or self._stopping.wait(pause):
                    raise

    def _turn(self, calls: Mapping[str, Future[Any]]) -> None:
        """Wait for batches for a while, and process those that are there."""
        arrived, end = list[Arrival](), monotonic() + LOOK
        try:
            while len(arrived) < sum(not call.done() for call in calls.values()):
                arrival = self._arrivals.get(timeout=max(end - monotonic(), 0))
                if arrival is not None:
                    end = monotonic() + GATHER if not arrived else end
                    arrived.append(arrival)
        except Empty:
            pass
        if not arrived:
            return
        conns = {each.shard: each.conn for each in arrived}
        batches = {each.shard: each.batch for each in arrived}
        assert self._process is not None
        try:
            self._process(conns, batches)
        except BaseException as error:
            for each in arrived:
                each.done.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            for each in arrived:
                each.done.set_result(None)

    def _refuse(self, calls: Mapping[str, Future[Any]]) -> None:
        """Release the loops that wait, and those that will, when no call is to come."""
        while not all(call.done() for call in calls.values()):
            arrival = self._arrivals.get()
            if arrival is not None:
                arrival.done.set_exception(RuntimeError("the consumer was interrupted"))

    def _load(self) -> None:
        """Make the loops of new shards; stop those of shards that have left the map."""
        shards = None if self._stopping.is_set() else self._file.read()
        if shards is None:
            return
        new = dict[str, ShardLoop]()
        for name, shard in shards.shards.items():
            if name not in self._loops:
                deliver = partial(self._deliver, name)
                new[name] = self._make(shard, deliver, partial(self._is_due, name))
        self._loops |= new
        looks = {name: partial(self._position, name) for name in self._loops}
        if new and any(each is not None for each in for_each(looks).values()):
            # It has read others: of a shard that joins it gets all events.
            for loop in new.values():
                loop.start = "first"
        for name in self._loops.keys() - shards.shards.keys():
            logger.warning("shard %r has left the map: its consumer stops", name)
            self._loops.pop(name).stop()

    def _deliver(self, shard: str, conn: pgqpy.Connection, batch: pgqpy.Batch) -> None:
        arrival = Arrival(shard, conn, batch)
        self._arrivals.put(arrival)
        arrival.done.result()

    def _is_due(self, name: str) -> bool:
        """Whether the consumer has finished the ticks of other shards that come before."""
        shards = self._file.shards.shards
        return name not in shards or all(
            (self._position(other) or 0) >= tick for other, tick in shards[name].after.items()
        )

    def _position(self, shard: str) -> int | None:
        """The last tick that the consumer has finished; None if it is not there, or unknown."""
        shards, loop = self._file.shards.shards, self._loops.get(shard)
        if loop is None or shard not in shards:
            return None
        try:
            with pgqpy.connect(shards[shard].dsn, autocommit=True) as conn:
                found = Admin(conn).get_consumer_info(loop.queue, loop.consumer)
        except PgqError:
            return None
        return found[0].last_tick if found else None


def _is_fatal(call: Future[Any]) -> bool:
    """Whether a loop has ended for a reason other than that its server is down."""
    error = call.exception() if call.done() else None
    return error is not None and not isinstance(error, ConnectionFailed)


@contextmanager
def _signals(stop: Callable[[], None], *, handle: bool) -> Iterator[None]:
    """In the main thread the first SIGTERM or SIGINT calls ``stop``, a second one ends at once."""
    if not handle or threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = signal.SIGTERM, signal.SIGINT
    before = [signal.getsignal(number) for number in numbers]

    def on_signal(*_: object) -> None:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        stop()

    for number in numbers:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
