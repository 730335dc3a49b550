"""Many nodes of many cascaded queues in one process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal

import psycopg

from pgqpy import dsn as dsns
from pgqpy._runtime.acompat import AsyncWaker
from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.checks import COUNT, POSITIVE_SECONDS, SECONDS, check_settings
from pgqpy._runtime.database import IDENTITY, Identity
from pgqpy._runtime.failure import soon
from pgqpy._runtime.fetch_async import async_fetch
from pgqpy._runtime.io import AsyncIo
from pgqpy._runtime.stoppable_async import AsyncStoppable
from pgqpy.cascade import _statements as statements
from pgqpy.cascade._databases import Databases
from pgqpy.cascade.worker_async import AsyncCascadedWorker
from pgqpy.errors import InvalidConsumer, InvalidDsn, PgqError
from pgqpy.log import logger

#: The maximum seconds between looks at a queue of which new ticks are notified. Heartbeats of an
#: idle queue are not.
_LONG = 30.0

#: What a node's database says of it; first its name.
State = list[Any]


class Cascade(AsyncStoppable):
    """Runs the workers of all cascaded queues of some databases, in one process of asyncio.

    ``nodes`` are the connection strings of the databases. Each is asked for the queues of which it
    is a node, also for those that come later. The workers share a few connections to each database
    and one that listens. An error of a queue stops no other.
    """

    poll_interval: float = 1.0
    """Seconds between looks at the states of a database's nodes."""
    watermark_interval: float = 60.0
    """Seconds between reports of which ticks are not needed any more."""
    batch_size: int = 200_000
    """The approximate maximum of events in a transaction, when a node is behind."""
    at_once: int = 4
    """The number of queues that are copied at the same time."""

    def __init__(self, nodes: Sequence[str]) -> None:
        if not nodes:
            raise InvalidConsumer(
                "a cascade needs the database of at least one node",
                hint='Name the databases: nodes = ["postgresql:///shop"].',
            )
        self.nodes = [dsns.resolve(dsn) for dsn in dict.fromkeys(nodes)]
        for number, dsn in enumerate(self.nodes, 1):
            try:
                dsns.parse(dsn)
            except InvalidDsn as error:
                raise InvalidConsumer(
                    f"element {number} of nodes: {error.message}",
                    hint="Give the DSN of the node's database, not its name.",
                ) from None
        #: The first of them that leads to a database.
        self._first: dict[Identity, str] = {}

    def is_first(self, database: Identity, dsn: str) -> bool:
        """Whether none before it leads to this database, whose nodes have one worker each."""
        first = self._first.setdefault(database, dsn)
        if first != dsn:
            names = dsns.redact(dsn), dsns.redact(first)
            logger.warning(
                "two of the nodes are one database: %s is left out, for %s",
                *names,
                extra={"database": names[0]},
            )
        return first == dsn

    async def run(
        self,
        *,
        until_empty: bool = False,
        handle_signals: bool = True,
        ticker: Literal["auto"] | None = None,
    ) -> None:
        """Serve until `stop`, or with ``until_empty`` until all nodes have what their providers
        have.

        Survives all errors; with ``until_empty`` it raises them. In the main thread SIGTERM and
        SIGINT stop it after the transactions under way, unless ``handle_signals`` is false. There
        is no ticker for many databases: ``pgqpy ticker`` makes the ticks of the roots.
        """
        check_settings(self, _SETTINGS)
        if ticker is not None:
            raise InvalidConsumer("a cascade makes no ticks: run `pgqpy ticker` for the roots")
        databases = Databases(AsyncIo())
        turns = asyncio.Semaphore(self.at_once)
        served = [_Served(self, dsn, databases, turns) for dsn in self.nodes]
        async with self._running(handle_signals=handle_signals) as waker:
            try:
                if until_empty:
                    while any([await each.catch_up() for each in served]) and not self.stopping:
                        pass
                    return
                async with asyncio.TaskGroup() as tasks:
                    for each in served:
                        tasks.create_task(each.run())
                    while not self.stopping:
                        await waker.wait(_LONG)
                    for each in served:
                        each.stop()
            finally:
                await databases.close()


class _Worker(AsyncCascadedWorker):
    """A worker that is woken when its node's state changes."""

    def __init__(
        self, dsn: str, queue: str, node: str, databases: Databases, turns: asyncio.Semaphore
    ) -> None:
        super().__init__(dsn, queue=queue, databases=databases)
        self._node = node
        self._turns = turns

    def look(self) -> None:
        """End the wait."""
        if self._waker is not None:
            self._waker.wake()

    def _turn(self) -> AbstractAsyncContextManager[Any]:
        return self._turns

    def _patience(self, *, woken: bool) -> float:
        # Not all at the same time.
        long = min(_LONG, max(self.watermark_interval, self.poll_interval))
        return long * random.uniform(0.75, 1.0) if woken else self.poll_interval


class _Served:
    """The nodes in one database, with a worker each."""

    def __init__(
        self, cascade: Cascade, dsn: str, databases: Databases, turns: asyncio.Semaphore
    ) -> None:
        self._cascade = cascade
        self._dsn = dsn
        self._databases = databases
        self._turns = turns
        self._states: dict[str, State] = {}
        self._workers: dict[str, _Worker] = {}
        self._waker: AsyncWaker | None = None

    async def run(self) -> None:
        """Keep a worker running for each queue of which this database is a node."""
        losses = Backoff(0.1, AsyncCascadedWorker.reconnect_cap)
        self._waker = waker = AsyncWaker()
        is_first = False
        async with asyncio.TaskGroup() as tasks:
            while not self._cascade.stopping:
                try:
                    if not (is_first or (is_first := await self._is_first())):
                        return
                    self._compare(await self._look(), tasks)
                    losses.reset()
                    pause = self._cascade.poll_interval
                except (PgqError, psycopg.Error) as error:
                    pause = losses.pause(error)
                    logger.log(
                        losses.level,
                        "a database of nodes does not answer: %s; again %s",
                        str(error).partition("\n")[0],
                        soon(pause),
                        extra={"database": dsns.redact(self._dsn), "pause": pause},
                    )
                await waker.wait(pause)
            for worker in self._workers.values():
                worker.stop()

    def stop(self) -> None:
        """End the wait for changes."""
        if self._waker is not None:
            self._waker.wake()

    async def catch_up(self) -> bool:
        """Copy all that the providers have; whether there was something."""
        copied = False
        if not await self._is_first():
            return False
        for queue, (node, *_) in (await self._look()).items():
            worker = self._made(queue, node)
            while not self._cascade.stopping and await worker.run_once():
                copied = True
        return copied

    async def _is_first(self) -> bool:
        async with self._databases.at(self._dsn).connection() as conn:
            [identity] = await async_fetch(conn, IDENTITY)
        return self._cascade.is_first(identity, self._dsn)

    async def _look(self) -> dict[str, State]:
        """Return the states of the nodes, by queue."""
        async with self._databases.at(self._dsn).connection() as conn:
            rows = await async_fetch(conn, statements.NODES)
        return {queue: state for queue, *state in rows}

    def _compare(self, states: dict[str, State], tasks: asyncio.TaskGroup) -> None:
        """Start workers of new queues, stop those of dropped ones, wake those of changed ones."""
        for queue in self._workers.keys() - states.keys():
            self._workers.pop(queue).stop()
        for queue, state in states.items():
            if queue not in self._workers:
                worker = self._workers[queue] = self._made(queue, state[0])
                tasks.create_task(worker.run(handle_signals=False))
            elif state != self._states.get(queue):
                self._workers[queue].look()
        self._states = states

    def _made(self, queue: str, node: str) -> _Worker:
        worker = _Worker(self._dsn, queue, node, self._databases, self._turns)
        for name in ("poll_interval", "watermark_interval", "batch_size"):
            setattr(worker, name, getattr(self._cascade, name))
        return worker


_SETTINGS = {
    "batch_size": COUNT,
    "at_once": COUNT,
    "poll_interval": POSITIVE_SECONDS,
    "watermark_interval": SECONDS,
}
