"""Cron expressions of periodic jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from pgqpy.errors import InvalidTask

try:
    from cronsim import CronSim, CronSimError
except ImportError as error:  # pragma: no cover
    raise ImportError('periodic jobs need cronsim: pip install "pgqpy[jobs]"') from error

_STAR = re.compile(r"^\*")


class Cron:
    """A cron expression of five fields (minute, hour, day, month, day of the week) in a time zone.

    Times that the clock skips when it is put forward are due right after the gap, once; times that
    it shows twice when it is put back, the first time. Expressions for every hour (``*``) follow
    elapsed hours.
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
        fields = str(expression).split()
        self._rule = " ".join(fields)
        if len(fields) == 5 and fields[1] != "*":
            # cronsim uses elapsed hours if one of these begins with a star.
            minute, hour, *days = fields
            self._rule = " ".join([_STAR.sub("0-59", minute), _STAR.sub("0-23", hour), *days])
        try:
            if len(fields) != 5:
                raise CronSimError("there must be five fields")
            next(CronSim(self._rule, datetime(2000, 1, 1, tzinfo=self._zone)))
        except CronSimError as error:
            raise InvalidTask(
                f"{expression!r:.80} is no cron expression: {error}",
                hint="Minute, hour, day, month and day of the week, like '30 2 * * MON-FRI'.",
            ) from None
        except StopIteration:
            raise InvalidTask(
                f"{expression!r:.80} is never due", hint="Look at its day and month."
            ) from None

    def after(self, time: datetime) -> Iterator[datetime]:
        """Yield the due times, in UTC, from the first one after ``time`` on."""
        last = time
        for due in CronSim(self._rule, time.astimezone(self._zone)):
            # Two of them may be due right after a gap, and one before an hour that comes twice.
            if due.astimezone(UTC) > last:
                last = due.astimezone(UTC)
                yield last
