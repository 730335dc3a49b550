"""A position in a queue that stays valid when the tick log forgets the tick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Offset:
    """A tick of a queue, with everything needed to read from there or up to there.

    Early ticks leave the tick log when it rotates, so the snapshot comes along.
    """

    queue: str
    """The queue's fingerprint: `ranges.fingerprint`. Not its name."""
    tick: int
    """Id of the tick."""
    seq: int
    """The event sequence at the tick: differences estimate numbers of events."""
    snapshot: str
    """The tick's snapshot, as PostgreSQL writes a txid_snapshot: ``xmin:xmax:xip,xip``."""

    def to_dict(self) -> dict[str, Any]:
        """The form that Spark keeps in a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """The offset that a checkpoint holds."""
        return cls(
            queue=str(stored["queue"]),
            tick=int(stored["tick"]),
            seq=int(stored["seq"]),
            snapshot=str(stored["snapshot"]),
        )
