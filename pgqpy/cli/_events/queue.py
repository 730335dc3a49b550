"""``pgqpy queue``: create, drop, list and configure queues."""

from __future__ import annotations

from dataclasses import asdict

import click

from pgqpy.admin import Admin
from pgqpy.cli._base.command import Group, dsn_option, json_option
from pgqpy.cli._base.database import connect, one_queue
from pgqpy.cli._base.names import PARAMETER, QUEUE, TEXT
from pgqpy.cli._base.output import print_json, print_pairs, print_table, say
from pgqpy.cli._base.wording import shown
from pgqpy.cli._events.consumer import print_consumers
from pgqpy.cli._events.queue_config import PARAMETERS, parse_value, read_config
from pgqpy.cli._status.query import read_delayed


@click.group(cls=Group)
def queue() -> None:
    """Create, drop, list and configure queues."""


@queue.command(
    "create",
    role="pgq_admin",
    examples=("pgqpy queue create flights", "pgqpy queue create flights --set rotation_period=1h"),
)
@dsn_option
@click.argument("queue", type=QUEUE)
@click.option(
    "--set",
    "settings",
    multiple=True,
    type=TEXT,
    metavar="PARAMETER=VALUE",
    help="Configure it; may be given several times. See `pgqpy queue config`.",
)
def create(dsn: str, queue: str, settings: tuple[str, ...]) -> None:
    """Create a queue with its event tables.

    It takes events at once; a running ticker makes them visible to consumers. If the queue exists,
    only the settings of --set are changed.
    """
    pairs = [_pair(setting) for setting in settings]
    with connect(dsn) as conn, conn.transaction():
        admin = Admin(conn)
        created = admin.create_queue(queue)
        for parameter, value in pairs:
            admin.set_queue_config(queue, parameter, value)
    say(f"created queue {queue}" if created else f"queue {queue} exists already")


def _pair(setting: str) -> tuple[str, str | None]:
    parameter, equals, value = setting.partition("=")
    if not equals:
        raise click.UsageError(f"'{setting}' is not PARAMETER=VALUE.")
    return parameter.strip(), parse_value(value.strip())


@queue.command(
    "drop",
    role="pgq_admin",
    examples=("pgqpy queue drop flights", "pgqpy queue drop flights --force"),
)
@dsn_option
@click.argument("queue", type=QUEUE)
@click.option("--force", is_flag=True, help="Also if it is in use: release what uses it.")
def drop(dsn: str, queue: str, force: bool) -> None:
    """Drop a queue and all its events. This cannot be undone.

    A queue that has consumers, delayed events or dead letters, or that a table is captured into, is
    dropped only with --force, which unregisters the consumers and stops the capture.
    """
    with connect(dsn) as conn:
        Admin(conn).drop_queue(queue, force=force)
    say(f"dropped queue {queue}")


@queue.command(
    "list",
    role="pgq_reader",
    examples=("pgqpy queue list", "pgqpy queue list --json | jq -r '.[].queue_name'"),
)
@dsn_option
@json_option
def list_queues(dsn: str, as_json: bool) -> None:
    """List the queues.

    With their last ticks, events per second, and rotation periods. The keys of the JSON
    objects are the columns of pgq.get_queue_info().
    """
    with connect(dsn) as conn:
        queues = Admin(conn).get_queue_info()
    if as_json:
        print_json(queues)
    elif not queues:
        say("no queues yet; make one: pgqpy queue create NAME")
    else:
        print_table(
            ("Queue", "Last tick", "Age", "Events/s", "New events", "Rotated every"),
            [
                (
                    info.queue_name,
                    info.last_tick_id,
                    info.ticker_lag,
                    info.ev_per_sec,
                    info.ev_new,
                    shown(info.queue_rotation_period),
                )
                for info in queues
            ],
        )


@queue.command(
    "show",
    role="pgq_reader",
    examples=("pgqpy queue show flights", "pgqpy queue show flights --json"),
)
@dsn_option
@click.argument("queue", type=QUEUE)
@json_option
def show(dsn: str, queue: str, as_json: bool) -> None:
    """Show one queue: its state, its settings, its consumers.

    The JSON object has the columns of pgq.get_queue_info(), delayed_events and next_due, under
    "config" the parameters, and under "consumers" the columns of pgq.get_consumer_info().
    """
    with connect(dsn) as conn:
        info = one_queue(conn, queue)
        config = read_config(conn, queue)
        consumers = Admin(conn).get_consumer_info(queue)
        delayed = read_delayed(conn, queue).get(queue)
    if as_json:
        print_json(
            {
                **asdict(info),
                "delayed_events": delayed.delayed_events if delayed else None,
                "next_due": delayed.next_due if delayed else None,
                "config": config,
                "consumers": consumers,
            }
        )
        return
    print_pairs(
        ("queue", info.queue_name),
        ("last tick", info.last_tick_id),
        ("its age", info.ticker_lag),
        ("events per second", info.ev_per_sec),
        ("events after it", info.ev_new),
        ("delayed events", delayed.delayed_events if delayed else None),
        ("next one due", delayed.next_due if delayed else None),
        ("event tables", info.queue_ntables),
        ("rotated at", info.queue_switch_time),
        *config.items(),
    )
    if consumers:
        print_consumers(consumers)


@queue.command(
    "config",
    role="pgq_admin",
    examples=(
        "pgqpy queue config flights",
        "pgqpy queue config flights ticker_latency",
        "pgqpy queue config flights rotation_period '30 minutes'",
        "pgqpy queue config flights ticker_latency null",
    ),
)
@dsn_option
@click.argument("queue", type=QUEUE)
@click.argument("parameter", type=PARAMETER, required=False)
@click.argument("value", type=TEXT, required=False)
@json_option
def config(dsn: str, queue: str, parameter: str | None, value: str | None, as_json: bool) -> None:
    """Show a queue's parameters, show one, or set one to a value.

    Intervals are written as PostgreSQL takes them ('3 seconds', '2h'), switches as true or false;
    null takes a limit away. A ticker obeys a new value within seconds.
    """
    with connect(dsn) as conn:
        if parameter is not None and value is not None:
            Admin(conn).set_queue_config(queue, parameter, parse_value(value))
        parameters = read_config(conn, queue)
    if parameter is not None:
        parameters = {parameter: parameters[parameter]}
    if as_json:
        print_json(parameters)
    else:
        print_table(
            ("Parameter", "Value", "Meaning"),
            [(name, shown(each), PARAMETERS[name]) for name, each in parameters.items()],
        )
