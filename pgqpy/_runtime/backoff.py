"""Pauses between attempts."""

from __future__ import annotations

import random


class Backoff:
    """Pauses in seconds: the first, then each twice the one before, up to a cap.

    Each is shortened by up to a fifth at random, so that clients that failed together do not
    retry together.
    """

    def __init__(self, first: float, cap: float) -> None:
        self.first = first
        self.cap = cap
        self._next = min(first, cap)

    def pause(self) -> float:
        """The seconds to wait now; the next pause will be longer."""
        pause = self._next
        self._next = min(pause * 2, self.cap)
        return pause * random.uniform(0.8, 1.0)

    def reset(self) -> None:
        """Start again with the first pause, after an attempt that succeeded."""
        self._next = min(self.first, self.cap)
