"""``pgqpy demo``: PgQ at work on real data."""

from __future__ import annotations

from pathlib import Path

import click

import pgqpy.dsn
from pgqpy.cli._base.command import Command, Settings


@click.command(
    cls=Command,
    role="pgq_admin",
    examples=(
        "pgqpy demo",
        "pgqpy demo --dsn postgresql:///scratch --chart demo.png",
        "pgqpy demo --flights 10000 --no-spark",
    ),
)
@click.option(
    "--dsn", metavar="DSN", help="Run on this database; without it, on a server of its own."
)
@click.option(
    "--chart",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE.png",
    help="Draw arrivals, backlog and latency over time.",
)
@click.option("--flights", type=click.IntRange(min=1), metavar="N", help="Use N flights, not all.")
@click.option("--spark/--no-spark", default=True, help="With the Spark consumer (needs Java).")
@click.option("--keep", is_flag=True, help="Leave the demo's queue and tables in the database.")
@click.pass_context
def demo(
    ctx: click.Context,
    dsn: str | None,
    chart: Path | None,
    flights: int | None,
    spark: bool,
    keep: bool,
) -> None:
    """See PgQ at work, on 336,776 real flights.

    An application inserts, corrects and deletes flights in many transactions; a trigger queues
    every change; a consumer and a Spark job each keep a table of delays up to date from the
    events. At the end both are compared with the application's own table. It takes two minutes. The
    environment's database is never used, only a database that --dsn names.
    """
    from pgqpy.demo import run

    settings = ctx.ensure_object(Settings)
    dsn = dsn or settings.dsn_argument
    if dsn is not None:
        pgqpy.dsn.parse(dsn)
        settings.dsn = dsn
    if keep and dsn is None:
        raise click.UsageError("--keep goes with --dsn: the demo's own server does not outlive it.")
    ctx.exit(run(dsn, chart, events=flights, spark=spark, keep=keep))
