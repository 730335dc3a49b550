"""The results of a benchmark: stored as JSON, with every single value of every round."""

from __future__ import annotations

import dataclasses
import json
import statistics
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

PERCENTS = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9, 100)

Cell: TypeAlias = str | int | float | None


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of the ratios of all rounds, and their spread.

    Not the ratio of medians: a slowdown of the machine affects both contestants of a
    round, and cancels out.
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Ratio:
        return cls(statistics.median(ratios), min(ratios), max(ratios))


@dataclass(slots=True)
class Contest:
    """Contestants took turns at the same work. The first one is the yardstick."""

    kind: ClassVar = "contest"
    title: str
    items: int
    """The amount of work in each turn."""
    unit: str
    """The unit of the items."""
    seconds: dict[str, list[float]]
    """The durations of each contestant's rounds; slow contestants have fewer of them."""

    def rate(self, name: str) -> float:
        """Items a second, the median."""
        return self.items / statistics.median(self.seconds[name])

    def ratio(self, name: str, to: str, *, above: str | None = None) -> Ratio:
        """How many times as fast as ``to``; with ``above``, after subtracting its time from both.

        If one was in fewer rounds than the other, medians are compared instead of rounds.
        """
        ours, theirs = self.seconds[name], self.seconds[to]
        floor = self.seconds[above] if above else [0.0] * len(ours)
        if len(ours) != len(theirs):
            ours, theirs, floor = ([statistics.median(each)] for each in (ours, theirs, floor))
        rounds = zip(ours, theirs, floor, strict=True)
        return Ratio.of([(other - least) / (own - least) for own, other, least in rounds])


@dataclass(slots=True)
class Table:
    """A table with a name in the first column and numbers in the others."""

    kind: ClassVar = "table"
    title: str
    columns: list[str]
    rows: list[list[Cell]]


@dataclass(slots=True)
class Delays:
    """Durations: for each name as many values as `PERCENTS`, in ms."""

    kind: ClassVar = "delays"
    title: str
    percentiles: dict[str, list[float]]
    counts: dict[str, int]

    @classmethod
    def of(cls, title: str, seconds: dict[str, Sequence[float]]) -> Delays:
        percentiles, counts = {}, {}
        for name, values in seconds.items():
            ordered = sorted(values)
            last = len(ordered) - 1
            percentiles[name] = [1000 * ordered[round(last * p / 100)] for p in PERCENTS]
            counts[name] = len(ordered)
        return cls(title, percentiles, counts)

    def ms(self, name: str, percent: float) -> float:
        return self.percentiles[name][PERCENTS.index(percent)]


@dataclass(slots=True)
class Series:
    """Values over time: for each line its points (x, y)."""

    kind: ClassVar = "series"
    title: str
    x: str
    """The quantity and its unit."""
    y: str
    lines: dict[str, list[tuple[float, float]]]
    x_scale: str = "linear"
    """"linear" or "log"."""


Part: TypeAlias = Contest | Table | Delays | Series


def group_of(number: str) -> str:
    return number.rstrip(string.ascii_lowercase)


@dataclass(slots=True)
class Figure:
    """One of the figures to reach (`benchmarks.figures`), or a part of one."""

    number: str
    """The figure's number; "1a" is a part of number 1."""
    what: str
    bound: str
    """"at least" or "at most"."""
    target: float
    value: float
    unit: str = "x"
    spread: tuple[float, float] | None = None
    note: str = ""
    met: bool = field(init=False)

    @property
    def group(self) -> str:
        """The number without the part's letter: "1" for "1a"."""
        return group_of(self.number)

    def __post_init__(self) -> None:
        at_least = self.bound == "at least"
        self.met = self.value >= self.target if at_least else self.value <= self.target


@dataclass(slots=True)
class Result:
    """The results of one benchmark, with time, machine and versions."""

    name: str
    about: str
    quick: bool
    date: str
    commit: str
    machine: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    """Settings of the server and of the peers that are not the default."""
    seconds: float = 0.0
    """The duration of the benchmark."""
    figures: list[Figure] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)

    def write(self, directory: Path) -> None:
        document = dataclasses.asdict(self)
        kinds = [{"kind": part.kind} for part in self.parts]
        document["parts"] = [k | p for k, p in zip(kinds, document["parts"], strict=True)]
        directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps(rounded(document), indent=1, ensure_ascii=False)
        (directory / f"{self.name}.json").write_text(text + "\n")


def rounded(value: Any) -> Any:
    """The value with six digits; more cannot be measured."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value
