"""The report at the end of the run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pgqpy.demo.compare import Comparison, Totals
from pgqpy.demo.measure import Measurements, percentile
from pgqpy.demo.names import QUEUE, SCHEMA

SAME = Text("✓", style="bold green")
DIFFERENT = Text("✗", style="bold red")


def show_comparison(console: Console, comparison: Comparison) -> None:
    """Print a line for each airline, and the verdict."""
    table = Table(box=None, header_style="bold", padding=(0, 1), row_styles=["", "dim"])
    table.add_column("Airline", no_wrap=True, overflow="ellipsis")
    table.add_column("Flights", justify="right")
    table.add_column("Application", justify="right")
    table.add_column("Consumer", justify="right")
    if comparison.spark is not None:
        table.add_column("Spark", justify="right")
    table.add_column("")
    by_size = sorted(comparison.application, key=lambda c: comparison.application[c], reverse=True)
    others = set(comparison.consumer) | set(comparison.spark or ())
    for carrier in [*by_size, *sorted(others - set(by_size))]:
        table.add_row(*_row(comparison, carrier))
    console.print()
    console.print(
        Panel(
            Group(table, Text(), _verdict(comparison)),
            title="[bold]Minutes of delay, computed three ways[/]",
            title_align="left",
            border_style="green" if comparison.equal else "red",
            expand=False,
        )
    )


def _row(comparison: Comparison, carrier: str) -> list[RenderableType]:
    ways = [comparison.application, comparison.consumer]
    if comparison.spark is not None:
        ways.append(comparison.spark)
    results = [way.get(carrier) for way in ways]
    flights = results[0][0] if results[0] else 0
    return [
        comparison.names.get(carrier, carrier),
        f"{flights:,}",
        *(f"{result[1]:,}" if result else "none" for result in results),
        SAME if len(set(results)) == 1 else DIFFERENT,
    ]


def _verdict(comparison: Comparison) -> Text:
    months = ""
    if comparison.spark_by_month is not None:
        same = _matches(comparison.spark_by_month, comparison.application_by_month)
        months = f"; by airline and month, {same}"
    if comparison.equal:
        airlines = _matches(comparison.consumer, comparison.application)
        return Text(f"Equal: {airlines} airlines{months}.", style="bold green")
    return Text("NOT EQUAL: events were lost or counted twice.", style="bold red")


def _matches(kept: Totals, expected: Totals) -> str:
    same = sum(kept.get(key) == value for key, value in expected.items())
    return f"{same} of {len(expected)}"


def show_measurements(console: Console, measured: Measurements) -> None:
    """Print rates, latency, and the ticker's work."""
    millis = [latency.seconds * 1000 for latency in measured.latencies()]
    rows = {
        "Events in": f"{measured.events_in_per_second():,.0f} a second"
        f"   ({measured.events:,} in {len(measured.commits):,} transactions,"
        f" {measured.rollbacks:,} rolled back)",
        "Events out": f"{measured.events_out_per_second():,.0f} a second"
        "   (to the last one delivered)",
        "Latency": _latency(millis),
        "Consumer": f"{len(measured.deliveries):,} batches",
    }
    if measured.ranges:
        rows["SparkConsumer"] = f"{len(measured.ranges):,} DataFrames, {_sizes(measured)}"
    rows["Ticker"] = f"{measured.ticks:,} ticks, {_counted(measured.rotations, 'rotation')}"
    console.print()
    console.print(_list(rows))


def _latency(millis: list[float]) -> str:
    if not millis:
        return "unknown, nothing was delivered"
    p50, p99 = percentile(millis, 50), percentile(millis, 99)
    return f"{p50:,.1f} ms p50, {p99:,.1f} ms p99   (COMMIT to consumer's method)"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _sizes(measured: Measurements) -> str:
    sizes = [delivery.events for delivery in measured.ranges]
    return f"{min(sizes):,} to {max(sizes):,} events each"


def show_remains(console: Console, *, kept: bool, installed_schema: bool) -> None:
    """Print what the demo leaves in the user's database."""
    console.print()
    if kept:
        console.print(f"Kept in your database: the schema {SCHEMA} and the queue {QUEUE}.")
        console.print("The next demo there replaces them.")
    else:
        console.print("The demo's queue, consumers and tables are gone from your database.")
    if installed_schema:
        console.print("Left there, for your own queues: the schema pgq.")


def show_next_steps(console: Console) -> None:
    """Print commands, and what they are for."""
    command = _command()
    steps = {
        f"{command} demo --chart demo.png": "the same, and a picture of it",
        f"{command} demo --dsn DSN --keep": "on your own server, to look around",
        f"{command} migrate --dsn DSN": "the schema for your own queues",
        f"{command} ticker --dsn DSN": "and the one daemon they need",
        f"{command} --help": "queues, events, capture, status",
        "examples/": "producers and consumers, a page each",
    }
    console.print()
    console.print("[bold]What to try next[/]")
    console.print(_list(steps, style="cyan"))


def _command() -> str:
    """Return the command to call pgqpy: a virtual environment need not be on the path."""
    if shutil.which("pgqpy"):
        return "pgqpy"
    script = Path(sys.executable).with_name("pgqpy")
    return str(script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script)


def _list(rows: Mapping[str, str], style: str = "bold") -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style=style, no_wrap=True)
    table.add_column()
    for name, text in rows.items():
        table.add_row(name, text)
    return table
