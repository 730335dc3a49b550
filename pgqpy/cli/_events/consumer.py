"""``pgqpy consumer``: the consumers of a queue, and their positions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

import click
from psycopg import sql

from pgqpy._runtime.words import plural
from pgqpy.admin import Admin
from pgqpy.cli._base.arguments import CONSUMER, MOMENT, any_queue_argument, queue_argument
from pgqpy.cli._base.command import Exclusive, Group, options
from pgqpy.cli._base.database import connect, one_consumer, one_queue
from pgqpy.cli._base.errors import CliError
from pgqpy.cli._base.output import json_option, print_items, say, shown
from pgqpy.connection import Connection
from pgqpy.consumer._statements import REOPEN_BATCH
from pgqpy.errors import ForeignTick, TickNotFound, comes_from, translate_errors
from pgqpy.models import ConsumerInfo, Start

# The range is complete with its literals.
COUNT: LiteralString = "select count(*), min(ev_time), max(ev_time) from ({}) e"

# A worker of a CoopConsumer is registered as main.worker, with the main consumer's sub_id.
MAIN: LiteralString = """
select main.co_name
  from pgq.queue q
  join pgq.consumer c on c.co_name = %s
  join pgq.subscription s on s.sub_queue = q.queue_id and s.sub_consumer = c.co_id
  join pgq.subscription m on m.sub_queue = q.queue_id and m.sub_id = s.sub_id
  join pgq.consumer main on main.co_id = m.sub_consumer
 where q.queue_name = %s
   and starts_with(c.co_name, main.co_name || '.')
"""

REMEMBERED = b"""
select coalesce(prg_tick, prg_event_prev_tick),
       case when prg_tick is null then prg_event_prev_tick_time else prg_tick_time end,
       prg_tick_snapshot::text, prg_tick_event_seq
  from pgq_ext.progress
 where consumer_id = %s and subconsumer_id = %s
   and coalesce(prg_tick, prg_event_prev_tick) is not null
"""
UNDELIVERED = b"""
select prg_batch, prg_prev_tick, prg_prev_tick_time, prg_prev_tick_snapshot::text,
       prg_prev_tick_event_seq, prg_tick, prg_tick_time
  from pgq_ext.progress
 where consumer_id = %s and subconsumer_id = %s and prg_retries is not null
"""
REWIND = b"select pgq.rewind_consumer(%s, %s, %s, %s, %s::text::txid_snapshot, %s)"


@dataclass(frozen=True, slots=True)
class Position:
    """The position that the options give; the end if there are none."""

    tick: int | None = None
    time: datetime | None = None
    event: int | None = None
    start: bool = False
    end: bool = False

    @property
    def given(self) -> bool:
        """Whether any option was used."""
        return self != Position()

    def resolve(self, conn: Connection, queue: str) -> int:
        """Return the current tick of this position in a queue."""
        if self.tick is not None:
            return self.tick
        start: Start = self.time or ("first" if self.start else "now")
        try:
            return Admin(conn).find_tick(queue, self.event or start)
        except TickNotFound as error:
            raise CliError(error.message, "--start goes to the oldest that there are") from None


#: The options of a `Position`.
position_options = options(
    click.option(
        "--tick", cls=Exclusive, type=click.IntRange(min=0), metavar="N", help="A tick by number."
    ),
    click.option("--time", cls=Exclusive, type=MOMENT, help="All events since a time (ISO 8601)."),
    click.option(
        "--event",
        cls=Exclusive,
        type=click.IntRange(min=1, max=2**63 - 1),
        metavar="ID",
        help="An event, and all later ones.",
    ),
    click.option("--start", cls=Exclusive, is_flag=True, help="The oldest events that there are."),
    click.option("--end", cls=Exclusive, is_flag=True, help="Only events to come."),
)


@click.group(cls=Group)
def consumer() -> None:
    """Register and unregister consumers, list, pause and move them."""


consumer_arguments = options(queue_argument, click.argument("consumer", type=CONSUMER))


@consumer.command("register", role="pgq_reader")
@consumer_arguments
@position_options
def register(conn: Connection, queue: str, consumer: str, **place: Any) -> None:
    """Register a consumer on a queue.

    From now on the queue keeps events until the consumer has read them. It gets the events to come,
    or those that an option names, with some from just before. A registered consumer keeps its
    position; `seek` moves it.

    Examples:
      pgqpy consumer register flights delay_counter
      pgqpy consumer register flights delay_counter --start
    """
    position = Position(**place)
    with conn.transaction():
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


@consumer.command("unregister", role="pgq_reader")
@consumer_arguments
def unregister(conn: Connection, queue: str, consumer: str) -> None:
    """Unregister a consumer from a queue.

    The queue forgets its position and its retries. Events that it has not read yet are lost for
    it. Workers that share its events are unregistered with it.

    Examples:
      pgqpy consumer unregister flights delay_counter
    """
    info = one_consumer(conn, queue, consumer)
    main = main_consumer(conn, queue, consumer)
    if main is not None and info.current_batch is not None:
        raise CliError(
            f"worker {consumer} has batch {info.current_batch} of consumer {main} open",
            "stop it, and another worker takes the batch over; this would lose its events",
        )
    Admin(conn).unregister_consumer(queue, consumer)
    say(f"unregistered consumer {consumer} from queue {queue}")


@consumer.command("pause", role="pgq_reader")
@consumer_arguments
def pause(conn: Connection, queue: str, consumer: str) -> None:
    """Pause a consumer or a group: it gets no more batches.

    A batch that it has open is still finished. The events that it has not read wait for it, and
    keep their tables from being emptied.

    Examples:
      pgqpy consumer pause flights delay_counter
    """
    done = Admin(conn).pause_consumer(queue, consumer)
    say(f"consumer {consumer} of queue {queue} {'is paused' if done else 'was paused already'}")


@consumer.command("resume", role="pgq_reader")
@consumer_arguments
def resume(conn: Connection, queue: str, consumer: str) -> None:
    """End the pause of a consumer or a group.

    It goes on with the first event that it has not read.

    Examples:
      pgqpy consumer resume flights delay_counter
    """
    done = Admin(conn).resume_consumer(queue, consumer)
    say(f"consumer {consumer} of queue {queue} {'goes on' if done else 'was not paused'}")


@consumer.command("list", role="pgq_reader")
@any_queue_argument
@json_option
def list_consumers(conn: Connection, queue: str | None) -> None:
    """List the consumers, of all queues or of one.

    Shown are their positions, lags and numbers of pending events. Workers that share a consumer's
    position follow it as CONSUMER.WORKER, with their current batch. The keys of the JSON objects
    are the columns of pgq.get_consumer_info().

    Examples:
      pgqpy consumer list flights --json
    """
    consumers = Admin(conn).get_consumer_info(queue)
    if queue is not None and not consumers:
        one_queue(conn, queue)
    print_consumers(consumers)


def print_consumers(consumers: Sequence[ConsumerInfo]) -> None:
    print_items(
        consumers,
        {
            "Queue": "queue_name",
            "Consumer": "consumer_name",
            "Backlog": "pending_events",
            "Lag": "lag",
            "Last seen": "last_seen",
            "Tick": "last_tick",
            "Batch": "current_batch",
        },
        empty="no consumers yet; make one: pgqpy consumer register QUEUE NAME",
    )


def main_consumer(conn: Connection, queue: str, consumer: str) -> str | None:
    """Return the consumer whose position a worker shares; None if it is no worker."""
    row = conn.execute(MAIN, [consumer, queue]).fetchone()
    return None if row is None else str(row[0])


@consumer.command("seek", role="pgq_admin")
@consumer_arguments
@position_options
@click.option(
    "--dry-run", is_flag=True, help="Only say what it would read again, or skip; move nothing."
)
def seek(conn: Connection, queue: str, consumer: str, dry_run: bool, **place: Any) -> None:
    """Move a consumer to another place in its queue.

    Back, to read events again, or ahead, to skip some; it counts them first. An open batch is
    dropped. Stop the consumer first: otherwise finishing that batch fails.

    Examples:
      pgqpy consumer seek flights delay_counter --tick 1200
      pgqpy consumer seek flights delay_counter --time 2026-11-21T08:30
      pgqpy consumer seek flights delay_counter --end --dry-run
    """
    position = Position(**place)
    if not position.given:
        raise click.UsageError("Give --tick, --time, --event, --start or --end.")
    with conn.transaction():
        before = one_consumer(conn, queue, consumer)
        main = main_consumer(conn, queue, consumer)
        if main is not None:
            raise CliError(
                f"worker {consumer} has no position of its own",
                f"move the consumer whose position it shares: pgqpy consumer seek {queue} {main}",
            )
        to = position.resolve(conn, queue)
        at = to if before.last_tick is None else before.last_tick
        number, oldest, newest = events_between(conn, queue, min(at, to), max(at, to))
        times = f", from {shown(oldest)} to {shown(newest)}" if number else ""
        say(f"{'reads again' if to < at else 'skips'} {plural(number, 'event')}{times}")
        if not dry_run:
            Admin(conn).register_consumer_at(queue, consumer, to)
    moved = "would move" if dry_run else "moved"
    say(f"{moved} consumer {consumer} on queue {queue} from tick {before.last_tick} to {to}")


def events_between(
    conn: Connection, queue: str, first: int, last: int
) -> tuple[int, datetime, datetime]:
    """Return how many events there are between two ticks, and the first and last of their times."""
    with translate_errors():
        found = conn.execute("select pgq.tick_range_sql(%s, %s, %s)", (queue, first, last))
        ((text,),) = found.fetchall()
        counted = conn.execute(sql.SQL(COUNT).format(sql.SQL(text))).fetchall()
    ((number, oldest, newest),) = counted
    return number, oldest, newest


@consumer.command("rewind", role="pgq_admin")
@consumer_arguments
@click.option(
    "--target-dsn", required=True, metavar="DSN", help="The database with the consumer's effects."
)
def rewind(conn: Connection, queue: str, consumer: str, target_dsn: str) -> None:
    """Move a consumer to the position of its target database.

    For a consumer that writes to another database, after that was restored from an older backup:
    the consumer reads again the events that the target lacks, if the queue still has them. Stop the
    consumer first.

    Examples:
      pgqpy consumer rewind flights copy --target-dsn postgresql:///reports
    """
    one_consumer(conn, queue, consumer)
    with comes_from(target_dsn), connect(target_dsn) as target, translate_errors():
        remembered = target.execute(REMEMBERED, (consumer, queue)).fetchone()
        undelivered = target.execute(UNDELIVERED, (consumer, queue)).fetchone()
    if remembered is None:
        raise CliError(
            f"the target remembers nothing of consumer {consumer} of queue {queue}",
            "`pgqpy consumer seek` moves the consumer; then tell the target by "
            "select pgq_ext.set_last_tick(consumer, queue, tick)",
        )
    with conn.transaction(), translate_errors():
        before = one_consumer(conn, queue, consumer)
        if undelivered is not None:
            # To come again, the batch must be there from its beginning.
            with suppress(TickNotFound, ForeignTick), conn.transaction(), translate_errors():
                conn.execute(REWIND, (queue, consumer, *undelivered[1:5]))
        conn.execute(REWIND, (queue, consumer, *remembered))
        if undelivered is not None:
            batch, prev_tick, prev_time, *_, tick, time = undelivered
            conn.execute(REOPEN_BATCH, (queue, consumer, batch, prev_tick, prev_time, tick, time))
    say(
        f"moved consumer {consumer} on queue {queue} from tick {before.last_tick} to"
        f" {remembered[0]}, where its target stands"
    )
