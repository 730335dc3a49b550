"""``pgqpy demo``: the main job, start to end, on 336,776 real flights."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

INTERRUPTED = 130


def run(
    dsn: str | None = None,
    chart: Path | None = None,
    *,
    events: int | None = None,
    spark: bool = True,
    keep: bool = False,
    console: Console | None = None,
) -> int:
    """Run the demo and print the results.

    Args:
        dsn: the database; without it an embedded server is started for the demo.
        chart: the file for a chart of arrivals, backlog and latency over time.
        events: the number of flights; all of them if None.
        spark: with the Spark consumer, which needs Java.
        keep: leave the demo's queue and tables in the user's database.
        console: the console to print to.

    Returns:
        The exit code: 0 if the results of application, consumer and Spark are equal, 1 if
        they are not, 130 if it was interrupted.

    Raises:
        PgqError: the demo cannot run, and the hint says why: no Java, a schema in the database
            that is not the demo's, ...
        psycopg.Error: the database refuses something.
    """
    from pgqpy.demo.performance import Settings, perform

    console = console or Console(highlight=False)
    settings = Settings(dsn=dsn, chart=chart, flights=events, spark=spark, keep=keep)
    try:
        return 0 if perform(settings, console) else 1
    except KeyboardInterrupt:
        console.print("Stopped, and tidied up.")
        return INTERRUPTED
