"""Cutting a batch into slices that executors read side by side.

A batch is a set of events that any connection can read repeatedly, because its query holds the
snapshots as literals. A slice is that query and a range of event ids.

Ranges of transaction ids would not help with a batch that one large transaction wrote. Ranges of
event ids balance in any case, and keep PgQ's order: slice after slice, a batch is read in order of
ev_id.
"""

from __future__ import annotations

from dataclasses import dataclass

# Each slice costs a connection and a task, however small it is.
EVENTS_PER_SLICE = 5_000

# Where Spark does not say how many tasks run at a time.
DEFAULT_PARTITIONS = 8


@dataclass(frozen=True, slots=True)
class Slice:
    """The events with ``lower <= ev_id < upper``; None is open."""

    lower: int | None
    upper: int | None

    def condition(self) -> str:
        """The slice as a condition in SQL. Integers only, so nothing to quote."""
        bounds = []
        if self.lower is not None:
            bounds.append(f"ev_id >= {self.lower:d}")
        if self.upper is not None:
            bounds.append(f"ev_id < {self.upper:d}")
        return " and ".join(bounds) or "true"


def slices_between(seq_start: int, seq_end: int, most: int) -> list[Slice]:
    """Slices of the events between two ticks, ``most`` of them at most.

    The event sequence at the two ticks gives the approximate number of events and their ids:
    others may have been committed late, or may be retried.
    """
    wanted = -(-(seq_end - seq_start) // EVENTS_PER_SLICE)
    return cut(seq_start + 1, seq_end, max(min(wanted, most), 1))


def cut(first: int, last: int, parts: int) -> list[Slice]:
    """Cut the ids from ``first`` to ``last`` into at most ``parts`` slices of equal width.

    The outermost slices are open: every id is in exactly one slice, even outside the range.
    """
    if parts < 1:
        raise ValueError(f"parts is {parts}, must be at least 1")
    width = max(last - first + 1, 1)
    parts = min(parts, width)
    edges = [first + width * part // parts for part in range(1, parts)]
    return [
        Slice(lower, upper) for lower, upper in zip([None, *edges], [*edges, None], strict=True)
    ]
