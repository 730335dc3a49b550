"""The demo from start to end."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import psycopg
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import pgqpy
import pgqpy.dsn
from examples.demo import DELAY_COUNTER, MONTHLY_DELAYS, DemoError, chart, report, trouble
from examples.demo.application import WRITERS, Application
from examples.demo.database import Database
from examples.demo.flights import expected_events, load_airlines, load_flights, make_plan
from examples.demo.processes import Process
from examples.demo.results import Comparison, Measurements, batches, compare, delivered
from examples.demo.trouble import Troubles
from pgqpy.embedded import Server

ALL_FLIGHTS = 336_776

# The duration for all flights; fewer take a part of it.
SECONDS = 40.0

# With the console, there is time to look.
SECONDS_TO_LOOK = 1800.0

# Allows for a cold disk and a busy machine.
START_TIMEOUT = 120.0

# Machines may be slow; one without any progress for this long is stuck.
STALLED_AFTER = 120.0

# Seconds between the ticker's maintenance runs.
MAINTENANCE = 2.0

APPLICATION = "application"


def main() -> int:
    """Run the demo, and return the exit code.

    It is 0 if the results of application, consumer and Spark are equal, 1 if they are not or the
    demo cannot run, 2 for wrong usage, 130 if it was interrupted.
    """
    options = _options()
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return 0 if _run(options, console) else 1
    except KeyboardInterrupt:
        console.print("Stopped, and tidied up.")
        return 130
    except psycopg.Error as error:
        failure = pgqpy.errors.from_psycopg(error)
    except pgqpy.PgqError as error:
        failure = error
    print("error:", failure.message, file=sys.stderr)
    if failure.hint:
        print("hint:", failure.hint, file=sys.stderr)
    return 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="See PgQ at work, on 336,776 real flights. It takes two minutes.",
    )
    option = parser.add_argument
    option("--dsn", help="run on this database; without it, on a server of its own")
    option("--chart", type=Path, metavar="FILE.png", help="draw arrivals, backlog and latency")
    option("--flights", type=int, metavar="N", help="use N flights, not all")
    option("--ui", action="store_true", help="for half an hour, with the console in the browser")
    option("--no-spark", dest="spark", action="store_false", help="without Spark and Java")
    option("--keep", action="store_true", help="leave the queue and tables in the database")
    options = parser.parse_args()
    if options.keep and options.dsn is None:
        parser.error("--keep goes with --dsn: the demo's own server does not outlive it")
    if options.flights is not None and options.flights < 1:
        parser.error("--flights must be at least 1")
    return options


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """Let SIGTERM unwind everything like Ctrl-C."""
    raise KeyboardInterrupt


def _run(options: argparse.Namespace, console: Console) -> bool:
    """Run the demo and report; true if all results are equal."""
    # Fail now, not when all the work is done.
    if options.spark:
        _require_spark()
    if options.chart is not None:
        chart.require_matplotlib()
    with _database(options, console) as database:
        comparison, measured = _act(database, options, console)
    report.show_comparison(console, comparison, load_airlines())
    report.show_measurements(console, measured)
    if options.chart is not None:
        chart.draw(options.chart, measured)
        console.print(f"\nThe chart is in {options.chart}.")
    if options.dsn is not None:
        report.show_remains(console, kept=options.keep, installed=database.installed_schema)
    report.show_next_steps(console)
    return comparison.equal


def _require_spark() -> None:
    """Raise an error that names what to install, if Spark or Java is missing."""
    try:
        from pgqpy_consumers.spark import require_java
    except ImportError as error:
        raise DemoError(str(error), hint="without Spark: --no-spark") from error
    require_java()


@contextlib.contextmanager
def _database(options: argparse.Namespace, console: Console) -> Iterator[Database]:
    with contextlib.ExitStack() as stack:
        if options.dsn is None:
            with console.status("Starting an embedded PostgreSQL"):
                dsn = stack.enter_context(Server()).dsn
            where = "embedded, without fsync"
        else:
            dsn = options.dsn
            where = pgqpy.dsn.redact(dsn)
        conn = stack.enter_context(
            pgqpy.connect(dsn, autocommit=True, application_name="pgqpy demo")
        )
        console.print(f"PostgreSQL {conn.info.server_version // 10000}, {where}")
        database = Database(conn, dsn)
        with console.status("Installing the schema pgq and the application's tables"):
            database.prepare()
        try:
            # A session in which Ctrl-C interrupts a statement may be of no more use. The first one
            # is kept to tidy up.
            name = "pgqpy demo: reader"
            with pgqpy.connect(dsn, autocommit=True, application_name=name) as reader:
                yield database.read_by(reader)
        finally:
            # The embedded server removes everything itself.
            if options.dsn is not None and not options.keep and not conn.broken:
                database.clear()


def _act(
    database: Database, options: argparse.Namespace, console: Console
) -> tuple[Comparison, Measurements]:
    names = [DELAY_COUNTER] + [MONTHLY_DELAYS] * options.spark
    with contextlib.ExitStack() as stack:

        def start(name: str, module: str, *arguments: str) -> Process:
            process = Process(name, module, *arguments, dsn=database.dsn)
            stack.callback(process.stop)
            return process

        consumers = [start(name, f"examples.demo.{name}") for name in names]
        config = stack.enter_context(_ticker_config(database.dsn))
        ticker = start("ticker", "pgqpy", "ticker", "--config", config)
        with console.status("Reading the flights of 2013"):
            flights = load_flights(options.flights)
            plan = make_plan(flights)
        with console.status("Starting the ticker and the consumers"):
            for consumer in consumers:
                consumer.wait_until_ready(START_TIMEOUT)

        first_tick = database.last_tick()
        seconds = SECONDS_TO_LOOK if options.ui else SECONDS * len(flights) / ALL_FLIGHTS
        application = Application(database.dsn, plan, seconds=seconds)
        console.print(
            f"{len(flights):,} flights of 2013, replayed by {WRITERS} connections"
            f" in {seconds:.0f} seconds"
        )
        troubles = Troubles(database.dsn, ticker, consumers[0])
        if options.ui:
            link = stack.enter_context(trouble.console(database.dsn, troubles))
            console.print(f"The console: {link}", soft_wrap=True)
            if options.dsn is None:
                doctor = f"pgqpy doctor --stuck-after {trouble.STUCK_AFTER}"
                console.print(f"The doctor: {doctor} --dsn '{database.dsn}'", soft_wrap=True)
            console.print("Ctrl-C stops all.")
        application.start()
        try:
            with _bars(console) as bars:
                expected, lines = expected_events(plan), [APPLICATION, *names]
                tasks = {name: bars.add_task(name, total=expected) for name in lines}
                for done, total in _progress(
                    database, application, names, [ticker, *consumers], troubles
                ):
                    for name, events in done.items():
                        bars.update(tasks[name], completed=events, total=total)
        finally:
            application.stop()
        measured = Measurements(
            commits=sorted(application.commits, key=lambda commit: commit.at),
            deliveries=batches(database.conn, DELAY_COUNTER),
            ranges=batches(database.conn, MONTHLY_DELAYS),
            rollbacks=application.rollbacks,
            ticks=database.last_tick() - first_tick,
            rotations=database.rotations(),
        )
        return compare(database.conn, spark=options.spark), measured


@contextlib.contextmanager
def _ticker_config(dsn: str) -> Iterator[str]:
    """Write a configuration with maintenance more often than once a minute, so that it is seen."""
    # A file, not an argument: other users can read command lines, but not this file.
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as config:
        quoted = json.dumps(dsn, ensure_ascii=False)
        config.write(f"[[database]]\ndsn = {quoted}\nmaintenance_period = {MAINTENANCE}\n")
        config.flush()
        yield config.name


def _bars(console: Console) -> Progress:
    """Return progress bars: for the application's commits, and for each consumer."""
    return Progress(
        TextColumn("{task.description:<14}"),
        BarColumn(bar_width=None),
        TextColumn("{task.completed:>9,.0f} events"),
        TimeElapsedColumn(),
        console=console,
    )


def _progress(
    database: Database,
    application: Application,
    consumers: Sequence[str],
    processes: Sequence[Process],
    troubles: Troubles,
) -> Iterator[tuple[dict[str, int], int | None]]:
    """Yield the events of each, and their total once it is known, until all are delivered.

    Raises `DemoError` if a process ends early, a writer fails, or there is no progress any more.
    """
    before: dict[str, int] = {}
    moved = time.monotonic()
    while True:
        running = troubles.go_on() or application.running
        if application.error is not None:
            raise DemoError(f"The application failed: {application.error}")
        for process in processes:
            process.check()
        committed = sum(commit.rows for commit in list(application.commits)) + troubles.events
        now = {name: delivered(database.conn).get(name, 0) for name in consumers}
        yield now | {APPLICATION: committed}, None if running else committed
        if not running and all(now[name] == committed for name in consumers):
            return
        if now | {APPLICATION: committed} != before:
            before, moved = now | {APPLICATION: committed}, time.monotonic()
        elif time.monotonic() - moved > STALLED_AFTER:
            missing = ", ".join(f"{name} has {now[name]:,}" for name in consumers)
            raise DemoError(f"Nothing happens any more: of {committed:,} events {missing}.")
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
