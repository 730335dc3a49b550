"""Working on tasks with a class, an application, or a function."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Awaitable
from typing import Any

import click

from pgqpy.cli._base.arguments import TASK_QUEUE, TEXT
from pgqpy.cli._base.command import log_options, log_to
from pgqpy.cli._base.database import end_soon, interruptible
from pgqpy.cli._base.errors import CliError, first_line
from pgqpy.cli._base.load_class import load_module
from pgqpy.cli._tasks.choice import task
from pgqpy.errors import PgqError


@task.command("work", role="pgq_reader")
@click.argument("target", type=TEXT)
@click.argument("queues", metavar="[QUEUE]...", nargs=-1, type=TASK_QUEUE)
@click.option("--concurrency", type=click.IntRange(min=1), metavar="N", help="N at a time.")
@click.option(
    "--batch-size", type=click.IntRange(min=1), metavar="N", help="Claim at most N at once."
)
@click.option(
    "--lease",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Claim for this time, and renew.",
)
@click.option(
    "--stop-timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Wait this long for tasks at the end.",
)
@click.option(
    "--until-empty", is_flag=True, help="Work on what is available, and end; for schedulers."
)
@log_options
def work(
    dsn: str,
    target: str,
    queues: tuple[str, ...],
    until_empty: bool,
    log_level: str,
    log_format: str,
    **settings: Any,
) -> None:
    """Work on tasks with TARGET until SIGTERM or Ctrl-C.

    TARGET is MODULE:NAME or FILE.py:NAME: a subclass of TaskWorker or AsyncTaskWorker, a TaskApp
    with its jobs, or a function that is called with each task. The queues are those of the class or
    of the jobs, unless some are named here. A second Ctrl-C does not wait for the current task.

    Examples:
      pgqpy task work shop.mails:Mailer
      pgqpy task work shop.tasks:app mails reports --concurrency 8
      pgqpy task work mails.py:send mails --until-empty
    """
    worker = make_worker(target, dsn, list(queues) or None, settings)
    # Threads cannot be interrupted: the second Ctrl-C ends the process with them.
    with log_to(None, log_level, log_format), interruptible():
        ended = worker.run(until_empty=until_empty)
        if inspect.iscoroutine(ended):
            asyncio.run(_finish(ended, worker.stop_timeout))


async def _finish(run: Awaitable[None], stop_timeout: float | None) -> None:
    await run
    if stop_timeout is not None and len(asyncio.all_tasks()) > 1:
        # Tasks that go on after they were cancelled would keep the event loop.
        end_soon(0)


def make_worker(target: str, dsn: str, queues: list[str] | None, settings: dict[str, Any]) -> Any:
    from pgqpy.tasks import AsyncTaskWorker, TaskWorker

    where, _, name = target.rpartition(":")
    if not where:
        raise CliError(f"{target} names nothing in a module", "write it as shop.tasks:app")
    try:
        found = getattr(load_module(where), name, None)
    except ImportError as error:
        raise CliError(f"{where} cannot be imported: {first_line(str(error))}") from error
    # Its dependencies may not be installed; then no app can exist.
    jobs: Any = sys.modules.get("pgqpy.tasks._jobs.app")
    given = {key: value for key, value in settings.items() if value is not None}
    try:
        if jobs is not None and isinstance(found, jobs.TaskApp):
            its = [j for j in found.jobs.values() if not queues or j.default.queue in queues]
            # Either kind of worker runs both kinds of jobs, but those with its connection.
            bound = [job for job in its if job.transaction] or its
            awaited = any(inspect.iscoroutinefunction(job.function) for job in bound)
            return (found.async_worker if awaited else found.worker)(dsn, queues, **given)
        if isinstance(found, type) and issubclass(found, TaskWorker | AsyncTaskWorker):
            return found(dsn, queues, **given)
        if callable(found) and not isinstance(found, type | (jobs.Job if jobs else type)):
            if queues is None:
                raise click.UsageError(f"Name the queues whose tasks {name} is called with.")
            made = AsyncTaskWorker if inspect.iscoroutinefunction(found) else TaskWorker
            return made(dsn, queues, found, **given)
    except (PgqError, click.ClickException):
        raise
    except (TypeError, ValueError) as error:
        raise CliError(
            f"{target} cannot be made: {type(error).__name__}: {first_line(str(error))}",
            "a class with a constructor of its own must take what TaskWorker's takes",
        ) from error
    raise CliError(
        f"{where} has no worker named {name}",
        "it can be a subclass of TaskWorker or AsyncTaskWorker, a TaskApp, or a function",
    )
