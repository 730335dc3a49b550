"""Contestants take turns at the same work, round after round; medians and ratios are printed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import track
from rich.table import Table


@dataclass(slots=True)
class Contestant:
    """One way to do the work."""

    name: str
    run: Callable[[], float]
    """Does the work once; returns the seconds that it took."""
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def take_turns(contestants: Sequence[Contestant], rounds: int) -> None:
    """Everybody once a round, each time in another order; a first round does not count."""
    for contestant in contestants:
        contestant.run()
    for number in track(range(rounds), "Rounds", console=Console(stderr=True), transient=True):
        first = number % len(contestants)
        for contestant in (*contestants[first:], *contestants[:first]):
            contestant.seconds.append(contestant.run())


def show(title: str, contestants: Sequence[Contestant], *, items: int, unit: str) -> None:
    """A line for each; times are ratios to the first one's."""
    yardstick = contestants[0].median
    show_rows(
        title,
        ("", f"{unit} a second", "time, ratio", "slowest / fastest"),
        [
            (
                c.name,
                f"{items / c.median:,.0f}",
                f"{c.median / yardstick:.2f}",
                f"{max(c.seconds) / min(c.seconds):.2f}",
            )
            for c in contestants
        ],
    )


def show_rows(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Numbers with their names in the first column."""
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
