"""Comparison of the consumers' tables with a query over the application's table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

Totals = Mapping[Any, tuple[int, int]]
"""Flights and minutes of delay by carrier, or by carrier and month."""

BY_CARRIER = """
select carrier, count(*), coalesce(sum(arr_delay), 0)
  from pgqpy_demo.flight
 group by carrier
"""

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

NAMES = "select carrier, name from pgqpy_demo.airline"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Totals computed in three ways. Without Spark its two are None."""

    names: Mapping[str, str]
    application: Totals
    consumer: Totals
    application_by_month: Totals
    spark_by_month: Totals | None

    @property
    def spark(self) -> Totals | None:
        """Return Spark's totals by carrier: the sums over its months."""
        if self.spark_by_month is None:
            return None
        totals: dict[str, tuple[int, int]] = {}
        for (carrier, _month), (flights, delay) in self.spark_by_month.items():
            before = totals.get(carrier, (0, 0))
            totals[carrier] = (before[0] + flights, before[1] + delay)
        return totals

    @property
    def equal(self) -> bool:
        """Whether all of them agree exactly, in flights and minutes."""
        return self.consumer == self.application and (
            self.spark_by_month is None or self.spark_by_month == self.application_by_month
        )


def compare(conn: psycopg.Connection[Any], *, spark: bool) -> Comparison:
    """Read everything in one snapshot."""
    with conn.transaction():
        conn.execute("set transaction isolation level repeatable read, read only")
        return Comparison(
            names=dict(conn.execute(NAMES).fetchall()),
            application=_totals(conn, BY_CARRIER),
            consumer=_totals(conn, KEPT_BY_CARRIER),
            application_by_month=_totals(conn, BY_MONTH),
            spark_by_month=_totals(conn, KEPT_BY_MONTH) if spark else None,
        )


def _totals(conn: psycopg.Connection[Any], query: str) -> Totals:
    totals: dict[Any, tuple[int, int]] = {}
    for *key, flights, delay in conn.execute(query):
        totals[key[0] if len(key) == 1 else tuple(key)] = (flights, int(delay))
    return totals
