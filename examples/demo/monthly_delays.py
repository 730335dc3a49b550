"""The demo's `SparkConsumer`: flights and delay by carrier and month.

It gets whole tick ranges as DataFrames, aggregates them in Spark, and adds the few
resulting rows to a table, in the transaction that finishes the batch.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pgqpy
from examples.demo import MONTHLY_DELAYS, QUEUE, READY
from examples.demo.results import log_batch
from pgqpy_consumers.spark import EVENT_SCHEMA, SparkConsumer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The rows that each event adds (sign 1) and subtracts (sign -1). An event is counted once.
ROWS = """
inline(
    case get_json_object(ev_type, '$.op')
        when 'INSERT' then array(struct(1 as sign, 1 as events, ev_data as row))
        when 'UPDATE' then array(struct(1 as sign, 1 as events, ev_data as row),
                                 struct(-1 as sign, 0 as events, ev_extra2 as row))
        when 'DELETE' then array(struct(-1 as sign, 1 as events, ev_data as row))
    end)
"""

FLIGHT = "from_json(row, 'carrier string, scheduled timestamp, arr_delay int') as flight"

ADD = """
insert into pgqpy_demo.delay_by_month as kept (carrier, month, flights, delay)
select * from unnest(%s::text[], %s::date[], %s::int8[], %s::int8[])
on conflict (carrier, month) do update
   set flights = kept.flights + excluded.flights,
       delay = kept.delay + excluded.delay
"""


def totals(df: DataFrame) -> DataFrame:
    """Return the changes by carrier and month: carrier, month, flights, delay, events."""
    from pyspark.sql import functions as f

    delay = f.coalesce("flight.arr_delay", f.lit(0))
    return (
        df.selectExpr(ROWS)
        .selectExpr("sign", "events", FLIGHT)
        .groupBy("flight.carrier", f.trunc("flight.scheduled", "month").alias("month"))
        .agg(
            f.sum("sign").alias("flights"),
            f.sum(f.col("sign") * delay).alias("delay"),
            f.sum("events").alias("events"),
        )
        .orderBy("carrier", "month")
    )


class MonthlyDelays(SparkConsumer):
    """Counts flights and adds up their delay, by carrier and month."""

    queue = QUEUE
    consumer = MONTHLY_DELAYS

    def process_batch(self, spark: SparkSession, batch: pgqpy.Batch, df: DataFrame) -> None:
        received = time.time()
        rows = totals(df).collect()
        if not rows:
            return
        carriers, months, flights, delays, events = zip(*rows, strict=True)
        self.conn.execute(ADD, (list(carriers), list(months), list(flights), list(delays)))
        log_batch(self.conn, MONTHLY_DELAYS, batch.id, received, sum(events))


if __name__ == "__main__":
    consumer = MonthlyDelays()
    consumer.register()
    # The first job of a session takes seconds, so it runs before any event waits.
    nothing = consumer.spark.range(1).mapInArrow(lambda _: iter(()), EVENT_SCHEMA)
    totals(nothing).collect()
    print(READY, flush=True)
    consumer.run()
