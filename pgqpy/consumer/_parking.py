"""The events of a batch that are parked."""

from __future__ import annotations

from datetime import timedelta

from pgqpy._runtime.failure import storable


class Parking:
    """The failed events of a batch, and the keys that wait because of them."""

    def __init__(self, keys: dict[int, str] | None = None) -> None:
        #: The keys of all events; None: not read yet, because no event has failed.
        self.keys = keys
        #: The reasons of failed events, and their delays; None: until they are unparked.
        self.failed: dict[int, tuple[str, timedelta | None]] = {}
        self._waiting: set[str] = set()

    def park(self, event_id: int, reason: str, delay: timedelta | None) -> None:
        """Park an event that failed, and those of its key behind it; the keys are known."""
        self.failed[event_id] = reason, delay
        self._waiting.add(self.key_of(event_id))

    def key_of(self, event_id: int) -> str:
        """Return the key of an event; the keys are known."""
        assert self.keys is not None
        return self.keys[event_id]

    def has(self, event_id: int) -> bool:
        """Whether an event with the same key, before this one, has failed."""
        return bool(self._waiting) and self.key_of(event_id) in self._waiting

    def clear(self) -> None:
        """Forget the failures: processing starts again from the first event."""
        self.failed.clear()
        self._waiting.clear()

    def columns(self, encoding: str) -> tuple[list[int], list[str], list[timedelta | None]]:
        """Return event ids, reasons and delays, as arrays of one length."""
        failed = self.failed.values()
        reasons = [storable(reason, encoding) for reason, _ in failed]
        return list(self.failed), reasons, [delay for _, delay in failed]
