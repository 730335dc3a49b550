"""A consumer that computes in Spark: each batch is one DataFrame.

Needs Java 17 or newer. Run the ticker (``pgqpy ticker``), this, and then
``examples/producer.py``; the database is named by PGQPY_DSN or libpq's variables. Ctrl-C or
SIGTERM stops it after the batch::

    python examples/spark_consumer.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pgqpy
from pgqpy_consumers.spark import SparkConsumer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class OrderStatistics(SparkConsumer):
    """Shows how many events of each type a batch has."""

    queue_name = "orders"
    consumer_name = "order_statistics"

    def process_batch(self, spark: SparkSession, batch: pgqpy.Batch, df: DataFrame) -> None:
        for row in df.groupBy("ev_type").count().orderBy("ev_type").collect():
            print(f"batch {batch.id}: {row['count']:,} of {row['ev_type']}", flush=True)


def main() -> None:
    with pgqpy.connect() as conn:
        pgqpy.Admin(conn).create_queue("orders")
    statistics = OrderStatistics()
    statistics.register()
    print("waiting for events", flush=True)
    statistics.run()


if __name__ == "__main__":
    main()
