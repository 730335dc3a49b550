"""A consumer that computes in Spark: each batch is one DataFrame.

Needs Java 17 or newer. Make the queue (``pgqpy queue create orders``), run the ticker
(``pgqpy ticker``), this, and then ``examples/producer.py``; the database is named by --dsn,
PGQPY_DSN or libpq's variables. Ctrl-C or SIGTERM stops it after the batch::

    python examples/spark_consumer.py
    python examples/spark_consumer.py --once    # what is there now, for a scheduler

Without the last two lines, ``pgqpy spark run examples/spark_consumer.py:OrderStatistics`` does
the same. On a cluster, executors need ``pgqpy[spark]``, and to reach the database by the name
that is in the DSN::

    spark-submit --master yarn examples/spark_consumer.py --dsn postgresql://db.example/shop
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pgqpy
from pgqpy_consumers.spark import SparkConsumer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class OrderStatistics(SparkConsumer):
    """Shows how many events of each type a batch has."""

    queue = "orders"
    consumer = "order_statistics"

    def process_batch(self, spark: SparkSession, batch: pgqpy.Batch, df: DataFrame) -> None:
        for row in df.groupBy("ev_type").count().orderBy("ev_type").collect():
            print(f"batch {batch.id}: {row['count']:,} of {row['ev_type']}", flush=True)


if __name__ == "__main__":
    OrderStatistics.main()
