"""Tasks that are pushed by cron expressions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from pgqpy.connection import Connection
from pgqpy.errors import InvalidTask, translate_errors
from pgqpy.log import logger
from pgqpy.tasks._statements import headers_json, jsonb

try:
    from cronsim import CronSim, CronSimError
except ImportError as error:  # pragma: no cover
    raise ImportError('periodic jobs need cronsim: pip install "pgqpy[jobs]"') from error

#: The runs to push after a time without workers: only the last one that was due, or all, or none.
MISSED = ("last", "all", "skip")

_SET = b"""
select pgq_task.set_periodic(%s, %s, %s, %s, %s::jsonb, %s::int4, %s, %s::jsonb, %s, %s)
"""
_LIST = b"select name, queue from pgq_task.get_periodic_info()"
_EVERY = re.compile(r"@every ([1-9][0-9]{0,9})s")
_CENTURY = 36500 * 86400


class Cron:
    """A cron expression of five fields (minute, hour, day, month, day of the week) in a time zone,
    or of six: seconds first. Or an interval, as ``@every 90s``.

    Times that the clock skips when it is put forward are due right after the gap, once; times that
    it shows twice when it is put back, the first time. Expressions for every hour (``*``) follow
    elapsed time.
    """

    def __init__(self, expression: str, time_zone: str = "UTC") -> None:
        """Raises InvalidTask for an invalid expression or time zone."""
        self.expression = expression
        self.time_zone = time_zone
        try:
            self._zone = ZoneInfo(time_zone)
        except (KeyError, OSError, TypeError, ValueError):
            raise InvalidTask(
                f"there is no time zone {time_zone!r:.80}",
                hint="Give a name of the IANA's, like Europe/Berlin; where the system has none, "
                "pip install tzdata.",
            ) from None
        every = _EVERY.fullmatch(str(expression))
        self._every = None if every is None else timedelta(seconds=int(every[1]))
        if self._every is not None:
            return
        fields = str(expression).split()
        self._rule = " ".join(fields)
        try:
            if len(fields) not in (5, 6):
                raise CronSimError("there must be five fields, or six with seconds first")
            self._hourly = fields[-4] == "*"
            next(CronSim(self._rule, datetime(2000, 1, 1)))  # noqa: DTZ001
        except CronSimError as error:
            raise InvalidTask(
                f"{expression!r:.80} is no cron expression: {error}",
                hint="Minute, hour, day, month and day of the week, like '30 2 * * MON-FRI'; or "
                "'@every 90s'.",
            ) from None
        except StopIteration:
            raise InvalidTask(
                f"{expression!r:.80} is never due", hint="Look at its day and month."
            ) from None

    def explain(self) -> str:
        """Return when it is due, in words: ``At 02:30 on Monday through Friday``."""
        if self._every is not None:
            return f"Every {self._every.total_seconds():.0f} s"
        return str(CronSim(self.expression, datetime(2000, 1, 1, tzinfo=UTC)).explain())

    def after(self, time: datetime) -> Iterator[datetime]:
        """Yield the due times, in UTC, from the first one after ``time`` on."""
        last = time
        if self._every is not None:
            while True:
                last += self._every
                yield last
        clock = time.astimezone(self._zone)
        if not self._hourly:
            # Of a time without a zone cronsim knows no changes of the clock.
            clock = clock.replace(tzinfo=None, fold=0)
        rule = CronSim(self._rule, clock)
        for due in rule:
            shown = due
            if not self._hourly:
                shown = self._shown(due)
                rule.dt = shown.replace(tzinfo=None)
            # Two of them may be due right after a gap, and one before an hour that comes twice.
            if shown.astimezone(UTC) > last:
                last = shown.astimezone(UTC)
                yield last

    def _shown(self, time: datetime) -> datetime:
        """Return when the clock first shows this time; if it skips it, the end of the gap."""
        shown = time.replace(tzinfo=self._zone)
        while shown.astimezone(UTC).astimezone(self._zone) != shown:
            shown = shown.replace(second=0) + timedelta(minutes=1)
        return shown


def every(interval: timedelta) -> str:
    """Return the expression for an interval. Raises InvalidTask if it is not whole seconds, from
    one to a century."""
    seconds = interval.total_seconds()
    if not (seconds.is_integer() and 1 <= seconds <= _CENTURY):
        raise InvalidTask(
            f"a job every {seconds:g} seconds", hint="Give whole seconds, 1 or more of them."
        )
    return f"@every {seconds:.0f}s"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicTask:
    """A task that is pushed into a queue again and again; ``name`` identifies it.

    The rest is described at `pgqpy.tasks.Tasks.push`: with a ``unique_key`` a run is skipped while
    the queue still has the one before it.
    """

    name: str
    queue: str
    cron: Cron
    payload: Any
    missed: str = "last"
    priority: int = 0
    headers: Mapping[str, Any] | None = None
    unique_key: str | None = None
    order_key: str | None = None


def set_periodic(conn: Connection, tasks: Iterable[PeriodicTask]) -> None:
    """Store periodic tasks on the server, in the connection's transaction.

    Existing ones of the same name are changed; their next run only if the schedule changes. A
    change of the queue is logged: two programs may use the same name. Raises
    TaskQueueNotFound, InvalidTask.
    """
    with translate_errors():
        queues = {row[0]: row[1] for row in conn.execute(_LIST)}
        for task in tasks:
            if queues.get(task.name, task.queue) != task.queue:
                logger.warning(
                    "periodic task %s was of queue %s, and is of %s from now on; two tasks need two"
                    " names",
                    task.name,
                    queues[task.name],
                    task.queue,
                )
            conn.execute(
                _SET,
                [
                    task.name,
                    task.queue,
                    task.cron.expression,
                    task.cron.time_zone,
                    jsonb(task.payload),
                    task.priority,
                    task.missed,
                    headers_json(task.headers),
                    task.unique_key,
                    task.order_key,
                ],
            )
