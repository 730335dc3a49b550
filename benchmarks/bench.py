"""The context of a benchmark: servers to run on, and the results that it has measured."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partialmethod
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console
from rich.progress import track

import pgqpy
from benchmarks import _servers
from benchmarks._result import (
    FIGURES,
    Cell,
    Contest,
    Delays,
    Figure,
    Part,
    Ratio,
    Result,
    Series,
    Table,
    commit,
    machine,
)
from benchmarks._show import show
from pgqpy.embedded import Server

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of all benchmarks."""

    quick: bool
    """Only check that it works; the figures mean little."""
    version: int | None
    """The version of PostgreSQL; by default 15, whose PgQ is in Debian, or else 18."""
    peer_sql: Mapping[str, Path]
    """Paths of the SQL files, for peers that are one."""
    minutes: float | None
    """The minutes to measure long benchmarks, instead of their own durations."""


class Bench:
    """One run of one benchmark."""

    def __init__(self, name: str, about: str, options: Options) -> None:
        self.options = options
        self.result = Result(
            name=name,
            about=about,
            quick=options.quick,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            commit=commit(),
            machine=machine(),
            versions={"pgqpy": pgqpy.__version__, "Python": platform.python_version()},
        )
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Print the progress."""
        click.echo(text, err=True)

    def choose(self, full: T, *, quick: T) -> T:
        """The amount of work."""
        return quick if self.options.quick else full

    def minutes(self, full: float, *, quick: float = 0.05) -> float:
        """The minutes to measure a long benchmark."""
        return self.choose(self.options.minutes or full, quick=quick)

    @contextmanager
    def server(self, **settings: str | int | bool) -> Iterator[Server]:
        """A server of its own, removed afterwards; `_servers.SETTINGS` are set in any case."""
        version = self.options.version or _servers.default_version()
        with Server(version=version, settings=_servers.SETTINGS | settings) as server:
            self.result.versions |= _servers.versions(server)
            self.result.settings |= _servers.describe(server, settings)
            self.say(f"PostgreSQL {self.result.versions['PostgreSQL']}")
            yield server

    def contest(
        self,
        title: str,
        contestants: Mapping[str, Callable[[], float]],
        *,
        rounds: int,
        items: int,
        unit: str,
        once: Collection[str] = (),
    ) -> Contest:
        """Measure contestants: each does ``items`` pieces of work and returns the seconds taken.

        The first is the yardstick. Those named in ``once`` only take part in the first round.
        """
        contest = Contest(title, items, unit, take_turns(contestants, rounds, once=once))
        self.add(contest)
        return contest

    def delays(self, title: str, seconds: Mapping[str, Sequence[float]]) -> Delays:
        """Add percentiles of many durations, by name."""
        delays = Delays.of(title, dict(seconds))
        self.add(delays)
        return delays

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        self.add(Table(title, list(columns), [list(row) for row in rows]))

    def series(
        self, title: str, y: str, lines: Mapping[str, Iterable[tuple[float, float]]]
    ) -> None:
        """Add values over time; ``y`` is their unit."""
        self.add(Series(title, y, {name: list(line) for name, line in lines.items()}))

    def add(self, part: Part) -> None:
        self.result.parts.append(part)
        show(part)

    def figure(
        self,
        bound: str,
        number: str,
        what: str,
        value: Ratio | float,
        target: float,
        unit: str = "x",
        note: str = "",
    ) -> None:
        """Add a figure to reach; ``number`` as in `FIGURES`, a letter for a part."""
        spread = None
        if isinstance(value, Ratio):
            spread = value.low, value.high
            value = value.value
        self.result.figures.append(Figure(number, what, bound, target, value, unit, spread, note))

    at_least = partialmethod(figure, "at least")
    at_most = partialmethod(figure, "at most")

    def done(self) -> Result:
        self.result.seconds = time.monotonic() - self._began
        order = list(FIGURES)
        self.result.figures.sort(key=lambda figure: (order.index(figure.group), figure.number))
        if self.result.figures:
            show(self.result.figures)
        return self.result


def timed(work: Callable[..., object], *arguments: object) -> float:
    """The duration of a call in seconds."""
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began


def take_turns(
    contestants: Mapping[str, Callable[[], float]], rounds: int, *, once: Collection[str] = ()
) -> dict[str, list[float]]:
    """Run each contestant once a round, in changing order; a first round does not count.

    A contestant named in ``once`` is so slow that it runs in one round only.

    Returns:
        The result of each contestant in each round.
    """
    said: dict[str, list[float]] = {name: [] for name in contestants}
    often = [name for name in contestants if name not in once]
    for name in often:
        contestants[name]()
    for number in track(range(rounds), "Rounds", console=Console(stderr=True), transient=True):
        names = often if number else list(contestants)
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            said[name].append(contestants[name]())
    return said
