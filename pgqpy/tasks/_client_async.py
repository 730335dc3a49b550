"""Tasks in a connection's transaction: push, claim, renew, finish, fail, modify."""

from __future__ import annotations

import math
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from time import monotonic
from typing import Any, Literal, TypeAlias

from pgqpy._runtime.retries import interval
from pgqpy.connection_async import AsyncConnection
from pgqpy.errors import InvalidTask, translate_errors
from pgqpy.tasks import _statements as sql
from pgqpy.tasks._job_client_async import AsyncTaskJobs
from pgqpy.tasks._statements import Duration
from pgqpy.tasks._values import Modified, Pushed, Task, TaskInfo

_Taken: TypeAlias = list[Task]

#: Seconds between polls while `AsyncTasks.claim` waits: some tasks send no notification.
POLL = 1.0


def claimant_name() -> str:
    """Return a unique name for a claimant: host, process, and a random part."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def _seconds(wait: Duration | None) -> float:
    return math.inf if wait is None else interval(wait, "wait").total_seconds()


class AsyncTasks(AsyncTaskJobs):
    """Task queues, on the caller's connection and in its transaction.

    Each method calls the function of ``pgq_task`` of its name and raises its errors as a
    `pgqpy.errors.PgqError`: TaskQueueNotFound, TaskConflict for tasks that another claimant has,
    InvalidTask for invalid arguments, InvalidPayload for payloads that are not JSON.
    """

    def __init__(self, conn: AsyncConnection, claimant: str | None = None) -> None:
        """``claimant`` is the name under which tasks are claimed; by default a unique one."""
        super().__init__(conn)
        self.claimant = claimant or claimant_name()

    # --- push

    async def push(
        self,
        queue: str,
        payload: Any = None,
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        priority: int = 0,
        headers: Mapping[str, Any] | None = None,
        unique_key: str | None = None,
        order_key: str | None = None,
    ) -> int:
        """Put a task into a queue; return its id.

        It is available ``at`` a time, or ``delay`` seconds from now, or at once; higher priorities
        come first. While a task with the same ``unique_key`` waits in the queue, none is pushed,
        and its id is returned; `push_unique` has other rules, and reports which it was. Tasks with
        the same ``order_key`` are worked on one after the other.
        """
        value = await self._value(
            sql.PUSH,
            queue,
            sql.jsonb(payload),
            *sql.when(at, delay),
            sql.smallint(priority),
            sql.headers_json(headers),
            unique_key,
            order_key,
        )
        return int(value)

    async def push_unique(
        self,
        queue: str,
        payload: Any,
        unique_key: str,
        *,
        unique_while: Literal["waiting", "running"] = "waiting",
        unique_for: Duration | None = None,
        replace: bool = False,
        at: datetime | None = None,
        delay: Duration | None = None,
        priority: int = 0,
        headers: Mapping[str, Any] | None = None,
        order_key: str | None = None,
    ) -> Pushed:
        """Put a task into a queue, unless another one with its key stands for it.

        One stands for it while it waits, also for its next attempt; one that a worker has may not
        know what is new, so then a task is inserted. ``unique_while="running"`` is for those that
        need not run again. ``unique_for`` seconds after a push there is no other one, whatever has
        become of the task. With ``replace`` the one that waits gets this payload, headers, priority
        and time, and no attempts: with a ``delay``, tasks wait until it is quiet.
        """
        ((task_id, inserted),) = await self._rows(
            sql.PUSH_UNIQUE,
            queue,
            sql.jsonb(payload),
            unique_key,
            unique_while,
            sql.duration(unique_for, "unique_for"),
            replace,
            *sql.when(at, delay),
            sql.smallint(priority),
            sql.headers_json(headers),
            order_key,
        )
        return Pushed(task_id, inserted)

    async def push_many(
        self,
        queue: str,
        payloads: Iterable[Any],
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        priority: int = 0,
        headers: Mapping[str, Any] | None = None,
        order_keys: Sequence[str | None] | None = None,
    ) -> list[int]:
        """Put many tasks into a queue; return their ids, in the order of the payloads.

        ``order_keys`` has one for each payload; the rest is as for `push`, and equal for all.
        """
        if isinstance(payloads, str | bytes | Mapping):
            raise InvalidTask(
                f"the payloads are {payloads!r:.80}", hint="Give a list of them, or push() one."
            )
        rows = await self._rows(
            sql.PUSH_MANY,
            queue,
            [sql.jsonb(payload) for payload in payloads],
            *sql.when(at, delay),
            sql.smallint(priority),
            sql.headers_json(headers),
            None if order_keys is None else list(order_keys),
        )
        return [row[0] for row in rows]

    # --- claim, and what ends it

    async def try_claim(
        self,
        queues: str | Iterable[str],
        *,
        lease: Duration | None = None,
        max_tasks: int = 1,
        random: bool = True,
    ) -> list[Task]:
        """Claim up to ``max_tasks`` available tasks; none if there are none, or the queues are
        paused.

        Until the ``lease`` ends (seconds; None: the queue's setting) no other claimant gets them.
        ``random``: begin with any of the tasks that have waited longest, so that tasks that crash
        workers do not block the others; else in the order in which they became available.
        """
        rows = await self._rows(
            sql.CLAIM,
            sql.queue_names(queues),
            self.claimant,
            sql.duration(lease, "lease"),
            sql.whole(max_tasks, "max_tasks"),
            random,
        )
        return [Task(*row) for row in rows]

    async def pop(self, queue: str, *, max_tasks: int = 1, wait: Duration | None = 0) -> list[Task]:
        """Take up to ``max_tasks`` available tasks out of the queue, in their order.

        When the transaction commits they are gone: they are done at most once. With ``wait`` it
        waits for the first one like `claim`, for up to that many seconds (None: without end).
        """

        async def take() -> list[Task]:
            rows = await self._rows(sql.POP, queue, number, self.claimant)
            return [Task(*row) for row in rows]

        number = sql.whole(max_tasks, "max_tasks")
        seconds = _seconds(wait)
        return await (self._wait([queue], take, seconds) if seconds > 0 else take())

    async def claim(
        self,
        queues: str | Iterable[str],
        *,
        lease: Duration | None = None,
        max_tasks: int = 1,
        random: bool = True,
        wait: Duration | None = None,
    ) -> list[Task]:
        """Wait for tasks and claim them, like `try_claim`.

        None if there was none for ``wait`` seconds (None: without end). The connection must be in
        autocommit: the claim is committed, and inside a transaction no new task would become
        visible. It is notified of tasks by LISTEN; behind a PgBouncer in transaction mode, where
        that does not work, it polls every second.
        """
        names = sql.queue_names(queues)

        async def take() -> list[Task]:
            return await self.try_claim(names, lease=lease, max_tasks=max_tasks, random=random)

        return await self._wait(names, take, _seconds(wait))

    async def renew(self, tasks: Iterable[Task], lease: Duration | None = None) -> list[Task]:
        """Begin the leases again; return the tasks that are still this claimant's, renewed.

        Use their new versions and leases from then on.
        """
        known = {task.id: task for task in tasks}
        named = sql.versions(known.values())
        rows = await self._rows(
            sql.RENEW_FOR_CLIENT, self.claimant, *named, sql.duration(lease, "lease")
        )
        return [replace(known[row[0]], version=row[1], lease=row[2]) for row in rows]

    async def release(self, tasks: Iterable[Task], *, delay: Duration = 0) -> list[int]:
        """Give tasks back as if they had not been claimed: the attempt does not count.

        They are available again after ``delay`` seconds. Returns the ids of those that were not
        this claimant's any more.
        """
        ids, versions = sql.versions(tasks)
        delays = [sql.duration(delay, "delay")] * len(ids)
        return [
            row[0] for row in await self._rows(sql.RELEASE, self.claimant, ids, versions, delays)
        ]

    async def finish(self, task: Task, result: Any = None) -> None:
        """Finish a task: it is removed when the caller's transaction commits.

        ``result`` is kept with it if the queue keeps finished tasks. Raises TaskConflict if another
        claimant has the task now, or finished it: then roll back the work done for it.
        """
        await self._value(
            sql.FINISH, self.claimant, task.id, task.version, sql.jsonb_or_null(result)
        )

    async def finish_and_claim(
        self,
        task: Task,
        queue: str | None = None,
        *,
        result: Any = None,
        lease: Duration | None = None,
        random: bool = True,
    ) -> Task | None:
        """`finish` a task and claim the next one, in one round trip and one commit; None if there
        is none.

        It is claimed from the same queue, or from ``queue``; for ``lease`` and ``random`` see
        `try_claim`. Raises TaskConflict if another claimant has the task; then nothing is claimed,
        either.
        """
        rows = await self._rows(
            sql.FINISH_AND_CLAIM,
            self.claimant,
            task.id,
            task.version,
            task.queue if queue is None else queue,
            sql.jsonb_or_null(result),
            sql.duration(lease, "lease"),
            random,
        )
        return Task(*rows[0]) if rows else None

    async def finish_many(
        self, tasks: Iterable[Task], results: Sequence[Any] | None = None
    ) -> list[Task]:
        """Finish many tasks; return those that were lost, which are not finished."""
        known = list(tasks)
        if results is not None and len(results) != len(known):
            raise InvalidTask(
                f"{len(known)} tasks and {len(results)} results", hint="Give one for each."
            )
        encoded = None if results is None else [sql.jsonb_or_null(result) for result in results]
        rows = await self._rows(sql.FINISH_MANY, self.claimant, *sql.versions(known), encoded, None)
        lost = {row[0] for row in rows}
        return [task for task in known if task.id in lost]

    async def fail(
        self, task: Task, error: str, *, delay: Duration = 0, final: bool = False
    ) -> bool:
        """Record a failure: the task is retried after ``delay`` seconds, or goes to the error
        queue.

        True for the error queue: this was ``final``, or the last attempt that the queue allows.
        Raises TaskConflict if another claimant has the task.
        """
        return bool(
            await self._value(
                sql.FAIL,
                self.claimant,
                task.id,
                task.version,
                error,
                sql.duration(delay, "delay"),
                final,
            )
        )

    # --- anything, all or nothing

    async def modify(
        self,
        inserts: Iterable[Mapping[str, Any]] = (),
        changes: Iterable[Mapping[str, Any]] = (),
        deletes: Iterable[Mapping[str, Any] | Task | TaskInfo | Modified] = (),
        depends: Iterable[Mapping[str, Any] | Task | TaskInfo | Modified] = (),
        *,
        skip_collisions: bool = False,
        force: bool = False,
    ) -> list[Modified]:
        """Insert, change and delete any number of tasks, if they and others are unchanged: all or
        nothing.

        Each is a mapping, with the keys of ``pgq_task.modify``: an insert has ``queue`` and
        ``payload`` at least, the others ``id`` and ``version``; deletes and depends may also be
        tasks that were claimed or listed. Raises TaskConflict, whose ``conflicts`` names each task
        that is not in the expected state, and why. ``skip_collisions`` skips inserts whose id or
        unique_key is taken. ``force`` is for administration: versions and foreign claims are
        ignored.
        """
        rows = await self._rows(
            sql.MODIFY,
            self.claimant,
            sql.changes_json(inserts),
            sql.changes_json(changes, "change"),
            sql.changes_json(deletes, "delete"),
            sql.changes_json(depends, "depend"),
            skip_collisions,
            force,
        )
        return [Modified(*row) for row in rows]

    async def reserve_ids(self, count: int = 1) -> list[int]:
        """Reserve ids for inserts of `modify` with an explicit ``id``: so tasks can name each other
        in their payloads. No other task gets them."""
        return [row[0] for row in await self._rows(sql.RESERVE_IDS, sql.whole(count, "count"))]

    # --- helpers

    async def _wait(
        self, queues: list[str], take: Callable[[], Awaitable[_Taken]], seconds: float
    ) -> list[Task]:
        """Take tasks as soon as there are any, until the timeout."""
        if not self.conn.autocommit:
            raise InvalidTask(
                "it is to wait for tasks, and the connection is not in autocommit",
                hint="Open it with autocommit=True, or do not wait: try_claim().",
            )
        end = monotonic() + seconds
        tasks = await take()
        if tasks or seconds <= 0:
            return tasks
        await self._execute(b"listen pgq_task")
        try:
            while True:
                due = await self._value(sql.SET_WAITING, queues)
                tasks = await take()
                left = end - monotonic()
                if tasks or left <= 0:
                    return tasks
                pause = POLL if due is None else min(POLL, due.total_seconds())
                with translate_errors():
                    notices = self.conn.notifies(timeout=min(pause, left), stop_after=1)
                    async for _ in notices:
                        pass
        finally:
            if not self.conn.closed:
                await self._execute(b"unlisten pgq_task")

    async def _execute(self, statement: bytes) -> None:
        with translate_errors():
            await self.conn.execute(statement)
