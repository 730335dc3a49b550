"""What the run was like, from two logs: what was committed when, and what was delivered when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pgqpy.demo.application import Commit
from pgqpy.demo.batch_log import Delivery


@dataclass(frozen=True, slots=True)
class Latency:
    """How long a transaction's events were on their way, in seconds."""

    committed_at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Measurements:
    """All that the report and the chart are made of. Times are seconds since 1970."""

    commits: Sequence[Commit]
    """In order of time."""
    deliveries: Sequence[Delivery]
    """To the pgqpy.Consumer."""
    ranges: Sequence[Delivery]
    """To the SparkConsumer; empty without Spark."""
    rollbacks: int
    ticks: int
    rotations: int

    @property
    def events(self) -> int:
        """Events committed."""
        return sum(commit.rows for commit in self.commits)

    @property
    def start(self) -> float:
        """The first commit."""
        return self.commits[0].at

    def events_in_per_second(self) -> float:
        """From the first to the last commit."""
        return self.events / max(self.commits[-1].at - self.start, 1e-3)

    def events_out_per_second(self) -> float:
        """From the first commit to the last delivery, to the pgqpy.Consumer."""
        return self.events / max(self.deliveries[-1].at - self.start, 1e-3)

    def latencies(self) -> list[Latency]:
        """One for each transaction that was delivered, in order of their commits."""
        received = {txid: delivery.at for delivery in self.deliveries for txid in delivery.txids}
        return [
            Latency(commit.at, received[commit.txid] - commit.at)
            for commit in self.commits
            if commit.txid in received
        ]


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that at least ``percent`` per cent of the values do not exceed."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank), 1) - 1]
