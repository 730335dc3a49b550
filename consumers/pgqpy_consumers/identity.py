"""A name that an event keeps however often it comes, for those outside who must know it again."""

from __future__ import annotations

import hashlib

from pgqpy import Event


def identity(event: Event, *scope: str) -> str:
    """The event's id and a digest of it, its time and ``scope``: of which queue it is, for whom.

    The time tells databases apart, and a queue from one that had its name before.
    """
    text = "\n".join((*scope, str(event.id), event.time.isoformat()))
    return f"{event.id}.{hashlib.sha256(text.encode()).hexdigest()[:20]}"
