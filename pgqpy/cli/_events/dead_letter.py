"""``pgqpy dead-letter``: events that consumers have given up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import click

from pgqpy._runtime.words import plural
from pgqpy.cli._base.arguments import CONSUMER, INTERVAL, JSON, QUEUE, TEXT
from pgqpy.cli._base.command import Group, count_option, options
from pgqpy.cli._base.database import one_queue
from pgqpy.cli._base.errors import CliError
from pgqpy.cli._base.output import json_option, print_in_full, print_items, say, wants_json
from pgqpy.cli._events.event_file import event_keys
from pgqpy.connection import Connection
from pgqpy.dead_letters import DeadLetters
from pgqpy.models import DeadLetterFilter, DeadLetterInfo

filter_options = options(
    click.option("--queue", type=QUEUE, help="Of this queue."),
    click.option("--consumer", type=CONSUMER, help="Given up by this consumer."),
    click.option("--type", "event_type", type=TEXT, metavar="TYPE", help="Events of this type."),
    click.option("--reason", type=TEXT, help="With this in the reason."),
    click.option(
        "--older-than", type=INTERVAL, help="Given up longer ago than that: '30 days', '2h'."
    ),
)
#: Ids, a filter, or explicitly all.
choice_options = options(
    click.argument("ids", metavar="[ID]...", nargs=-1, type=click.IntRange(min=1)),
    filter_options,
    click.option("--all", "every", is_flag=True, help="All there are."),
)


@click.group("dead-letter", cls=Group)
def dead_letter() -> None:
    """Look at events that consumers have given up, and replay them."""


@dead_letter.command("list", role="pgq_reader")
@filter_options
@count_option(20)
@json_option
def list_letters(conn: Connection, count: int, **which: Any) -> None:
    """List dead letters, the newest first.

    With --json each is an object on a line of its own, with the keys id, time, queue, consumer,
    batch_id, attempts, reason, traceback and event; the event has the keys of `event peek`.

    Examples:
      pgqpy dead-letter list
      pgqpy dead-letter list --queue orders --reason timeout -n 100
      pgqpy dead-letter list --json | jq -r .reason | sort | uniq -c
    """
    wanted = DeadLetterFilter(**which)
    letters = DeadLetters(conn).find(wanted, limit=count)
    if not letters:
        _named(conn, which)
    total = len(letters) if len(letters) < count else DeadLetters(conn).count(wanted)
    now = datetime.now(UTC)
    print_items(
        [_keys(each) for each in letters],
        {
            "Id": lambda each: str(each["id"]),
            "Age": lambda each: max(now - each["time"], timedelta()),
            "Queue": "queue",
            "Consumer": "consumer",
            "Attempts": "attempts",
            "Reason": "reason",
        },
        empty="no such dead letters" if any(map(bool, which.values())) else "no dead letters",
        each_a_line=True,
    )
    if total > len(letters) and not wants_json():
        say(f"and {total - len(letters):,} more")


@dead_letter.command("show", role="pgq_reader")
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=click.IntRange(min=1))
@json_option
def show(conn: Connection, ids: tuple[int, ...]) -> None:
    """Show dead letters in full, with event and traceback.

    `pgqpy dead-letter list` has the ids. With --json each is an object on a line of its own.

    Examples:
      pgqpy dead-letter show 17
      pgqpy dead-letter show 17 --json | jq -c .event | pgqpy event insert orders --file -
    """
    print_in_full(map(_keys, _these(conn, ids)), _described)


def _described(letter: dict[str, Any]) -> tuple[list[tuple[str, Any]], str | None]:
    pairs = [
        ("dead letter", str(letter["id"])),
        ("given up at", letter["time"]),
        ("queue", letter["queue"]),
        ("consumer", letter["consumer"]),
        ("batch", str(letter["batch_id"])),
        ("attempts", letter["attempts"]),
        ("reason", letter["reason"]),
    ]
    for name, value in letter["event"].items():
        if value is not None and name != "retry":
            pairs.append((f"event {name}", str(value) if isinstance(value, int) else value))
    return pairs, letter["traceback"]


@dead_letter.command("replay", role="pgq_admin")
@choice_options
@click.option("--data", type=TEXT, help="The payload in place of the event's, if it is one.")
@click.option("--patch", type=JSON, help="Change each payload by this JSON Merge Patch.")
def replay(conn: Connection, data: str | None, patch: str | None, **which: Any) -> None:
    """Let consumers retry events that they have given up.

    Each goes only to the consumer that gave it up, as if for the first time, when the ticker next
    returns retries to the queue; with --data, one of them with another payload. A patch replaces
    and adds members of each payload, and removes those that are null in it. To make a new event of
    one, for all consumers, use `show --json` and `event insert`.

    Examples:
      pgqpy dead-letter replay 17 18
      pgqpy dead-letter replay --queue orders --consumer mailer --reason timeout
      pgqpy dead-letter replay 17 --data '{"address": "Main Street 1"}'
      pgqpy dead-letter replay --queue orders --patch '{"currency": "EUR"}'
    """
    if data is not None and patch is not None:
        raise click.UsageError("--data and --patch exclude each other.")
    number = _do(conn, partial(DeadLetters.replay, data=data, patch=patch), **which)
    say(f"replayed {plural(number, 'event')}")


@dead_letter.command("purge", role="pgq_admin")
@choice_options
def purge(conn: Connection, **which: Any) -> None:
    """Delete dead letters. This cannot be undone.

    Choose them by ids, by options, or with --all. `list` takes the same options.

    Examples:
      pgqpy dead-letter purge 17
      pgqpy dead-letter purge --older-than '90 days'
    """
    number = _do(conn, DeadLetters.purge, **which)
    say(f"purged {plural(number, 'dead letter')}")


def _do(
    conn: Connection,
    what: Callable[[DeadLetters, DeadLetterFilter], int],
    *,
    ids: tuple[int, ...],
    every: bool,
    **which: Any,
) -> int:
    filtered = any(value is not None for value in which.values())
    if [bool(ids), filtered, every].count(True) != 1:
        raise click.UsageError("Give ids, or options that say which, or --all.")
    with conn.transaction():
        if ids:
            _these(conn, ids)
        number = what(DeadLetters(conn), DeadLetterFilter(ids=ids or None, **which))
        if not number:
            _named(conn, which)
        return number


def _named(conn: Connection, which: dict[str, Any]) -> None:
    """Raise QueueNotFound if the filter names a queue that does not exist."""
    if which["queue"] is not None:
        one_queue(conn, which["queue"])


def _these(conn: Connection, ids: tuple[int, ...]) -> list[DeadLetterInfo]:
    """Return the dead letters with these ids, in this order; all must exist."""
    found = {each.id: each for each in DeadLetters(conn).find(DeadLetterFilter(ids=ids))}
    for each in ids:
        if each not in found:
            raise CliError(
                f"there is no dead letter {each} (any more)", "`pgqpy dead-letter list` shows them"
            )
    return [found[each] for each in dict.fromkeys(ids)]


def _keys(letter: DeadLetterInfo) -> dict[str, Any]:
    return asdict(letter) | {"event": event_keys(letter.event)}
