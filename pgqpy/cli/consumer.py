"""``pgqpy consumer``: who reads a queue, and from where."""

from __future__ import annotations

from datetime import datetime

import click

from pgqpy.admin import Admin
from pgqpy.cli.command import Group, dsn_option, json_option
from pgqpy.cli.database import connect, one_consumer, one_queue
from pgqpy.cli.errors import CliError
from pgqpy.cli.names import CONSUMER, QUEUE
from pgqpy.cli.output import print_json, print_table, say
from pgqpy.cli.position import Position, position_options
from pgqpy.values import ConsumerInfo


@click.group(cls=Group)
def consumer() -> None:
    """Register and unregister consumers, list them, move them."""


@consumer.command(
    "register",
    role="pgq_reader",
    examples=(
        "pgqpy consumer register flights delay_counter",
        "pgqpy consumer register flights delay_counter --start",
    ),
)
@dsn_option
@click.argument("queue", type=QUEUE)
@click.argument("consumer", type=CONSUMER)
@position_options
def register(
    dsn: str,
    queue: str,
    consumer: str,
    tick: int | None,
    time: datetime | None,
    start: bool,
    end: bool,
) -> None:
    """Register a consumer on a queue.

    From now on the queue keeps events until it has had them. It gets the events behind the newest
    tick, or behind the one that an option names. A consumer that is registered already stays
    where it is; `seek` moves it.
    """
    position = Position(tick, time, start, end)
    position.check()
    with connect(dsn) as conn, conn.transaction():
        admin = Admin(conn)
        created = admin.register_consumer(queue, consumer)
        if created and position.given:
            admin.register_consumer_at(queue, consumer, position.resolve(conn, queue))
    if created:
        say(f"registered consumer {consumer} on queue {queue}")
    elif position.given:
        raise CliError(
            f"consumer {consumer} is registered on queue {queue} already; it was not moved",
            "`pgqpy consumer seek` moves it",
        )
    else:
        say(f"consumer {consumer} is registered on queue {queue} already")


@consumer.command(
    "unregister",
    role="pgq_reader",
    examples=("pgqpy consumer unregister flights delay_counter",),
)
@dsn_option
@click.argument("queue", type=QUEUE)
@click.argument("consumer", type=CONSUMER)
def unregister(dsn: str, queue: str, consumer: str) -> None:
    """Unregister a consumer from a queue.

    The queue forgets its position and the events that it wanted again. Events that only this
    consumer had still to get are gone for it.
    """
    with connect(dsn) as conn:
        one_consumer(conn, queue, consumer)
        Admin(conn).unregister_consumer(queue, consumer)
    say(f"unregistered consumer {consumer} from queue {queue}")


@consumer.command(
    "list",
    role="pgq_reader",
    examples=("pgqpy consumer list", "pgqpy consumer list flights --json"),
)
@dsn_option
@click.argument("queue", type=QUEUE, required=False)
@json_option
def list_consumers(dsn: str, queue: str | None, as_json: bool) -> None:
    """List the consumers, of all queues or of one.

    With their positions, their lags and how many events they have still to get. The keys of the
    JSON objects are the columns of pgq.get_consumer_info().
    """
    with connect(dsn) as conn:
        consumers = Admin(conn).get_consumer_info(queue)
        if queue is not None and not consumers:
            one_queue(conn, queue)
    if as_json:
        print_json(consumers)
    elif not consumers:
        say("no consumers yet; make one: pgqpy consumer register QUEUE NAME")
    else:
        print_consumers(consumers)


def print_consumers(consumers: list[ConsumerInfo]) -> None:
    """Print consumers as a table."""
    print_table(
        ("Queue", "Consumer", "Pending", "Lag", "Last seen", "Tick", "Batch"),
        [
            (
                info.queue_name,
                info.consumer_name,
                info.pending_events,
                info.lag,
                info.last_seen,
                info.last_tick,
                info.current_batch,
            )
            for info in consumers
        ],
    )


@consumer.command(
    "seek",
    role="pgq_admin",
    examples=(
        "pgqpy consumer seek flights delay_counter --tick 1200",
        "pgqpy consumer seek flights delay_counter --time 2026-11-21T08:30",
        "pgqpy consumer seek flights delay_counter --end",
    ),
)
@dsn_option
@click.argument("queue", type=QUEUE)
@click.argument("consumer", type=CONSUMER)
@position_options
def seek(
    dsn: str,
    queue: str,
    consumer: str,
    tick: int | None,
    time: datetime | None,
    start: bool,
    end: bool,
) -> None:
    """Move a consumer to another place in its queue.

    Back, to have events again, or ahead, to leave some out: its next batch starts behind the tick
    that is named. A batch that it has open is dropped: stop the consumer first, its finish of
    that batch will fail.
    """
    position = Position(tick, time, start, end)
    position.check()
    if not position.given:
        raise click.UsageError("Give --tick, --time, --start or --end.")
    with connect(dsn) as conn, conn.transaction():
        before = one_consumer(conn, queue, consumer)
        to = position.resolve(conn, queue)
        Admin(conn).register_consumer_at(queue, consumer, to)
    say(f"moved consumer {consumer} on queue {queue} from tick {before.last_tick} to {to}")
