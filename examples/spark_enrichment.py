"""Orders, each with its tax, written back to PostgreSQL exactly once by ``foreachBatch``.

The orders of a micro-batch, and which micro-batch it was, are one transaction. If the driver dies
behind it and before Spark has noted the same, the micro-batch comes again and is recognised. So
``order_tax`` needs no key to keep orders from being there twice.

Needs Java 17 or newer. Run ``examples/spark_shop.py`` first and the ticker (``pgqpy
ticker``); the database is named by PGQPY_DSN or libpq's variables. Ctrl-C stops it, and it
goes on where it was. ``--once`` stops at the newest tick::

    python examples/spark_enrichment.py

On a cluster, whose executors need pgqpy[spark] and a way to the database (docs/spark.md, "On a
cluster"), with a checkpoint that every machine of it can reach::

    spark-submit --master spark://host:7077 examples/spark_enrichment.py \\
        --checkpoint hdfs:///checkpoints/enrichment
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

TABLES = """
create table if not exists country (
    country  text primary key,
    name     text not null,
    vat      numeric(3, 2) not null
);
insert into country values ('DE', 'Germany', 0.19), ('FR', 'France', 0.20) on conflict do nothing;
create table if not exists order_tax (
    order_id  bigint not null,
    country   text,
    tax       numeric
);
create table if not exists spark_batch (
    query_id    uuid primary key,
    last_batch  bigint not null
);
"""

# A query's id is kept in its checkpoint: with a new checkpoint, batches are numbered anew.
REMEMBER = """
insert into spark_batch as known values (%s, %s)
on conflict (query_id) do update set last_batch = excluded.last_batch
 where known.last_batch < excluded.last_batch
"""


def write(df: DataFrame, batch_id: int) -> None:
    """Write a micro-batch, unless it is there."""
    spark = df.sparkSession
    query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    with pgqpy.connect() as conn, conn.cursor() as cursor:
        if not cursor.execute(REMEMBER, (query_id, batch_id)).rowcount:
            print(f"batch {batch_id} is there already", flush=True)
            return
        countries = spark.createDataFrame(
            cursor.execute("select country, name, vat from country").fetchall(),
            "country string, name string, vat decimal(3, 2)",
        )
        taxed = (
            df.where("ev_operation = 'INSERT'")
            .join(F.broadcast(countries), "country", "left")
            .selectExpr("id", "name", "amount * vat as tax")
            .collect()
        )
        with cursor.copy("copy order_tax from stdin") as copy:
            for row in taxed:
                copy.write_row(row)
    print(f"batch {batch_id}: {len(taxed):,} orders", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--once", action="store_true", help="stop at the newest tick")
    parser.add_argument("--checkpoint", default="checkpoints/enrichment")
    arguments = parser.parse_args()

    with pgqpy.connect() as conn:
        conn.execute(TABLES)
    spark = get_session()
    spark.dataSource.register(PgqDataSource)
    orders = (
        spark.readStream.format("pgq")
        .options(queue="shop", consumer="enrichment", startingPosition="earliest")
        .options(payload="row", maxEventsPerTrigger=100_000)  # the driver holds a micro-batch
        .schema(table_schema(None, "shop_order"))
        .load()
    )
    writer = (
        orders.writeStream.foreachBatch(write)
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
