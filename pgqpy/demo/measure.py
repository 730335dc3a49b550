"""Measurements of the run, from two logs: commits and deliveries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pgqpy.demo.application import Commit
from pgqpy.demo.batch_log import Delivery


@dataclass(frozen=True, slots=True)
class Latency:
    """The time from a transaction's commit to the delivery of its events, in seconds."""

    committed_at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Measurements:
    """The data of the report and the chart. Times are seconds since 1970."""

    commits: Sequence[Commit]
    """The commits, in order of time."""
    deliveries: Sequence[Delivery]
    """Deliveries to the pgqpy.Consumer."""
    ranges: Sequence[Delivery]
    """Deliveries to the SparkConsumer; empty without Spark."""
    rollbacks: int
    ticks: int
    rotations: int

    @property
    def events(self) -> int:
        """The number of events committed."""
        return sum(commit.rows for commit in self.commits)

    @property
    def start(self) -> float:
        """The time of the first commit."""
        return self.commits[0].at

    def events_in_per_second(self) -> float:
        """The rate from the first to the last commit."""
        return self.events / max(self.commits[-1].at - self.start, 1e-3)

    def events_out_per_second(self) -> float:
        """The rate from the first commit to the last delivery, to the pgqpy.Consumer."""
        return self.events / max(self.deliveries[-1].at - self.start, 1e-3)

    def latencies(self) -> list[Latency]:
        """Return one for each transaction that was delivered, in order of their commits."""
        received = {txid: delivery.at for delivery in self.deliveries for txid in delivery.txids}
        return [
            Latency(commit.at, received[commit.txid] - commit.at)
            for commit in self.commits
            if commit.txid in received
        ]


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the smallest value that at least ``percent`` per cent of the values do not exceed."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank), 1) - 1]
