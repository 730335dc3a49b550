"""Running jobs when they are pushed, without a database."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ParamSpec

from pgqpy.errors import InvalidTask
from pgqpy.tasks import CurrentJob, Pushed, Task
from pgqpy.tasks._connections import is_async
from pgqpy.tasks._jobs.current import async_call, call

if TYPE_CHECKING:
    from pgqpy.tasks import TaskApp
    from pgqpy.tasks._jobs.job import Job, Jobs

P = ParamSpec("P")


@contextmanager
def eager(*apps: TaskApp) -> Iterator[list[Task]]:
    """Make a block in which jobs of these apps run when they are pushed, whatever their time;
    yields a list of those that did.

    No database is used: the connection may be None, and is the one of ``current_job().conn``. The
    arguments are encoded and decoded as usual. The job's errors, `Retry` included, are raised by
    the push.
    """
    from pgqpy.tasks._jobs.job import client_of

    ran: list[Task] = []
    token = client_of.set(lambda conn: _Eager(apps, ran, conn))
    try:
        yield ran
    finally:
        client_of.reset(token)


def run_job(job: Job[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:
    """Run a job as a worker does, without a database; return its result, or the `Retry`,
    `DeadLetter` or `Move` that it returns.

    Arguments and result are encoded and decoded as usual. The job's errors are raised.
    """
    payload, settings = job.task(args, kwargs)
    _, value = _Eager([job.app], [], None)._run(job.default.queue, payload, settings)
    return value if isinstance(value, Exception) else _as_stored(value)


class _Eager:
    """The client of a push."""

    def __init__(self, apps: Sequence[Jobs], ran: list[Task], conn: Any) -> None:
        self._apps = apps
        self._ran = ran
        self._conn = conn

    def push(self, queue: str, payload: Any, **settings: Any) -> int | Awaitable[int]:
        task, value = self._run(queue, payload, settings)
        return _then(task.id, value) if is_async(self._conn) else task.id

    def push_flow(self, steps: list[dict[str, Any]]) -> int | Awaitable[int]:
        results: list[Any] = []

        def run(step: dict[str, Any]) -> Any:
            passed = {"results": [results[nr - 1] for nr in step["after"]]}
            settings = step | {"headers": (step.get("headers") or {}) | passed}
            return self._run(step["queue"], step["payload"], settings)[1]

        async def run_all() -> int:
            for step in steps:
                results.append(_as_stored(await run(step)))  # noqa: PERF401
            return len(self._ran)

        if is_async(self._conn):
            return run_all()
        for step in steps:
            results.append(_as_stored(run(step)))  # noqa: PERF401
        return len(self._ran)

    def _run(self, queue: str, payload: Any, settings: dict[str, Any]) -> tuple[Task, Any]:
        """Run a job; return its task, and its result, or what gives it if it is awaited."""
        now = datetime.now(UTC)
        task = Task(
            id=len(self._ran) + 1,
            version=1,
            queue=queue,
            priority=settings.get("priority", 0),
            attempts=1,
            lease=now,
            created=now,
            payload=payload,
            headers=settings.get("headers"),
            error=None,
            unique_key=settings.get("unique_key"),
            order_key=settings.get("order_key"),
        )
        self._ran.append(task)
        name = payload["task"]
        named = [app.names[name] for app in self._apps if name in app.names]
        if not named:
            raise InvalidTask(
                f"{name} is no job of an app that is eager",
                hint="Name all apps whose jobs run in this block: eager(mails, reports).",
            )
        # Apps may have jobs of the same name in different queues.
        job = max(named, key=lambda each: each.default.queue == queue)
        bound = job.arguments.decode(payload["args"])
        current = CurrentJob(
            task, self._conn, _middleware=job.app.middlewares, _timeout=job.default.seconds
        )
        run = async_call if is_async(self._conn) else call
        return task, run(current, job.function, *bound.args, **bound.kwargs)

    def push_unique(self, queue: str, payload: Any, **settings: Any) -> Any:
        pushed = self.push(queue, payload, **settings)
        return Pushed(pushed, True) if isinstance(pushed, int) else _pushed(pushed)

    def push_many(
        self,
        queue: str,
        payloads: Sequence[Any],
        *,
        order_keys: Sequence[Any] = (),
        **settings: Any,
    ) -> Any:
        keys = order_keys or [None] * len(payloads)
        pushed: Any = [
            self.push(queue, payload, order_key=key, **settings)
            for payload, key in zip(payloads, keys, strict=True)
        ]
        return _all(pushed) if is_async(self._conn) else pushed


def _as_stored(value: Any) -> Any:
    from pgqpy.tasks._jobs.payload import encode_result

    return None if value is None else json.loads(encode_result(value))


async def _then(number: int, running: Awaitable[Any]) -> int:
    await running
    return number


async def _pushed(running: Awaitable[int]) -> Pushed:
    return Pushed(await running, True)


async def _all(pushes: list[Awaitable[int]]) -> list[int]:
    return [await push for push in pushes]
