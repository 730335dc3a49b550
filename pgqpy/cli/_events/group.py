"""``pgqpy group``: consumers that share a queue by keys."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from pgqpy._runtime.words import plural
from pgqpy.admin import GroupAdmin
from pgqpy.cli._base.arguments import TEXT, Name, any_queue_argument, queue_argument
from pgqpy.cli._base.command import Group, options
from pgqpy.cli._base.database import one_queue
from pgqpy.cli._base.errors import CliError
from pgqpy.cli._base.output import (
    json_option,
    print_items,
    print_json,
    print_pairs,
    say,
    wants_json,
)
from pgqpy.connection import Connection
from pgqpy.models import ParkedKey

GROUP = Name(
    "group",
    lambda admin, typed: (
        info.group_name for info in GroupAdmin(admin.conn).get_group_info(typed.get("queue"))
    ),
)
group_arguments = options(queue_argument, click.argument("group", type=GROUP))


@click.group(cls=Group)
def group() -> None:
    """Consumer groups: events in order by key, in parallel.

    Workers are programs with a pgqpy.GroupConsumer; start as many as the work needs.
    """


@group.command("create", role="pgq_reader")
@queue_argument
@click.argument("group", type=TEXT)
@click.option("--key", required=True, type=TEXT, help="SQL over the event's columns, or pkey.")
@click.option("--partitions", default=8, show_default=True, help="How many can work at once.")
def create(conn: Connection, queue: str, group: str, key: str, partitions: int) -> None:
    """Create a group; workers also create it when they start.

    It gets the events behind the newest tick. The key is an immutable SQL expression over ev_type,
    ev_data and ev_extra1 to ev_extra4; pkey is the primary key of captured rows.

    Examples:
      pgqpy group create orders shipments --key ev_extra1
      pgqpy group create orders shipments --key "ev_data::jsonb ->> 'customer'"
      pgqpy group create changes copies --key pkey --partitions 16
    """
    created = GroupAdmin(conn).create_group(queue, group, key=key, partitions=partitions)
    if created:
        say(f"created group {group} on queue {queue} with {partitions} partitions")
    else:
        say(f"group {group} on queue {queue} exists already")


@group.command("list", role="pgq_reader")
@any_queue_argument
@json_option
def list_groups(conn: Connection, queue: str | None) -> None:
    """List the groups, of all queues or of one.

    Lag and pending events are those of the slowest partition.

    Examples:
      pgqpy group list orders --json
    """
    groups = GroupAdmin(conn).get_group_info(queue)
    if queue is not None and not groups:
        one_queue(conn, queue)
    print_items(
        groups,
        {
            "Queue": "queue_name",
            "Group": "group_name",
            "Key": "key",
            "Partitions": "partitions",
            "Workers": "workers",
            "Backlog": "pending_events",
            "Lag": "lag",
            "Parked": "parked_events",
        },
        empty="no groups yet; make one: pgqpy group create QUEUE NAME --key KEY",
    )


@group.command("show", role="pgq_reader")
@group_arguments
@json_option
def show(conn: Connection, queue: str, group: str) -> None:
    """Show a group's partitions and their workers.

    Also shows their positions and parked keys. The keys of the JSON objects are the columns of
    pgq.get_group_partitions().

    Examples:
      pgqpy group show orders shipments
    """
    admin = GroupAdmin(conn)
    partitions = admin.get_group_partitions(queue, group)
    [info] = admin.get_group_info(queue, group)
    if wants_json():
        print_json(partitions)
        return
    print_pairs(
        ("queue", info.queue_name),
        ("group", info.group_name),
        ("key", info.key),
        ("lease", info.lease),
        ("park limit", info.park_limit),
        ("workers", info.workers),
    )
    if info.resize_to is not None:
        say(
            f"will have {info.resize_to} partitions as soon as all have reached tick"
            f" {info.resize_tick}"
        )
    print_items(
        partitions,
        {
            "Part": "partition",
            "Worker": "worker",
            "Seen": "last_seen",
            "Backlog": "pending_events",
            "Lag": "lag",
            "Tick": "last_tick",
            "Batch": "current_batch",
            "Keys": "parked_keys",
            "Parked": lambda part: (
                f"{part.parked_events}, full" if part.is_full else part.parked_events
            ),
        },
        empty="",
    )


@group.command("resize", role="pgq_reader")
@group_arguments
@click.argument("partitions", type=int)
def resize(conn: Connection, queue: str, group: str, partitions: int) -> None:
    """Change the number of a group's partitions.

    Its workers take all partitions to one tick; then the keys are divided anew, and work goes on.
    Setting the present number cancels a resize that has not happened yet.

    Examples:
      pgqpy group resize orders shipments 16
    """
    tick = GroupAdmin(conn).resize_group(queue, group, partitions)
    if tick is None:
        say(f"group {group} on queue {queue} has {partitions} partitions")
    else:
        say(
            f"group {group} on queue {queue} will have {partitions} partitions as soon as its"
            f" workers have taken all to tick {tick}; see: pgqpy group show {queue} {group}"
        )


@group.command("set", role="pgq_reader")
@group_arguments
@click.argument("parameter", type=click.Choice(["lease", "park_limit"]))
@click.argument("value", type=TEXT)
def set_config(conn: Connection, queue: str, group: str, parameter: str, value: str) -> None:
    """Set a parameter of a group.

    A worker that is silent for a lease loses its partitions; workers read a new lease when they
    start. A partition with more than park_limit parked events takes no more batches.

    Examples:
      pgqpy group set orders shipments park_limit 50000
    """
    GroupAdmin(conn).set_group_config(queue, group, parameter, value)
    say(f"set {parameter} of group {group} on queue {queue} to {value}")


@group.command("parked", role="pgq_reader")
@group_arguments
@json_option
def parked(conn: Connection, queue: str, group: str) -> None:
    """List the parked keys.

    The first event of each key has failed, and all later ones wait behind it. They are retried
    in order, at the time shown, or on demand: `unpark`. An event without a key is unparked by its
    id.

    Examples:
      pgqpy group parked orders shipments
    """
    keys = GroupAdmin(conn).get_parked_keys(queue, group)
    now = datetime.now(UTC)
    print_items(
        keys,
        {
            "Key": _shown_key,
            "Events": "events",
            "Attempts": "attempts",
            "Parked": lambda key: max(now - key.parked_since, timedelta()),
            "Again": lambda key: (
                "by hand" if key.next_attempt is None else max(key.next_attempt - now, timedelta())
            ),
            "Error": "error",
        },
        empty=f"nothing is parked in group {group} on queue {queue}",
    )


def _shown_key(parked: ParkedKey) -> str:
    """Return the key; the server parks an event without one by its id."""
    number = str(parked.first_event)
    return f"- (event {number})" if parked.key == number else parked.key


@group.command("unpark", role="pgq_reader")
@group_arguments
@click.argument("key", type=TEXT, required=False)
@click.option("--all", "every", is_flag=True, help="All parked keys.")
@click.option("--give-up", is_flag=True, help="First make the key's first event a dead letter.")
def unpark(
    conn: Connection, queue: str, group: str, key: str | None, every: bool, give_up: bool
) -> None:
    """Retry the events of a parked key now, in their order.

    The worker of its partition does it. Events that fail are parked again.

    Examples:
      pgqpy group unpark orders shipments 'customer 17'
      pgqpy group unpark orders shipments --all
      pgqpy group unpark orders shipments 'customer 17' --give-up
    """
    if (key is None) is not every:
        raise click.UsageError("Give a key, or --all.")
    if give_up and every:
        raise click.UsageError("--give-up is for one key.")
    admin = GroupAdmin(conn)
    given_up = give_up and key is not None and admin.give_up_parked(queue, group, key)
    unparked = admin.unpark_key(queue, group, key)
    if key is not None and not unparked:
        raise CliError(
            f"key {key} of group {group} is not parked",
            f"see what is: pgqpy group parked {queue} {group}",
        )
    if given_up:
        say(f"the first event of key {key} is a dead letter, the others are tried again now")
    elif every:
        say(f"{plural(unparked, 'key')} {'is' if unparked == 1 else 'are'} tried again now")
    else:
        say(f"key {key} is tried again now")


@group.command("drop", role="pgq_reader")
@group_arguments
@click.option("--force", is_flag=True, help="Also if it has parked events, which are lost then.")
def drop(conn: Connection, queue: str, group: str, force: bool) -> None:
    """Drop a group with the positions of its partitions.

    Events that it has not read yet are lost for it. Stop its workers first: a worker that starts
    creates the group again.

    Examples:
      pgqpy group drop orders shipments
    """
    GroupAdmin(conn).drop_group(queue, group, force=force)
    say(f"dropped group {group} of queue {queue}")
