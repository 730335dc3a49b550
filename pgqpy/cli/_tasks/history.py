"""Finished tasks that queues keep: look at them, and push them again."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import click

from pgqpy._runtime.words import plural
from pgqpy.cli._base.arguments import MOMENT, TASK_ID, TASK_QUEUE, task_queue_argument
from pgqpy.cli._base.command import count_option, dry_run_option, options
from pgqpy.cli._base.output import json_option, print_items, say
from pgqpy.cli._tasks.choice import compact, distance, payload_option, task
from pgqpy.connection import Connection
from pgqpy.tasks import Tasks

which_options = options(
    task_queue_argument,
    click.argument("ids", metavar="[ID]...", nargs=-1, type=TASK_ID),
    click.option("--since", type=MOMENT, help="Finished then or later."),
    click.option("--before", type=MOMENT, help="Finished before."),
    payload_option,
    click.option(
        "--outcome",
        type=click.Choice(["finished", "popped", "deleted"]),
        help="Done by a worker, popped, or deleted.",
    ),
)


@task.command("history", role="pgq_reader")
@which_options
@count_option(20)
@json_option
def history(conn: Connection, queue: str, ids: tuple[int, ...], count: int, **which: Any) -> None:
    """List finished tasks that a queue keeps, the last ones first.

    The parameter keep says how long they are kept: see `pgqpy task config`. With --json each is an
    object on a line of its own, with the columns of pgq_task.finished_tasks().

    Examples:
      pgqpy task history mails
      pgqpy task history mails --since 2026-11-21 --payload '{"to": "ann"}'
      pgqpy task history mails 17 --json | jq .result
    """
    tasks = Tasks(conn).finished(queue, max_tasks=count, **_filter(ids, which))
    now = datetime.now(UTC)
    print_items(
        tasks,
        {
            "Id": lambda each: str(each.id),
            "When": lambda each: distance(each.finished, now),
            "Outcome": "outcome",
            "Attempts": "attempts",
            "Result": lambda each: None if each.result is None else compact(each.result),
            "Payload": lambda each: compact(each.payload),
        },
        empty=f"task queue {queue} has kept no such finished tasks",
        each_a_line=True,
    )


@task.command("replay", role="pgq_admin")
@which_options
@click.option("--all", "every", is_flag=True, help="All that are kept.")
@click.option("--to", "target", type=TASK_QUEUE, help="Push them into this queue instead.")
@dry_run_option
def replay(
    conn: Connection,
    queue: str,
    ids: tuple[int, ...],
    every: bool,
    target: str | None,
    dry_run: bool,
    **which: Any,
) -> None:
    """Push finished tasks that a queue keeps again, as new tasks.

    They have the payload, the priority and the keys of the originals; their headers name these.
    `history` takes the same options.

    Examples:
      pgqpy task replay mails 17
      pgqpy task replay mails --since 2026-11-21T08:00 --dry-run
      pgqpy task replay mails --all --to mails-again
    """
    if every == (bool(ids) or any(value is not None for value in which.values())):
        raise click.UsageError("Give ids, or options that say which, or --all.")
    with conn.transaction(force_rollback=dry_run):
        number = len(Tasks(conn).replay(queue, target=target, **_filter(ids, which)))
    text = plural(number, "task")
    say(f"{text} would be pushed" if dry_run else f"pushed {text} into {target or queue}")


def _filter(ids: tuple[int, ...], which: dict[str, Any]) -> dict[str, Any]:
    payload = which["payload"]
    return {
        "ids": ids or None,
        "finished_from": which["since"],
        "finished_before": which["before"],
        "payload": None if payload is None else json.loads(payload),
        "outcome": which["outcome"],
    }
