# WARNING: generated from pgqpy/tasks/_client_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Tasks in a connection's transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from psycopg.rows import class_row, tuple_row

from pgqpy._runtime.heartbeat import unique_name
from pgqpy._runtime.io import Io
from pgqpy._wire.statements import checked, require_utf8
from pgqpy.connection import Connection
from pgqpy.errors import InvalidTask, translate_errors
from pgqpy.tasks import _statements as sql
from pgqpy.tasks._connections import executor
from pgqpy.tasks._renewing import Renewing
from pgqpy.tasks._statements import Duration
from pgqpy.tasks._values import (
    FinishedTask,
    FlowInfo,
    FlowStep,
    Modified,
    PeriodicInfo,
    Pushed,
    Task,
    TaskInfo,
    TaskLimits,
    TaskProgress,
    TaskQueueInfo,
    TaskStatistics,
    read_again,
)
from pgqpy.tasks._waiting import WaitingClient, seconds_of
from pgqpy.telemetry._spans import TASKS, sending

if TYPE_CHECKING:
    from pgqpy.tasks._connections import ForeignConnection

T = TypeVar("T")


class Tasks(WaitingClient):
    """Task queues, on the caller's connection and in its transaction.

    Tasks are pushed into connections of psycopg, SQLAlchemy (also its sessions), asyncpg and
    Django; all else takes psycopg's.

    Each method calls the function of ``pgq_task`` of its name and raises its errors as a
    `pgqpy.errors.PgqError`: TaskQueueNotFound, TaskConflict for tasks that another claimant has,
    InvalidTask for invalid arguments, InvalidPayload for payloads that are not JSON.
    """

    conn: Connection
    _io = Io()

    def __init__(self, conn: Connection | ForeignConnection, claimant: str | None = None) -> None:
        """``claimant`` is the name under which tasks are claimed; by default a unique one.

        A connection of another library is for `push`, `push_unique` and `push_many` only. Raises
        InvalidTask for other objects.
        """
        self._foreign = executor(conn, awaited=self._io.awaits)
        self.conn = cast(Connection, conn)
        self.claimant = claimant or unique_name()

    # --- push

    def push(
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

        It is available ``at`` a time, or after ``delay`` seconds, or at once; higher priorities
        come first. While a task with the same ``unique_key`` waits, none is pushed, and its id is
        returned; see also `push_unique`. Tasks with the same ``order_key`` run one after another.
        """
        with sending(TASKS, queue):
            value = self._value(
                sql.PUSH,
                queue,
                sql.jsonb(payload),
                *sql.push_options(at, delay, priority, headers),
                unique_key,
                order_key,
            )
        return int(value)

    def push_unique(
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

        That is one that waits, also for its next attempt; with ``unique_while="running"`` also one
        that a worker has, for tasks that need not run again; for ``unique_for`` seconds after a
        push any. With ``replace`` the one that waits gets this payload, headers, priority and time,
        and no attempts: with a ``delay``, tasks wait until it is quiet.
        """
        with sending(TASKS, queue):
            ((task_id, inserted),) = self._rows(
                sql.PUSH_UNIQUE,
                queue,
                sql.jsonb(payload),
                unique_key,
                unique_while,
                sql.duration(unique_for, "unique_for"),
                replace,
                *sql.push_options(at, delay, priority, headers),
                order_key,
            )
        return Pushed(task_id, inserted)

    def push_many(
        self,
        queue: str,
        payloads: Iterable[Any],
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        priority: int = 0,
        headers: Mapping[str, Any] | None = None,
        order_keys: Sequence[str | None] | None = None,
        unique_keys: Sequence[str | None] | None = None,
        unique_while: Literal["waiting", "running"] = "waiting",
        unique_for: Duration | None = None,
        replace: bool = False,
    ) -> list[int]:
        """Put many tasks into a queue; return their ids, in the order of the payloads.

        ``order_keys`` and ``unique_keys`` have one for each payload; the rest is as for `push` and
        `push_unique`, and equal for all.
        """
        if isinstance(payloads, str | bytes | Mapping):
            raise InvalidTask(
                f"the payloads are {payloads!r:.80}", hint="Give a list of them, or push() one."
            )
        with sending(TASKS, queue) as span:
            rows = self._rows(
                sql.PUSH_MANY,
                queue,
                [sql.jsonb(payload) for payload in payloads],
                *sql.push_options(at, delay, priority, headers),
                None if order_keys is None else list(order_keys),
                None if unique_keys is None else list(unique_keys),
                unique_while,
                sql.duration(unique_for, "unique_for"),
                replace,
            )
            span.count = len(rows)
        return [row[0] for row in rows]

    # --- claim

    def try_claim(
        self,
        queues: str | Iterable[str],
        *,
        lease: Duration | None = None,
        max_tasks: int = 1,
        random: bool = True,
    ) -> list[Task]:
        """Claim up to ``max_tasks`` available tasks of queues that are not paused.

        Until the ``lease`` ends (seconds; None: the queue's setting) no other claimant gets them.
        With ``random`` begin with any of those that have waited longest, so that tasks that crash
        workers do not block the others; else in the order in which they became available.

        JSON that Python cannot read is an `Unreadable` in the task, which is claimed like others:
        give it up by `fail`, with ``final=True``, as workers do.
        """
        rows = self._rows(
            sql.CLAIM,
            sql.queue_names(queues),
            self.claimant,
            sql.duration(lease, "lease"),
            sql.whole(max_tasks, "max_tasks"),
            random,
        )
        return [Task(*row) for row in rows]

    def claim(
        self,
        queues: str | Iterable[str],
        *,
        lease: Duration | None = None,
        max_tasks: int = 1,
        random: bool = True,
        wait: Duration | None = None,
    ) -> list[Task]:
        """Wait for tasks, for up to ``wait`` seconds (None: without end), and claim them, like
        `try_claim`.

        The connection must be in autocommit: inside a transaction no new task would become visible.
        It is notified of tasks by LISTEN; where that does not work (PgBouncer in transaction mode)
        it polls every second.
        """
        names = sql.queue_names(queues)

        def take() -> list[Task]:
            return self.try_claim(names, lease=lease, max_tasks=max_tasks, random=random)

        return self._wait(b"pgq_task", names, take, wait)

    def pop(self, queue: str, *, max_tasks: int = 1, wait: Duration | None = 0) -> list[Task]:
        """Take up to ``max_tasks`` available tasks out of the queue, in their order: when the
        transaction commits they are gone. ``wait`` for the first one like `claim`.

        JSON that Python cannot read is an `Unreadable`, whose ``text`` is then all that is left.
        """

        def take() -> list[Task]:
            rows = self._rows(sql.POP, queue, number, self.claimant)
            return [Task(*row) for row in rows]

        number = sql.whole(max_tasks, "max_tasks")
        if seconds_of(wait) <= 0:
            return take()
        return self._wait(b"pgq_task", [queue], take, wait)

    def stop_waiting(self) -> None:
        """End a `claim`, `pop` or `wait_until_empty` that waits, or else the next one, within a
        second, like at the end of its time. Call it from any thread."""
        self._stopped = True

    # --- what becomes of claimed tasks

    def renew(self, tasks: Iterable[Task], lease: Duration | None = None) -> list[Task]:
        """Begin the leases again; return the tasks that are still this claimant's, with the new
        versions and leases."""
        known = {task.id: task for task in tasks}
        named = sql.versions(known.values())
        duration = sql.duration(lease, "lease")
        rows = self._rows(sql.RENEW_FOR_CLIENT, self.claimant, *named, duration)
        return [replace(known[row[0]], version=row[1], lease=row[2]) for row in rows]

    def renewing(self, *tasks: Task, lease: Duration | None = None) -> Renewing:
        """Renew claimed tasks in the background of a block, for work that takes long::

            with tasks.renewing(task) as held:
                work(task)
            tasks.finish(held.task)

        Raises InvalidTask if the connection has an open transaction: commit the claim first.
        """
        return Renewing(self.conn, self.claimant, tasks, lease)

    def finish(self, task: Task, result: Any = None) -> None:
        """Finish a task: it is removed when the caller's transaction commits, and kept with its
        ``result`` if the queue keeps finished tasks.

        Raises TaskConflict if another claimant has, or had, the task: then roll back your work.
        """
        encoded = sql.jsonb_or_null(result)
        self._value(sql.FINISH, self.claimant, task.id, task.version, encoded)

    def finish_and_claim(
        self,
        task: Task,
        queue: str | None = None,
        *,
        result: Any = None,
        lease: Duration | None = None,
        random: bool = True,
    ) -> Task | None:
        """`finish` a task and claim the next one, if any, in one round trip and one commit.

        It is claimed from the same queue, or from ``queue``, like by `try_claim`. Raises
        TaskConflict if another claimant has the task; then nothing is claimed, either.
        """
        rows = self._rows(
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

    def finish_many(
        self, tasks: Iterable[Task], results: Sequence[Any] | None = None
    ) -> list[Task]:
        """Finish many tasks; return those that were lost, which are not finished."""
        known = list(tasks)
        if results is not None and len(results) != len(known):
            raise InvalidTask(
                f"{len(known)} tasks and {len(results)} results", hint="Give one for each."
            )
        encoded = None if results is None else [sql.jsonb_or_null(result) for result in results]
        rows = self._rows(sql.FINISH_MANY, self.claimant, *sql.versions(known), encoded, None)
        lost = {row[0] for row in rows}
        return [task for task in known if task.id in lost]

    def fail(self, task: Task, error: str, *, delay: Duration = 0, final: bool = False) -> bool:
        """Record a failure: the task is retried after ``delay`` seconds, or goes to the error queue
        if this was ``final``, or the last attempt that the queue allows: then True.

        Raises TaskConflict if another claimant has the task.
        """
        fail = b"select pgq_task.fail(%s, %s, %s::int4, %s, %s::interval, %s)"
        decision = error, sql.duration(delay, "delay"), final
        return bool(self._value(fail, self.claimant, task.id, task.version, *decision))

    def release(self, tasks: Iterable[Task], *, delay: Duration = 0) -> list[int]:
        """Return tasks as if they had not been claimed, available after ``delay`` seconds; return
        the ids of those that were not this claimant's any more."""
        named = sql.versions(tasks)
        delays = [sql.duration(delay, "delay")] * len(named[0])
        rows = self._rows(sql.RELEASE, self.claimant, *named, delays, None)
        return [row[0] for row in rows]

    # --- anything, all or nothing

    def modify(
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
        unique_key is taken; as a key of an insert, it is for that one. ``force`` is for
        administration: versions and foreign claims are ignored.
        """
        rows = self._rows(
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

    def reserve_ids(self, count: int = 1) -> list[int]:
        """Reserve ids for inserts of `modify` with an explicit ``id``: so tasks can name each other
        in their payloads. No other task gets them. Each is for one task, and for this role."""
        reserve = b"select * from pgq_task.reserve_ids(%s::int4)"
        return [row[0] for row in self._rows(reserve, sql.whole(count, "count"))]

    # --- flows

    def push_flow(self, steps: Iterable[Mapping[str, Any]]) -> int:
        """Put tasks into queues, some of which wait for others; return the flow's number.

        Each step is a mapping like an insert of `modify`; ``after`` are the numbers of earlier
        steps, from 1, and ``name`` is for `flow`. `Flow` does this for jobs.
        """
        given = list(steps)
        queue = given[0].get("queue") if given and isinstance(given[0], Mapping) else None
        with sending(TASKS, str(queue)) as span:
            span.count = len(given)
            return int(self._value(sql.PUSH_FLOW, sql.changes_json(given, traced=True)))

    def flow(self, number: int) -> list[FlowStep]:
        """List the steps of a flow: by its number, or the id of one of its tasks. Raises
        InvalidTask if it is unknown; it is known until a day after its end."""
        steps = b"select * from pgq_task.get_flow(%s::int8)"
        return self._objects(FlowStep, steps, sql.whole(number, "number"))

    def flows(self, max_flows: int = 100) -> list[FlowInfo]:
        """List the newest flows of which the caller may read a step."""
        flows = b"select * from pgq_task.list_flows(%s::int4)"
        return self._objects(FlowInfo, flows, sql.whole(max_flows, "max_flows"))

    # --- tasks that other processes work on

    def result(self, task_id: int, *, wait: Duration | None = None) -> Any:
        """Wait until a task is finished, for up to ``wait`` seconds (None: without end); return its
        result.

        The queue must keep finished tasks, for longer than it takes to ask. Raises TaskFailed, with
        the reason, if the task is in an error queue or was deleted; TimeoutError; InvalidTask if
        the task is unknown, or was pushed in this open transaction.
        """
        return self._io.run(self._wait_for_result(task_id, wait))

    def cancel(self, task_id: int, reason: str = "cancelled") -> bool:
        """Cancel a task: True if it was not claimed, and is deleted.

        False if a worker has it. A `TaskApp` worker is told within about a second: an asyncio job
        is cancelled, others find out by `CurrentJob.progress` or `check_cancelled`; then the task
        goes to the error queue. Raises TaskConflict if there is no such task.
        """
        cancel = b"select pgq_task.cancel(%s, %s)"
        return bool(self._value(cancel, sql.task_id(task_id), reason) == "deleted")

    def progress(
        self, queue: str | None = None, *, ids: Iterable[int] | None = None
    ) -> list[TaskProgress]:
        """Return the progress of claimed tasks that reported it, or were cancelled."""
        ask = b"select * from pgq_task.get_progress(%s, %s::bigint[])"
        return self._objects(TaskProgress, ask, queue, sql.task_ids(ids))

    # --- lists of tasks, and changes of many

    def change(
        self,
        queue: str,
        filter: Mapping[str, Any] | None,  # noqa: A002
        change: Mapping[str, Any],
        *,
        max_tasks: int | None = None,
        claimed: bool = False,
    ) -> int:
        """Change all tasks of a queue that a filter finds, in the same way; return their number.

        ``change`` has ``at`` or ``delay``, ``queue``, ``priority``, ``payload``, ``headers``,
        ``attempts``, ``error``, ``order_key``, or ``stop``. Claimed tasks are not changed unless
        ``claimed``.
        """
        value = self._value(
            b"select pgq_task.change_tasks(%s::text, %s::jsonb, %s::jsonb, %s::int4, %s)",
            queue,
            sql.filter_json(filter),
            sql.filter_json(change),
            sql.whole(max_tasks, "max_tasks"),
            claimed,
        )
        return int(value)

    def remove(
        self,
        queue: str,
        filter: Mapping[str, Any] | None,  # noqa: A002
        *,
        max_tasks: int | None = None,
        claimed: bool = False,
    ) -> int:
        """Delete all tasks of a queue that a filter finds; return their number. See `change`."""
        remove = b"select pgq_task.remove_tasks(%s::text, %s::jsonb, %s::int4, %s)"
        filtered, number = sql.filter_json(filter), sql.whole(max_tasks, "max_tasks")
        return int(self._value(remove, queue, filtered, number, claimed))

    def requeue(
        self,
        queue: str,
        filter: Mapping[str, Any] | None = None,  # noqa: A002
        *,
        max_tasks: int | None = None,
    ) -> int:
        """Send tasks of an error queue back to where they failed; return their number."""
        requeue = b"select pgq_task.requeue(%s::text, %s::jsonb, %s::int4)"
        filtered, number = sql.filter_json(filter), sql.whole(max_tasks, "max_tasks")
        return int(self._value(requeue, queue, filtered, number))

    def stop(self, task_id: int, version: int) -> int:
        """Exclude a task from claims until `start`; return its new version. Raises TaskConflict."""
        known = sql.task_id(task_id), sql.whole(version, "the version")
        return int(self._value(b"select pgq_task.stop(%s, %s::int4)", *known))

    def start(self, task_id: int, version: int) -> int:
        """Make a stopped or scheduled task available now; return its new version."""
        known = sql.task_id(task_id), sql.whole(version, "the version")
        return int(self._value(b"select pgq_task.start(%s, %s::int4)", *known))

    # --- history

    def finished(
        self,
        queue: str,
        *,
        ids: Iterable[int] | None = None,
        finished_from: datetime | None = None,
        finished_before: datetime | None = None,
        payload: Any = None,
        outcome: str | None = None,
        max_tasks: int | None = 100,
    ) -> list[FinishedTask]:
        """Return the finished tasks that a queue keeps, the last ones first.

        Only those with these ``ids``, finished between two times (with time zone), with a payload
        that contains ``payload`` (JSON; None: any payload), with outcome ``"finished"``,
        ``"popped"`` or ``"deleted"``; at most ``max_tasks`` (None: all). The queue's setting
        ``keep`` says how long they are kept.
        """
        return self._objects(
            FinishedTask,
            sql.FINISHED,
            queue,
            queue,
            sql.whole(max_tasks, "max_tasks"),
            *sql.finished_filter(ids, finished_from, finished_before, payload, outcome),
        )

    def replay(
        self,
        queue: str,
        *,
        target: str | None = None,
        ids: Iterable[int] | None = None,
        finished_from: datetime | None = None,
        finished_before: datetime | None = None,
        payload: Any = None,
        outcome: str | None = None,
        max_tasks: int | None = None,
    ) -> list[int]:
        """Push finished tasks again, as new ones, to the same queue or to ``target``; return their
        ids.

        They are chosen like for `finished`. The headers of each name the original task: ``origin``,
        ``replay_of`` and ``finished_at``.
        """
        rows = self._rows(
            sql.REPLAY,
            queue,
            target,
            *sql.finished_filter(ids, finished_from, finished_before, payload, outcome),
            sql.whole(max_tasks, "max_tasks"),
        )
        return [row[0] for row in rows]

    def statistics(self, queue: str | None = None) -> list[TaskStatistics]:
        """Return the counts of operations on tasks, of all queues, of one, or of ``"tenant.*"``."""
        return self._objects(TaskStatistics, sql.STATISTICS, queue)

    def reset_statistics(self, queue: str | None = None) -> None:
        """Let these counts begin at 0 again, from the commit on."""
        self._value(b"select pgq_task.reset_statistics(%s)", queue)

    # --- queues

    def create_queue(self, queue: str) -> bool:
        """Create a task queue; False if it exists already."""
        return bool(self._value(b"select pgq_task.create_queue(%s::text)", queue))

    def drop_queue(self, queue: str, *, force: bool = False) -> None:
        """Drop a task queue. Raises TaskQueueNotEmpty if it has tasks, unless ``force``."""
        self._value(b"select pgq_task.drop_queue(%s::text, %s)", queue, force)

    def set_config(self, queue: str, param: str, value: object) -> None:
        """Set ``lease``, ``time_limit`` (of an attempt), ``max_attempts``, ``error_queue``,
        ``keep`` (how long finished tasks are kept), ``weight`` (its share of claims from several
        queues) or ``keep_tenants`` (how long empty tenants are kept: the queue has tenants); values
        are written like in SQL, for instance ``'1 hour'``, None is none."""
        written = None if value is None else str(value)
        self._value(b"select pgq_task.set_queue_config(%s, %s, %s)", queue, param, written)

    def pause(self, queue: str) -> None:
        """Stop claims of the queue's tasks, from the commit on."""
        self._value(b"select pgq_task.pause_queue(%s)", queue)

    def resume(self, queue: str) -> None:
        """End a pause."""
        self._value(b"select pgq_task.resume_queue(%s)", queue)

    def queues(
        self,
        queue: str | None = None,
        *,
        max_count: int | None = 10_000,
        max_queues: int | None = None,
    ) -> list[TaskQueueInfo]:
        """Return settings and sizes of all queues, of one, or of those that match ``"tenant.*"``,
        the first ``max_queues`` by name (None: all), counting at most ``max_count`` tasks of each
        kind and priority (None: all)."""
        ask = b"select * from pgq_task.get_queue_info(%s::text, %s::int4, %s::int4)"
        numbers = sql.whole(max_count, "max_count"), sql.whole(max_queues, "max_queues")
        return self._objects(TaskQueueInfo, ask, queue, *numbers)

    def is_empty(self, queues: str | Iterable[str]) -> bool:
        """Whether the queues have no tasks at all, claimed and scheduled ones included."""
        names = sql.queue_names(queues)
        return bool(self._value(sql.IS_EMPTY, names, False))

    def wait_until_empty(
        self, queues: str | Iterable[str], *, wait: Duration | None = None
    ) -> None:
        """Wait until the queues have no tasks at all, for up to ``wait`` seconds (None: without
        end). Raises TimeoutError.

        A worker that finds no more tasks notifies it, and it looks every second. The connection
        must be in autocommit.
        """
        names = sql.queue_names(queues)

        def look() -> bool:
            return bool(self._value(sql.IS_EMPTY, names, True))

        if not self._wait(b"pgq_task_idle", [], look, wait):
            raise TimeoutError(f"there are still tasks in {', '.join(names)}")

    def next_time(self, queues: str | Iterable[str]) -> datetime | None:
        """Return the time from which the first task of the queues can be claimed, in the past if
        one can be now; None if there is none, or all are claimed."""
        names = sql.queue_names(queues)
        time: datetime | None = self._value(b"select pgq_task.next_time(%s::text[])", names)
        return time

    def server_time(self) -> datetime:
        """Return the server's clock, with which tasks' times are compared."""
        time: datetime = self._value(b"select pgq_task.server_time()")
        return time

    def set_limits(
        self,
        queue: str,
        *,
        max_running: int | None = None,
        max_running_per_key: int | None = None,
        rate: int | None = None,
        rate_per_key: int | None = None,
        rate_period: Duration = 60,
    ) -> None:
        """Limit how many tasks of a queue run at a time, and are begun in any period of
        ``rate_period`` seconds; in all, and of those with the same ``limit_key`` in their headers.

        It applies to all workers together, from the commit on. None is no limit. Raises InvalidTask
        for limits below 1.
        """
        self._value(
            sql.SET_LIMITS,
            queue,
            sql.whole(max_running, "max_running"),
            sql.whole(max_running_per_key, "max_running_per_key"),
            sql.whole(rate, "rate"),
            sql.whole(rate_per_key, "rate_per_key"),
            sql.duration(rate_period, "rate_period"),
        )

    def limits(self, queue: str | None = None) -> list[TaskLimits]:
        """Return the limits of queues that have any."""
        rows = self._rows(b"select * from pgq_task.get_limits(%s)", queue)
        return [TaskLimits(*row) for row in rows]

    # --- periodic tasks

    def periodic(self) -> list[PeriodicInfo]:
        """Return the periodic tasks."""
        return self._objects(PeriodicInfo, b"select * from pgq_task.get_periodic_info()")

    def pause_periodic(self, name: str) -> None:
        """Stop pushing runs of a periodic task."""
        self._value(b"select pgq_task.pause_periodic(%s)", name)

    def resume_periodic(self, name: str) -> None:
        """End a pause; runs that were due in it are not made up for."""
        self._value(b"select pgq_task.resume_periodic(%s)", name)

    def run_periodic(self, name: str) -> int:
        """Push a run of a periodic task now, in addition to the due ones; return the task's id."""
        return int(self._value(b"select pgq_task.run_periodic(%s)", name))

    def drop_periodic(self, name: str) -> None:
        """Delete a periodic task, until a worker starts whose app has it."""
        self._value(b"select pgq_task.drop_periodic(%s)", name)

    # --- helpers

    def _value(self, statement: bytes, *arguments: Any) -> Any:
        ((value,),) = self._rows(statement, *arguments)
        return value

    def _rows(self, statement: bytes, *arguments: Any, make: Any = tuple_row) -> Any:
        if self._foreign is not None:
            if statement not in sql.PUSHES:
                raise self._only_pushes()
            return self._foreign(self.conn, statement, checked(arguments))
        cursor = self.conn.cursor(row_factory=make, binary=True)
        with translate_errors():
            require_utf8(self.conn)
            cursor.execute(statement, checked(arguments))
            try:
                return cursor.fetchall()
            except (RecursionError, ValueError):
                return read_again(cursor, make(cursor))

    def _objects(self, kind: type[T], statement: bytes, *arguments: Any) -> list[T]:
        objects: list[T] = self._rows(statement, *arguments, make=class_row(kind))
        return objects

    def _wait(self, channel: bytes, queues: Any, take: Callable[[], T], wait: Duration | None) -> T:
        taken: T = self._io.run(self._wait_for(channel, queues, take, wait))
        return taken

    # --- last, since its name hides the type in what follows

    def list(
        self,
        queue: str | None = None,
        filter: Mapping[str, Any] | None = None,  # noqa: A002
        *,
        max_tasks: int | None = 100,
        payloads: bool = True,
    ) -> list[TaskInfo]:
        """List tasks, of all queues, of one, or of those that match ``"tenant.*"``, without locks.

        Without ``payloads`` these are None, and the server neither reads nor sends large ones.

        ``filter`` has the conditions of ``pgq_task.list_tasks``: ``status`` (available, claimed,
        scheduled, held, stopped, or several), ``ids``, ``payload`` and ``headers`` (contained
        values), ``error`` (part of it), ``claimant``, ``priority``, ``unique_key``, ``order_key``,
        ``attempts`` (at least), ``created_after``, ``created_before``, ``at_after``, ``at_before``.
        """
        number = sql.whole(max_tasks, "max_tasks")
        ask = sql.LIST if payloads else sql.LIST_WITHOUT_PAYLOADS
        return self._objects(TaskInfo, ask, queue, sql.filter_json(filter), number)
