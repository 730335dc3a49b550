"""Events of a batch that shall come again."""

from __future__ import annotations

from datetime import datetime, timedelta


class Retries:
    """Collects them while the batch is processed; all are sent together when it is finished."""

    def __init__(self) -> None:
        self._after: dict[int, timedelta | datetime] = {}

    def __len__(self) -> int:
        return len(self._after)

    def add(self, event_id: int, after: float | timedelta | datetime) -> None:
        """Note an event; for one that is noted already, the later call wins."""
        if isinstance(after, datetime):
            if after.tzinfo is None:
                raise ValueError("the time to retry at needs a time zone")
        elif not isinstance(after, timedelta):
            after = timedelta(seconds=after)
        if isinstance(after, timedelta) and after < timedelta():
            raise ValueError("the delay to retry after is negative")
        self._after[event_id] = after

    def clear(self) -> None:
        """Forget all: the batch starts over."""
        self._after.clear()

    def columns(self) -> tuple[list[int], list[datetime | None], list[timedelta | None]]:
        """Event ids, times and delays, as arrays of one length; of the latter two one is set."""
        whens = self._after.values()
        return (
            list(self._after),
            [when if isinstance(when, datetime) else None for when in whens],
            [when if isinstance(when, timedelta) else None for when in whens],
        )
