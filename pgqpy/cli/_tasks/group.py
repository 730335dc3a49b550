"""The group of the commands about tasks, and what several of them use."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import click

from pgqpy.cli._base.command import Group
from pgqpy.cli._base.errors import CliError
from pgqpy.cli._base.output import brief


@click.group(cls=Group)
def task() -> None:
    """Push tasks, work on them, look at them, and repair them."""


def no_such_task(task_id: int) -> CliError:
    """Return the error for a task that is not waiting."""
    return CliError(
        f"there is no task {task_id} (any more)",
        "`pgqpy task list` shows those there are, `pgqpy task history` the finished ones",
    )


def distance(time: datetime | None, now: datetime) -> str | None:
    """Return the distance to a time: ``in 3 s``, ``5 min ago``."""
    if time is None:
        return None
    return f"in {brief(time - now)}" if time > now else f"{brief(now - time)} ago"


def compact(value: Any) -> str:
    """Return a JSON document on one line."""
    return json.dumps(value, ensure_ascii=False)
