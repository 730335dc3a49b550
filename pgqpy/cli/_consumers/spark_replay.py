"""``pgqpy spark replay``: insert events from an archive into a queue again."""

from __future__ import annotations

from datetime import datetime

import click

from pgqpy.cli._base.command import Command, dsn_option, json_option
from pgqpy.cli._base.database import connect, one_queue
from pgqpy.cli._base.names import QUEUE, TEXT
from pgqpy.cli._base.output import print_json, print_table, say
from pgqpy.cli._base.position import Moment
from pgqpy.cli._consumers.spark_session import master_option, spark_session


class Ids(click.ParamType[tuple[int | None, int | None]]):
    """A range of event ids: ``17..40``, ``17..`` or ``..40``."""

    name = "ids"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, int | None]:
        """Return its two ends."""
        first, dots, last = value.partition("..")
        try:
            ends = (int(first) if first else None, int(last) if last else None)
        except ValueError:
            dots = ""
        if not dots:
            self.fail(f"{value!r} is no range of ids such as 17..40, 17.. or ..40", param, ctx)
        return ends


@click.command(
    "replay",
    cls=Command,
    role="pgq_writer",
    examples=(
        "pgqpy spark replay s3a://lake/events orders_again --from 2026-11-01 --to 2026-11-08",
        "pgqpy spark replay /lake/events orders --type paid --type refunded --dry-run",
        "pgqpy spark replay /lake/events orders --ids 1200..1300 --mark ev_extra4",
    ),
)
@dsn_option
@click.argument("path", type=TEXT)
@click.argument("queue", type=QUEUE)
@click.option("--source", type=TEXT, metavar="QUEUE", help="The queue they were in, if several.")
@click.option("--from", "from_time", type=Moment(), metavar="TIME", help="Of this time or later.")
@click.option("--to", "to_time", type=Moment(), metavar="TIME", help="Of before this time.")
@click.option("--ids", type=Ids(), metavar="A..B", help="From A up to B.")
@click.option("--type", "types", type=TEXT, multiple=True, help="Of this type; can be repeated.")
@click.option("--where", type=TEXT, metavar="SQL", help="A condition in Spark's SQL.")
@click.option(
    "--mark",
    type=click.Choice([f"ev_extra{number}" for number in range(1, 5)]),
    help="Put queue, id and time of the original into this column.",
)
@click.option("--dry-run", is_flag=True, help="Only show how many there are, by day and type.")
@json_option
@master_option
def replay(
    dsn: str,
    path: str,
    queue: str,
    source: str | None,
    from_time: datetime | None,
    to_time: datetime | None,
    ids: tuple[int | None, int | None] | None,
    types: tuple[str, ...],
    where: str | None,
    mark: str | None,
    dry_run: bool,
    as_json: bool,
    master: str | None,
) -> None:
    """Insert events from an archive into a queue again.

    They keep their order and extra fields, and get new ids and times. All are inserted at once,
    or none if it is interrupted. A second run inserts them a second time.
    """
    with connect(dsn) as conn:
        one_queue(conn, queue)
    spark = spark_session(master)
    from pgqpy_consumers.spark.replay import Replay, Selection

    first, last = ids or (None, None)
    selection = Selection(
        queue=source,
        from_time=from_time,
        to_time=to_time,
        first_id=first,
        last_id=last,
        types=types,
        where=where,
    )
    again = Replay(spark, path, selection)
    counts = again.counts()
    events = sum(each.events for each in counts)
    if not dry_run and events:
        again.send(dsn, queue, mark=mark)
    if as_json:
        print_json({"source": again.queue, "sent": not dry_run, "events": events, "counts": counts})
    elif dry_run:
        print_table(
            ("Day", "Type", "Events"), [(each.day, each.type, each.events) for each in counts]
        )
        say(f"{events:,} events of queue {again.queue} would be sent into queue {queue}")
    else:
        say(f"sent {events:,} events of queue {again.queue} into queue {queue}")
