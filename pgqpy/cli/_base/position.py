"""Positions in a queue: a tick by number, by time, or one of the two ends."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

import click
from psycopg.rows import class_row

import pgqpy
from pgqpy.cli._base.command import Function
from pgqpy.cli._base.errors import CliError

#: Rotation may have removed the events behind older ticks; positions start at the horizon.
TICKS: LiteralString = """
select t.tick_id as id, t.tick_time as time
  from pgq.queue q
  join pgq.tick t on t.tick_queue = q.queue_id and t.tick_id >= q.queue_horizon_tick
 where q.queue_name = %(queue)s
"""
OLDEST: LiteralString = TICKS + " order by t.tick_id limit 1"
NEWEST: LiteralString = TICKS + " order by t.tick_id desc limit 1"
LAST_BEFORE: LiteralString = TICKS + " and t.tick_time <= %(time)s order by t.tick_id desc limit 1"


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick's number and time."""

    id: int
    time: datetime


class Moment(click.ParamType[datetime]):
    """A time in ISO 8601; without an offset it is local."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Parse it; `datetime`s pass."""
        try:
            moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
            return moment.astimezone()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time such as 2026-11-21T08:30 or 2026-11-21", param, ctx)


@dataclass(frozen=True, slots=True)
class Position:
    """The position that the options give; the end if there are none."""

    tick: int | None = None
    time: datetime | None = None
    start: bool = False
    end: bool = False

    @property
    def given(self) -> bool:
        """Whether any option was used."""
        return self != Position()

    def check(self) -> None:
        """Refuse two positions at once."""
        if (self.tick is not None) + (self.time is not None) + self.start + self.end > 1:
            raise click.UsageError("--tick, --time, --start and --end exclude each other.")

    def resolve(self, conn: pgqpy.Connection, queue: str) -> int:
        """Return the current tick of this position in a queue."""
        if self.tick is not None:
            return self.tick
        statement = OLDEST if self.start else LAST_BEFORE if self.time else NEWEST
        with conn.cursor(row_factory=class_row(Tick)) as cursor:
            found = cursor.execute(statement, {"queue": queue, "time": self.time}).fetchone()
            if found is not None:
                return found.id
            oldest = cursor.execute(OLDEST, {"queue": queue}).fetchone()
        if oldest is None:
            raise CliError(f"queue {queue} has no tick yet", "keep `pgqpy ticker` running")
        raise CliError(
            f"queue {queue} has no tick from before {self.time:%Y-%m-%d %H:%M:%S%z} any more; "
            f"its oldest, {oldest.id}, is of {oldest.time.astimezone():%Y-%m-%d %H:%M:%S%z}",
            "--start goes there",
        )


def position_options(function: Function) -> Function:
    """Add the four options, under the names of `Position`'s fields."""
    for option in (
        click.option("--end", is_flag=True, help="The newest tick: only events to come."),
        click.option("--start", is_flag=True, help="The oldest tick that still has its events."),
        click.option(
            "--time", type=Moment(), metavar="TIME", help="The last tick before a time (ISO 8601)."
        ),
        click.option("--tick", type=click.IntRange(min=0), metavar="N", help="A tick by number."),
    ):
        function = option(function)
    return function
