"""Captured orders to revenue by day: a streaming aggregation with a watermark.

A day stays open until an order is seen that was placed three days after its end; what comes
later is left out. The table ``daily_revenue`` has the totals; a micro-batch that is repeated
after a crash writes the same ones again.

Needs Java 17 or newer. Run ``examples/spark_shop.py`` first and the ticker (``pgqpy
ticker``); the database is named by PGQPY_DSN or libpq's variables. Ctrl-C stops it, and it
goes on where it was. ``--once`` stops at the newest tick::

    python examples/spark_daily_revenue.py

On a cluster, whose executors need pgqpy[spark] and a way to the database (docs/spark.md, "On a
cluster"), with a checkpoint that every machine of it can reach::

    spark-submit --master spark://host:7077 examples/spark_daily_revenue.py \\
        --checkpoint hdfs:///checkpoints/daily_revenue
"""

from __future__ import annotations

import argparse
import signal
from threading import Event
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

import pgqpy
from pgqpy_consumers.spark import PgqDataSource, get_session, table_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLE = """
create table if not exists daily_revenue (
    day      date primary key,
    orders   bigint not null,
    revenue  numeric not null
)
"""

KEEP = """
insert into daily_revenue values (%s, %s, %s)
on conflict (day) do update set orders = excluded.orders, revenue = excluded.revenue
"""


def keep(df: DataFrame, batch_id: int) -> None:
    """Write the days that have changed, with all that they have now."""
    days = df.collect()
    with pgqpy.connect() as conn, conn.cursor() as cursor:
        cursor.executemany(KEEP, days)
    print(f"batch {batch_id}: {len(days)} days", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--once", action="store_true", help="stop at the newest tick")
    parser.add_argument("--checkpoint", default="checkpoints/daily_revenue")
    arguments = parser.parse_args()

    with pgqpy.connect() as conn:
        conn.execute(TABLE)
    spark = get_session()
    spark.conf.set("spark.sql.session.timeZone", "UTC")  # whose midnight ends a day
    spark.dataSource.register(PgqDataSource)
    orders = (
        spark.readStream.format("pgq")
        .options(queue="shop", consumer="daily_revenue", startingPosition="earliest")
        .option("payload", "row")
        .schema(table_schema(None, "shop_order"))
        .load()
    )
    revenue = (
        orders.where("ev_operation = 'INSERT'")
        .withWatermark("placed_at", "3 days")
        .groupBy(F.window("placed_at", "1 day"))
        .agg(F.count("*").alias("orders"), F.sum("amount").alias("revenue"))
        .select(F.to_date("window.start"), "orders", "revenue")
    )
    writer = (
        revenue.writeStream.outputMode("update")
        .foreachBatch(keep)
        .option("checkpointLocation", arguments.checkpoint)
        .trigger(processingTime="1 second")
    )
    if arguments.once:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    # PySpark's own handler raises in the middle of whatever is asking Java.
    stop = Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    while not stop.is_set() and not query.awaitTermination(1):
        pass
    query.stop()


if __name__ == "__main__":
    main()
