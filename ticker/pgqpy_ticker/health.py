"""The state of a database's worker: written by the worker, read by the endpoint."""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field

from pgqpy_ticker.failures import Failures


class State(enum.Enum):
    """The life of a worker.

    ::

        AWAY ──connected──> STANDBY ──won the lock──> LEADING
          ^                    │                         │
          └──── anything went wrong; tried again later ──┘
    """

    AWAY = "away"
    STANDBY = "standby"
    LEADING = "leading"


@dataclass(slots=True)
class Pulse:
    """The state, its reason, and the time of the worker's last heartbeat in that state.

    Other threads read it; each attribute is replaced as a whole.
    """

    state: State = State.AWAY
    reason: str = "starting"
    at: float = field(default_factory=time.monotonic)
    failures: Failures | None = None

    def enter(self, state: State, reason: str = "") -> None:
        self.state, self.reason = state, reason
        self.beat(time.monotonic())

    def beat(self, now: float) -> None:
        """Record a heartbeat: a round of ticks, or an attempt to get the lead."""
        self.at = now

    def healthy(self, now: float, within: float) -> bool:
        """Return whether it ticks or stands by, and no other job of a leader fails."""
        return (
            self.state is not State.AWAY
            and now - self.at <= within
            and not (self.failures and self.failures.now)
        )

    def report(self, now: float, within: float) -> dict[str, object]:
        """Return the report on one database for /healthz."""
        report: dict[str, object] = {
            "state": self.state.value,
            "healthy": self.healthy(now, within),
            "seconds_since_heartbeat": round(now - self.at, 3),
        }
        if self.reason:
            report["reason"] = self.reason
        return report | (self.failures.report() if self.failures else {})
