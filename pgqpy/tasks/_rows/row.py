"""A locked row of the application's table, and its outcome."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, ClassVar, Self

import psycopg
from psycopg.types.datetime import DateLoader, TimestampLoader, TimestamptzLoader


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row; ``key`` and ``next_attempt`` are texts. If it is ``left``, an earlier attempt did not
    end; ``values`` are empty if they could not be read, for the reason in ``error``."""

    key: tuple[str, ...]
    next_attempt: str
    attempts: int
    left: bool
    values: dict[str, Any]
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """The outcome of a row.

    ``key`` is that of its table, as text. ``status`` and ``error`` None: unchanged. ``delay``
    None: the row is not due any more. ``told`` is passed to `on_row_failed`.
    """

    key: tuple[str, ...]
    status: str | None
    delay: timedelta | None = None
    error: str | None = None
    told: tuple[dict[str, Any], Exception, timedelta | None] | None = None


class RowLost(Exception):
    """The process, or its connection, ended while it worked on the row."""

    #: The attempts in a row that may be lost before the row is given up, whatever the retry policy.
    MOST: ClassVar = 5

    def __init__(self, times: int = 1) -> None:
        again = f" ({times} times in a row)" if times > 1 else ""
        super().__init__(f"the process, or its connection, ended while it worked on the row{again}")
        self.times = times

    @classmethod
    def after(cls, last_error: object) -> Self:
        """Return the error after one more loss than a row's last_error reports."""
        told = _LOST.match(last_error) if isinstance(last_error, str) else None
        return cls(1 + int(told[1] or 1) if told else 1)


_LOST = re.compile(r"RowLost: [^(]*(?:\((\d+) times in a row\))?$")


_LAST, _FIRST = datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)


class _InfiniteDate(DateLoader):
    """Maps PostgreSQL's infinity to Python's last or first date."""

    def load(self, data: Any) -> date:
        ends = {b"infinity": _LAST.date(), b"-infinity": _FIRST.date()}
        return ends.get(bytes(data)) or super().load(data)


class _InfiniteTime(TimestampLoader):
    def load(self, data: Any) -> datetime:
        ends = {b"infinity": _LAST.replace(tzinfo=None), b"-infinity": _FIRST.replace(tzinfo=None)}
        return ends.get(bytes(data)) or super().load(data)


class _InfiniteTimeOfZone(TimestamptzLoader):
    def load(self, data: Any) -> datetime:
        return {b"infinity": _LAST, b"-infinity": _FIRST}.get(bytes(data)) or super().load(data)


def read_infinity(adapters: psycopg.adapt.AdaptersMap) -> None:
    """Read infinite dates and times as Python's last and first ones."""
    adapters.register_loader("date", _InfiniteDate)
    adapters.register_loader("timestamp", _InfiniteTime)
    adapters.register_loader("timestamptz", _InfiniteTimeOfZone)
