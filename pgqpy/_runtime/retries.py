"""Unfinished events of a batch: retries and dead letters."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

#: The maximum characters of a dead letter's reason, and of its traceback.
MAX_REASON = 2000
MAX_TRACEBACK = 4000

#: Dead letters that one statement sends. Each costs the server a pass over the batch.
PIECE = 10_000

SECOND = timedelta(seconds=1)

Letters = tuple[list[int], list[str], list[str | None]]


def interval(value: float | timedelta, what: str) -> timedelta:
    """Return seconds, or an interval, as an interval; ``what`` names it in errors."""
    if isinstance(value, timedelta):
        return value
    try:
        return timedelta(seconds=value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"{what} is {value!r}; it must be a number of seconds, or a timedelta"
        ) from None


class Retries:
    """Collects them while the batch is processed; all are sent together when it is finished.

    Its length is the number of retries.
    """

    def __init__(self) -> None:
        self._after: dict[int, timedelta | datetime] = {}
        self._letters: dict[int, tuple[str, str | None]] = {}
        # Errors at the same place share one.
        self._tracebacks: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._after)

    def __bool__(self) -> bool:
        return bool(self._after or self._letters)

    def __contains__(self, event_id: int) -> bool:
        return event_id in self._after or event_id in self._letters

    @property
    def dead_letters(self) -> int:
        """The number of events that are given up."""
        return len(self._letters)

    def add(self, event_id: int, delay: float | timedelta | datetime) -> None:
        """Add a retry of an event; of several calls for one event the last wins."""
        if isinstance(delay, datetime):
            if delay.tzinfo is None:
                raise ValueError("the time to retry at needs a time zone")
        else:
            delay = interval(delay, "the delay to retry after")
            if delay < timedelta():
                raise ValueError("the delay to retry after is negative")
        self.forget([event_id])
        self._after[event_id] = delay

    def bury(self, event_id: int, reason: str, error: BaseException | None = None) -> None:
        """Add a dead letter, with the traceback of an error; the last call wins."""
        where = None
        if error is not None:
            # With causes and groups; the most important part is at the end.
            text = "".join(traceback.format_exception(error))[-MAX_TRACEBACK:]
            where = self._tracebacks.setdefault(text, text)
        self.forget([event_id])
        self._letters[event_id] = (reason[:MAX_REASON], where)

    def forget(self, event_ids: Iterable[int]) -> None:
        """Remove the entries of some events: they are processed again."""
        for event_id in event_ids:
            self._after.pop(event_id, None)
            self._letters.pop(event_id, None)

    def take(self, event_id: int) -> timedelta | datetime | None:
        """Remove an event's retry and return its time or delay; None if it has none."""
        return self._after.pop(event_id, None)

    def clear(self) -> None:
        """Remove all entries: the batch starts over."""
        self._after.clear()
        self._letters.clear()

    def columns(self) -> tuple[list[int], list[datetime | None], list[timedelta | None]]:
        """Return event ids, times and delays, as arrays of one length; one of the latter two is
        set."""
        whens = self._after.values()
        return (
            list(self._after),
            [when if isinstance(when, datetime) else None for when in whens],
            [when if isinstance(when, timedelta) else None for when in whens],
        )

    def letters(self, encoding: str) -> Iterator[Letters]:
        """Yield event ids, reasons and tracebacks, as arrays of one length, in pieces.

        Errors quote any text; characters that the database's encoding lacks are escaped.
        """
        items = iter(self._letters.items())
        while piece := list(islice(items, PIECE)):
            yield (
                [event_id for event_id, _ in piece],
                [storable(reason, encoding) for _, (reason, _) in piece],
                [None if where is None else storable(where, encoding) for _, (_, where) in piece],
            )

    def dump(self, encoding: str) -> dict[str, Any]:
        """Return all entries as JSON, for a database of that encoding."""
        return {
            "retries": [
                (event_id, delay.isoformat() if isinstance(delay, datetime) else delay / SECOND)
                for event_id, delay in self._after.items()
            ],
            "letters": [
                letter for piece in self.letters(encoding) for letter in zip(*piece, strict=True)
            ],
        }

    def load(self, dumped: dict[str, Any]) -> None:
        """Replace all entries by dumped ones."""
        self.clear()
        for event_id, delay in dumped.get("retries", ()):
            self.add(event_id, datetime.fromisoformat(delay) if isinstance(delay, str) else delay)
        for event_id, reason, where in dumped.get("letters", ()):
            self._letters[event_id] = (reason, where)


def storable(text: str, encoding: str) -> str:
    """Escape the characters of a text that a database of that encoding cannot store."""
    codec = "utf-8" if encoding == "UTF8" else "ascii"
    return text.replace("\0", "\\x00").encode(codec, "backslashreplace").decode(codec)
