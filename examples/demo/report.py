"""The report at the end of the run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from examples.demo import QUEUE, SCHEMA
from examples.demo.results import Comparison, Measurements, Totals, percentile


def show_comparison(console: Console, found: Comparison, names: Mapping[str, str]) -> None:
    """Print a line for each airline, and the verdict."""
    ways = {"Application": found.application, "Consumer": found.consumer}
    if found.spark is not None:
        ways["Spark"] = found.spark
    table = Table(box=None, header_style="bold", padding=(0, 1), row_styles=["", "dim"])
    table.add_column("Airline", no_wrap=True, overflow="ellipsis")
    for heading in ("Flights", *ways, ""):
        table.add_column(heading, justify="right")
    carriers = {carrier for totals in ways.values() for carrier in totals}
    for carrier in sorted(carriers, key=lambda c: found.application.get(c, (0, 0)), reverse=True):
        results = [totals.get(carrier) for totals in ways.values()]
        table.add_row(
            names.get(carrier, carrier),
            f"{results[0][0]:,}" if results[0] else "0",
            *(f"{result[1]:,}" if result else "none" for result in results),
            "[bold green]✓[/]" if len(set(results)) == 1 else "[bold red]✗[/]",
        )
    console.print()
    console.print(
        Panel(
            Group(table, Text(), _verdict(found)),
            title="[bold]Minutes of delay, computed three ways[/]",
            title_align="left",
            border_style="green" if found.equal else "red",
            expand=False,
        )
    )


def _verdict(found: Comparison) -> Text:
    if not found.equal:
        return Text("NOT EQUAL: events were lost or counted twice.", style="bold red")
    months = ""
    if found.spark_by_month is not None:
        same = _matches(found.spark_by_month, found.application_by_month)
        months = f"; by airline and month, {same}"
    airlines = _matches(found.consumer, found.application)
    return Text(f"Equal: {airlines} airlines{months}.", style="bold green")


def _matches(kept: Totals, expected: Totals) -> str:
    same = sum(kept.get(key) == value for key, value in expected.items())
    return f"{same} of {len(expected)}"


def show_measurements(console: Console, measured: Measurements) -> None:
    """Print rates, latency, and the ticker's work."""
    millis = [seconds * 1000 for _, seconds in measured.latencies()]
    p50, p99 = (percentile(millis, percent) for percent in (50, 99))
    rows = {
        "Events in": f"{measured.events_in_per_second():,.0f} a second"
        f"   ({measured.events:,} in {len(measured.commits):,} transactions,"
        f" {measured.rollbacks:,} rolled back)",
        "Events out": f"{measured.events_out_per_second():,.0f} a second"
        "   (to the last one delivered)",
        "Latency": f"{p50:,.1f} ms p50, {p99:,.1f} ms p99   (COMMIT to consumer's method)",
        "Consumer": f"{len(measured.deliveries):,} batches",
    }
    if sizes := [each.events for each in measured.ranges]:
        each = f"{min(sizes):,} to {max(sizes):,} events each"
        rows["SparkConsumer"] = f"{len(sizes):,} DataFrames, {each}"
    rotations = f"{measured.rotations:,} rotation{'' if measured.rotations == 1 else 's'}"
    rows["Ticker"] = f"{measured.ticks:,} ticks, {rotations}"
    console.print()
    console.print(_list(rows))


def show_remains(console: Console, *, kept: bool, installed: bool) -> None:
    """Print what the demo leaves in the user's database."""
    console.print()
    if kept:
        console.print(f"Kept in your database: the schema {SCHEMA} and the queue {QUEUE}.")
        console.print("The next demo there replaces them.")
    else:
        console.print("The demo's queue, consumers and tables are gone from your database.")
    if installed:
        console.print("Left there, for your own queues: the schema pgq.")


def show_next_steps(console: Console) -> None:
    """Print commands, and what they are for."""
    # A virtual environment need not be on the path.
    script = Path(sys.executable).with_name("pgqpy")
    command = script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script
    steps = {
        "make demo CHART=demo.png": "the same, and a picture of it",
        "make demo DSN=postgresql://...": "on your own server",
        f"{command} migrate --dsn DSN": "the schema for your own queues",
        f"{command} ticker --dsn DSN": "and the one daemon they need",
        f"{command} --help": "queues, events, capture, status",
        "examples/": "producers and consumers, a page each",
    }
    console.print()
    console.print("[bold]What to try next[/]")
    console.print(_list(steps, style="cyan"))


def _list(rows: Mapping[str, str], style: str = "bold") -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style=style, no_wrap=True)
    table.add_column()
    for name, text in rows.items():
        table.add_row(name, text)
    return table
