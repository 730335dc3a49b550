"""Jobs that wait for each other."""

from __future__ import annotations

from collections.abc import Awaitable
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

import psycopg

from pgqpy.errors import InvalidTask
from pgqpy.tasks._jobs.job import P, Push, tasks_of

if TYPE_CHECKING:
    from pgqpy.tasks._connections import AsyncForeignConnection, ForeignConnection


class Step:
    """A job of a flow; `Flow.add` makes it."""

    def __init__(self, flow: Flow, settings: dict[str, Any]) -> None:
        self.flow = flow
        self.settings = settings
        self.earlier: list[Step] = []

    def __repr__(self) -> str:
        return f"<step {self.settings['name']}>"

    def after(self, *steps: Step) -> Step:
        """Begin when these steps are finished, with their results: see `CurrentJob.results`.
        Returns this step. Raises InvalidTask for steps of another flow."""
        for step in steps:
            if not isinstance(step, Step):
                raise InvalidTask(
                    f"a step cannot come after {step!r:.80}",
                    hint="Give what add() has returned: flow.add(merge).after(*pages).",
                )
            if step.flow is not self.flow:
                raise InvalidTask(
                    f"{self.settings['name']} cannot come after a step of another flow",
                    hint="Add all steps to one flow.",
                )
        self.earlier += steps
        return self


class Flow:
    """Jobs, some of which begin when others are finished::

        flow = Flow()
        pages = [flow.add(fetch, url) for url in urls]
        flow.add(merge).after(*pages)
        flow.push(conn)

    If a job fails and goes to the error queue, those after it wait: it continues when the task is
    requeued. If a task is removed or cancelled, those after it go to the error queue.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def add(self, job: Push[P], /, *args: P.args, **kwargs: P.kwargs) -> Step:
        """Add a job, or its ``options(...)``, with its arguments. Raises the errors of `Job.push`,
        and InvalidTask for one with a ``unique_key``."""
        if not isinstance(job, Push):
            raise InvalidTask(
                f"{job!r:.80} is no job",
                hint="Give the job, then its arguments: flow.add(fetch, 1).",
            )
        payload, settings = job.task(args, kwargs)
        if settings["unique_key"] is not None:
            raise InvalidTask(
                f"{job.name} has a unique_key, and another task could stand for it",
                hint="Add it with .options(unique_key=None).",
            )
        given = {key: value for key, value in settings.items() if value is not None}
        queue = {"queue": job.queue(args, kwargs), "name": job.name}
        step = Step(self, given | queue | {"payload": payload})
        self.steps.append(step)
        return step

    def push(
        self,
        conn: psycopg.Connection[Any]
        | psycopg.AsyncConnection[Any]
        | ForeignConnection
        | AsyncForeignConnection,
    ) -> int | Awaitable[int]:
        """Put all jobs into their queues, in the connection's transaction; return the flow's
        number, for `Tasks.flow`. Await it if the connection is asynchronous. Raises InvalidTask if
        steps come after each other."""
        if not self.steps:
            raise InvalidTask("the flow has no steps", hint="Add jobs: flow.add(fetch, 1).")
        try:
            order = [*TopologicalSorter({step: step.earlier for step in self.steps}).static_order()]
        except CycleError as error:
            names = " after ".join(step.settings["name"] for step in error.args[1])
            raise InvalidTask(
                f"the flow has a cycle: {names}", hint="Let one of them come first."
            ) from None
        steps = [
            step.settings | {"after": [order.index(each) + 1 for each in step.earlier]}
            for step in order
        ]
        number: int | Awaitable[int] = tasks_of(conn).push_flow(steps)
        return number
