"""The results: the consumers' tables beside the application's, and measurements from their logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]

Totals = Mapping[Any, tuple[int, int]]
"""Flights and minutes of delay by carrier, or by carrier and month."""

# The months are in UTC everywhere: consumers do not know the session's time zone.
BY_MONTH = """
select carrier, date_trunc('month', scheduled at time zone 'UTC')::date,
       count(*), coalesce(sum(arr_delay), 0)
  from pgqpy_demo.flight
 group by 1, 2
"""
KEPT_BY_CARRIER = """
select carrier, flights, delay
  from pgqpy_demo.delay_by_carrier
 where (flights, delay) <> (0, 0)
"""
KEPT_BY_MONTH = """
select carrier, month, flights, delay
  from pgqpy_demo.delay_by_month
 where (flights, delay) <> (0, 0)
"""
LOG_BATCH = """
insert into pgqpy_demo.batch_log (consumer, batch_id, received_at, events, txids)
values (%s, %s, %s, %s, %s)
"""
BATCHES = """
select received_at, events, txids
  from pgqpy_demo.batch_log
 where consumer = %s
 order by batch_id
"""
DELIVERED = "select consumer, sum(events) from pgqpy_demo.batch_log group by consumer"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Totals computed in three ways; None without Spark."""

    application: Totals
    consumer: Totals
    spark: Totals | None
    application_by_month: Totals
    spark_by_month: Totals | None

    @property
    def equal(self) -> bool:
        """Whether all of them agree exactly, in flights and minutes."""
        return self.consumer == self.application and (
            self.spark_by_month is None or self.spark_by_month == self.application_by_month
        )


def compare(conn: Connection, *, spark: bool) -> Comparison:
    """Read everything in one snapshot."""
    with conn.transaction():
        conn.execute("set transaction isolation level repeatable read, read only")
        by_month = _totals(conn, BY_MONTH)
        spark_by_month = _totals(conn, KEPT_BY_MONTH) if spark else None
        return Comparison(
            _by_carrier(by_month),
            _totals(conn, KEPT_BY_CARRIER),
            None if spark_by_month is None else _by_carrier(spark_by_month),
            by_month,
            spark_by_month,
        )


def _totals(conn: Connection, query: str) -> Totals:
    totals: dict[Any, tuple[int, int]] = {}
    for *key, flights, delay in conn.execute(query):
        totals[key[0] if len(key) == 1 else tuple(key)] = (flights, int(delay))
    return totals


def _by_carrier(by_month: Totals) -> Totals:
    totals: dict[str, tuple[int, int]] = {}
    for (carrier, _month), (flights, delay) in by_month.items():
        before = totals.get(carrier, (0, 0))
        totals[carrier] = (before[0] + flights, before[1] + delay)
    return totals


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed transaction, as the application knows it."""

    txid: int
    at: float
    """Just before COMMIT was sent, in seconds since 1970."""
    rows: int
    """Rows inserted, updated and deleted: the number of events to be delivered."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A batch, as its consumer knows it."""

    at: float
    """The time at which the consumer's method was called, in seconds since 1970."""
    events: int
    txids: Sequence[int]
    """The transactions that were delivered; empty if the consumer does not log them."""


def log_batch(
    conn: Connection,
    consumer: str,
    batch_id: int,
    received: float,
    events: int,
    txids: Iterable[int] = (),
) -> None:
    """Log a batch, in the transaction that finishes it."""
    conn.execute(LOG_BATCH, (consumer, batch_id, received, events, sorted(txids)))


def batches(conn: Connection, consumer: str) -> list[Delivery]:
    """Return a consumer's batches, in their order."""
    return [Delivery(*row) for row in conn.execute(BATCHES, (consumer,))]


def delivered(conn: Connection) -> dict[str, int]:
    """Return the number of events that each consumer has finished."""
    return {name: int(events) for name, events in conn.execute(DELIVERED)}


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

    def latencies(self) -> list[tuple[float, float]]:
        """Return the times of commits, and the seconds from there to the delivery of the events."""
        received = {txid: delivery.at for delivery in self.deliveries for txid in delivery.txids}
        return [
            (commit.at, received[commit.txid] - commit.at)
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
