"""Parts of several consumers: pieces of a batch, and names of events."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from pgqpy import Event

T = TypeVar("T")


def pieces(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of up to ``size``."""
    rest = iter(items)
    while piece := list(islice(rest, size)):
        yield piece


def identity(event: Event, *scope: str) -> str:
    """A name that is the same at each delivery, for systems outside the database: the event's id,
    and a digest of id, time and ``scope`` (the queue and the receiver).

    The time tells databases apart, and a queue from an earlier one of the same name.
    """
    text = "\n".join((*scope, str(event.id), event.time.isoformat()))
    return f"{event.id}.{hashlib.sha256(text.encode()).hexdigest()[:20]}"
