"""From one queue to another through Spark: captured orders become events for the outside.

Exactly once: the queue ``invoices`` remembers the last micro-batch of its writer, in the
transaction that sends the events.

Needs Java 17 or newer. Run ``examples/spark_shop.py`` first and the ticker (``pgqpy
ticker``); the database is named by PGQPY_DSN or libpq's variables. Ctrl-C stops it, and it
goes on where it was. ``--once`` stops at the newest tick::

    python examples/spark_queue_to_queue.py

On a cluster, whose executors need pgqpy[spark] and a way to the database (docs/spark.md, "On a
cluster"), with a checkpoint that every machine of it can reach::

    spark-submit --master spark://host:7077 examples/spark_queue_to_queue.py \\
        --checkpoint hdfs:///checkpoints/queue_to_queue
"""

from __future__ import annotations

import argparse
import signal
from threading import Event

import pgqpy
from pgqpy_consumers.spark import PgqDataSource, get_session, table_schema


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--once", action="store_true", help="stop at the newest tick")
    parser.add_argument("--checkpoint", default="checkpoints/queue_to_queue")
    arguments = parser.parse_args()

    with pgqpy.connect() as conn:
        pgqpy.Admin(conn).create_queue("invoices")
    spark = get_session()
    spark.dataSource.register(PgqDataSource)
    orders = (
        spark.readStream.format("pgq")
        .options(queue="shop", consumer="queue_to_queue", startingPosition="earliest")
        .option("payload", "row")
        .schema(table_schema(None, "shop_order"))
        .load()
    )
    invoices = orders.where("ev_operation = 'INSERT' and amount >= 100").selectExpr(
        "'invoice.' || lower(country) as ev_type",
        "to_json(struct(id as order_id, amount)) as ev_data",
    )
    writer = (
        invoices.writeStream.format("pgq")
        .options(queue="invoices", writer="queue_to_queue")
        .option("checkpointLocation", arguments.checkpoint)
        .trigger(processingTime="1 second")
    )
    if arguments.once:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    print("sending", flush=True)
    # PySpark's own handler raises in the middle of whatever is asking Java.
    stop = Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    while not stop.is_set() and not query.awaitTermination(1):
        pass
    query.stop()


if __name__ == "__main__":
    main()
