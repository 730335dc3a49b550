"""Snapshots of the source: the transactions that they see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A ``txid_snapshot``: all below ``xmin`` and none from ``xmax`` on are visible."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Self:
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(map(int, filter(None, running.split(",")))))

    def sees(self, txid: int) -> bool:
        """Whether the transaction's changes are visible."""
        return txid < self.xmin or (txid < self.xmax and txid not in self.running)

    def covers(self, earlier: Snapshot) -> bool:
        """Whether it sees all that the other one sees."""
        return self.xmax >= earlier.xmax and not any(map(earlier.sees, self.running))
