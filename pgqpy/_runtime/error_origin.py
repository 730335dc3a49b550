"""The origin of an error: its database, in programs with several databases, and its event."""

from __future__ import annotations

from contextlib import suppress

from pgqpy.errors import comes_from, origin

__all__ = ["blame", "blamed", "comes_from", "origin"]

_EVENT = "pgqpy_event_id"


def blame(event_id: int, error: BaseException) -> None:
    """Mark an error as raised by the processing of an event."""
    # Some errors take no attributes.
    with suppress(Exception):
        setattr(error, _EVENT, event_id)


def blamed(error: BaseException) -> int | None:
    """Return the id of the event whose processing raised the error, if it is marked."""
    found: int | None = getattr(error, _EVENT, None)
    return found
