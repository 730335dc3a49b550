"""The demo from start to end."""

from __future__ import annotations

import contextlib
import json
import signal
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console

import pgqpy
import pgqpy.dsn
from pgqpy.demo import batch_log, chart, data, report
from pgqpy.demo.application import WRITERS, Application
from pgqpy.demo.compare import Comparison, compare
from pgqpy.demo.errors import DemoError
from pgqpy.demo.measure import Measurements
from pgqpy.demo.names import DELAY_COUNTER, MONTHLY_DELAYS
from pgqpy.demo.place import Place
from pgqpy.demo.plan import expected_events, make_plan
from pgqpy.demo.processes import Process
from pgqpy.demo.progress import APPLICATION, Bars
from pgqpy.demo.watch import watch
from pgqpy.embedded import Server

ALL_FLIGHTS = 336_776

# The duration for all flights; fewer take a part of it.
SECONDS = 40.0

# Allows for a cold disk and a busy machine.
START_TIMEOUT = 120.0

# Seconds between the ticker's maintenance runs.
MAINTENANCE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The user's choices."""

    dsn: str | None = None
    """The database; None for an embedded server."""
    chart: Path | None = None
    flights: int | None = None
    """The number of flights; None for all."""
    spark: bool = True
    keep: bool = False
    """Leave the demo's queue and tables in the user's database."""


def perform(settings: Settings, console: Console) -> bool:
    """Run the demo and report; true if all results are equal.

    Raises `PgqError` and psycopg's errors.
    """
    # Fail now, not when all the work is done.
    if settings.spark:
        _require_spark()
    if settings.chart is not None:
        chart.require_matplotlib()
    with _sigterm_as_interrupt(), _place(settings, console) as place:
        comparison, measured = _act(place, settings, console)
    report.show_comparison(console, comparison)
    report.show_measurements(console, measured)
    if settings.chart is not None:
        chart.draw(settings.chart, measured)
        console.print(f"\nThe chart is in {settings.chart}.")
    if settings.dsn is not None:
        report.show_remains(console, kept=settings.keep, installed_schema=place.installed_schema)
    report.show_next_steps(console)
    return comparison.equal


def _require_spark() -> None:
    """Raise an error that names what to install, if Spark or Java is missing."""
    try:
        from pgqpy_consumers.spark import require_java
    except ImportError as error:
        raise DemoError(str(error), hint="Without Spark: pgqpy demo --no-spark") from error
    require_java()


@contextlib.contextmanager
def _place(settings: Settings, console: Console) -> Iterator[Place]:
    with contextlib.ExitStack() as stack:
        if settings.dsn is None:
            with console.status("Starting an embedded PostgreSQL"):
                dsn = stack.enter_context(Server()).dsn
        else:
            dsn = settings.dsn
        conn = stack.enter_context(
            pgqpy.connect(dsn, autocommit=True, application_name="pgqpy demo")
        )
        version = conn.info.server_version // 10000
        where = "embedded, without fsync"
        if settings.dsn is not None:
            where = pgqpy.dsn.redact(dsn)
        console.print(f"PostgreSQL {version}, {where}")

        place = Place(conn, dsn)
        with console.status("Installing the schema pgq and the application's tables"):
            place.prepare(data.load_airlines())
        try:
            yield place
        finally:
            # The embedded server removes everything itself.
            if settings.dsn is not None and not settings.keep and not conn.broken:
                place.clear()


def _act(place: Place, settings: Settings, console: Console) -> tuple[Comparison, Measurements]:
    names = [DELAY_COUNTER] + [MONTHLY_DELAYS] * settings.spark
    with contextlib.ExitStack() as stack:
        # Each consumer is the module of its name.
        consumers = [
            stack.enter_context(Process(name, f"pgqpy.demo.{name}", dsn=place.dsn))
            for name in names
        ]
        ticker = stack.enter_context(_ticker(place.dsn))
        with console.status("Reading the flights of 2013"):
            flights = data.load_flights(settings.flights)
            plan = make_plan(flights)
        with console.status("Starting the ticker and the consumers"):
            for consumer in consumers:
                consumer.wait_until_ready(START_TIMEOUT)

        first_tick = place.last_tick()
        seconds = SECONDS * len(flights) / ALL_FLIGHTS
        application = Application(place.dsn, plan, seconds=seconds)
        console.print(
            f"{len(flights):,} flights of 2013, replayed by {WRITERS} connections"
            f" in {seconds:.0f} seconds"
        )
        application.start()
        try:
            with Bars(console, [APPLICATION, *names], expected_events(plan)) as bars:
                watch(place.conn, application, names, [ticker, *consumers], bars)
        finally:
            application.stop()
        measured = Measurements(
            commits=sorted(application.commits, key=lambda commit: commit.at),
            deliveries=batch_log.read(place.conn, DELAY_COUNTER),
            ranges=batch_log.read(place.conn, MONTHLY_DELAYS),
            rollbacks=application.rollbacks,
            ticks=place.last_tick() - first_tick,
            rotations=place.rotations(),
        )
        return compare(place.conn, spark=settings.spark), measured


@contextlib.contextmanager
def _ticker(dsn: str) -> Iterator[Process]:
    """Run the daemon, with maintenance more often than once a minute, so that it is seen."""
    # A file, not an argument: other users can read command lines, but not this file.
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as config:
        quoted = json.dumps(dsn, ensure_ascii=False)
        config.write(f"[[database]]\ndsn = {quoted}\nmaintenance_period = {MAINTENANCE}\n")
        config.flush()
        with Process("ticker", "pgqpy", "ticker", "--config", config.name, dsn=dsn) as process:
            yield process


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM unwind everything like Ctrl-C."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
