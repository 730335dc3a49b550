"""``pgqpy queue``: create, drop, list and configure queues."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from pgqpy.admin import Admin
from pgqpy.cli._base.arguments import (
    TEXT,
    any_queue_argument,
    grant_arguments,
    off_option,
    parameter_arguments,
    parameter_value,
    queue_argument,
    set_option,
)
from pgqpy.cli._base.command import Group, options
from pgqpy.cli._base.database import dict_rows, no_such_queue, one_queue
from pgqpy.cli._base.output import (
    json_option,
    print_items,
    print_json,
    print_pairs,
    print_parameters,
    say,
    shown,
    wants_json,
)
from pgqpy.cli._events.consumer import print_consumers
from pgqpy.connection import Connection
from pgqpy.doctor._readings import read_delayed

#: The parameters of pgq.set_queue_config(), in the order of their display.
PARAMETERS = {
    "ticker_latency": "longest wait for a tick (null: as below)",
    "ticker_max_count": "a tick after this number of events",
    "ticker_max_lag": "a tick after this time, if there are events",
    "ticker_idle_period": "a tick after this time, also without events",
    "ticker_paused": "no ticks at all",
    "external_ticker": "ticks come from another program",
    "rotation_period": "time between switches of event tables",
    "disable_insert": "the queue refuses events",
    "per_tx_limit": "most events of one transaction (null: any)",
    "key_window": "time for which keys are remembered (null: no keys)",
    "keep": "time for which events are kept (null: until consumers have them)",
    "keep_bytes": "size of the event tables above which they are not (null: any)",
}


@click.group(cls=Group)
def queue() -> None:
    """Create, drop, list and configure queues."""


@queue.command("create", role="pgq_admin")
@queue_argument
@set_option
def create(conn: Connection, queue: str, settings: tuple[tuple[str, str | None], ...]) -> None:
    """Create a queue with its event tables.

    It takes events at once; a running ticker makes them visible to consumers. If the queue exists,
    only the settings of --set are changed.

    Examples:
      pgqpy queue create flights
      pgqpy queue create flights --set rotation_period=1h
    """
    with conn.transaction():
        admin = Admin(conn)
        created = admin.create_queue(queue)
        for parameter, value in settings:
            admin.set_queue_config(queue, parameter, value)
    say(f"created queue {queue}" if created else f"queue {queue} exists already")


@queue.command("drop", role="pgq_admin")
@queue_argument
@click.option("--force", is_flag=True, help="Also if it is in use: release what uses it.")
def drop(conn: Connection, queue: str, force: bool) -> None:
    """Drop a queue and all its events. This cannot be undone.

    A queue that has consumers, delayed events or dead letters, or that a table is captured into, is
    dropped only with --force, which unregisters the consumers and stops the capture.

    Examples:
      pgqpy queue drop flights
      pgqpy queue drop flights --force
    """
    Admin(conn).drop_queue(queue, force=force)
    say(f"dropped queue {queue}")


@queue.command("list", role="pgq_reader")
@json_option
def list_queues(conn: Connection) -> None:
    """List the queues.

    With their last ticks, events per second, and rotation periods. The keys of the JSON
    objects are the columns of pgq.get_queue_info().

    Examples:
      pgqpy queue list --json | jq -r '.[].queue_name'
    """
    print_items(
        Admin(conn).get_queue_info(),
        {
            "Queue": "queue_name",
            "Last tick": "last_tick_id",
            "Age": "ticker_lag",
            "Events/s": "ev_per_sec",
            "New events": "ev_new",
            "Rotated every": lambda info: shown(info.queue_rotation_period),
        },
        empty="no queues yet; make one: pgqpy queue create NAME",
    )


@queue.command("show", role="pgq_reader")
@queue_argument
@json_option
def show(conn: Connection, queue: str) -> None:
    """Show one queue: its state, its settings, its consumers.

    The JSON object has the columns of pgq.get_queue_info(), delayed_events and next_due, under
    "config" the parameters, and under "consumers" the columns of pgq.get_consumer_info().

    Examples:
      pgqpy queue show flights
      pgqpy queue show flights --json
    """
    info = one_queue(conn, queue)
    config = read_config(conn, queue)
    consumers = Admin(conn).get_consumer_info(queue)
    found = read_delayed(conn, queue)
    delayed = {
        "delayed_events": found.delayed_events if found else None,
        "next_due": found.next_due if found else None,
    }
    if wants_json():
        print_json({**asdict(info), **delayed, "config": config, "consumers": consumers})
        return
    print_pairs(
        ("queue", info.queue_name),
        ("last tick", info.last_tick_id),
        ("its age", info.ticker_lag),
        ("events per second", info.ev_per_sec),
        ("events after it", info.ev_new),
        ("delayed events", delayed["delayed_events"]),
        ("next one due", delayed["next_due"]),
        ("event tables", info.queue_ntables),
        ("rotated at", info.queue_switch_time),
        *config.items(),
    )
    if consumers:
        print_consumers(consumers)


@queue.command("config", role="pgq_admin")
@queue_argument
@parameter_arguments(PARAMETERS)
@json_option
def config(conn: Connection, queue: str, parameter: str | None, value: str | None) -> None:
    """Show a queue's parameters, show one, or set one to a value.

    Intervals are written as PostgreSQL takes them ('3 seconds', '2h'), switches as true or false;
    null removes a limit. A ticker obeys a new value within seconds.

    Examples:
      pgqpy queue config flights
      pgqpy queue config flights ticker_latency
      pgqpy queue config flights rotation_period '30 minutes'
      pgqpy queue config flights ticker_latency null
      pgqpy queue config flights keep '7 days'
    """
    if parameter is not None and value is not None:
        Admin(conn).set_queue_config(queue, parameter, parameter_value(value))
    print_parameters(read_config(conn, queue), PARAMETERS, parameter)


def read_config(conn: Connection, queue: str) -> dict[str, Any]:
    """Return the parameters of a queue and their values. Raises QueueNotFound."""
    for row in dict_rows(conn, "select * from pgq.queue where queue_name = %s", [queue]):
        return {name: row[f"queue_{name}"] for name in PARAMETERS}
    raise no_such_queue(queue)


which_grants = options(
    queue_argument,
    grant_arguments("insert", "consume", "read", "admin"),
    click.option("--as", "consumer", type=TEXT, help="The consumer or group for consume; any."),
)


@queue.command("restrict", role="pgq_admin")
@queue_argument
@off_option
def restrict(conn: Connection, queue: str, off: bool) -> None:
    """Restrict the events of a queue to roles with a grant.

    Other queues are open: members of pgq_writer insert, members of pgq_reader do the rest. Members
    of pgq_admin may do everything everywhere.

    Examples:
      pgqpy queue restrict orders
      pgqpy queue restrict orders --off
    """
    Admin(conn).restrict_queue(queue, restricted=not off)
    say(f"queue {queue} is {'open' if off else 'restricted'}")


@queue.command("grant", role="pgq_admin")
@which_grants
def grant(
    conn: Connection, queue: str, role: str, actions: tuple[str, ...], consumer: str | None
) -> None:
    """Grant a role actions on a queue.

    To call functions, as consumers do, the role must also be a member of pgq_writer (insert) or of
    pgq_reader (the rest). INSERT INTO the queue's relation needs the grant alone.

    Examples:
      pgqpy queue grant orders shop insert
      pgqpy queue grant orders accountant consume --as billing
    """
    Admin(conn).grant_queue(queue, actions, role, consumer=consumer)
    say(f"granted {', '.join(actions)} on queue {queue} to {role}")


@queue.command("revoke", role="pgq_admin")
@which_grants
def revoke(
    conn: Connection, queue: str, role: str, actions: tuple[str, ...], consumer: str | None
) -> None:
    """Revoke grants of a role.

    Rights that it has as a member of another role are not changed. Without --as, consume is revoked
    for all consumers.

    Examples:
      pgqpy queue revoke orders shop insert
    """
    Admin(conn).revoke_queue(queue, actions, role, consumer=consumer)
    say(f"revoked {', '.join(actions)} on queue {queue} from {role}")


@queue.command("rights", role="pgq_admin")
@any_queue_argument
@json_option
def rights(conn: Connection, queue: str | None) -> None:
    """Show the grants on queues.

    The keys of the JSON objects are the columns of pgq.get_queue_grants(). On a queue that is not
    restricted, grants add to the rights of pgq_writer and pgq_reader.

    Examples:
      pgqpy queue rights orders --json
    """
    print_items(
        Admin(conn).get_queue_grants(queue),
        {
            "Queue": "queue_name",
            "Restricted": "restricted",
            "Role": "role",
            "May": lambda grant: ", ".join(grant.actions or ()),
            "As": "consumer",
        },
        empty=f"queue {queue} is open to all" if queue else "no queue is restricted",
    )
