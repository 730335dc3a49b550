"""The history of orders as Parquet, and a part of it sent into another queue again.

Each event is in the archive once, whatever is killed. The programs of the command line,
``pgqpy spark archive`` and ``pgqpy spark replay``, do the same and more.

Needs Java 17 or newer. Run ``examples/spark_shop.py`` first and the ticker (``pgqpy
ticker``); the database is named by PGQPY_DSN or libpq's variables. Ctrl-C stops it, and it
goes on where it was. ``--once`` stops at the newest tick. ``--replay`` sends the French orders
that are in the archive::

    python examples/spark_archive_replay.py --once
    python examples/spark_archive_replay.py --replay french_orders

On a cluster, whose executors need pgqpy[spark] and a way to the database (docs/spark.md, "On a
cluster"), with an archive that every machine of it can reach::

    spark-submit --master spark://host:7077 examples/spark_archive_replay.py \\
        --archive hdfs:///archives/shop
"""

from __future__ import annotations

import argparse

import pgqpy
from pgqpy_consumers.spark import get_session
from pgqpy_consumers.spark.archive import Archive, Commit
from pgqpy_consumers.spark.replay import Replay, Selection

FRENCH = "get_json_object(ev_data, '$.country') = 'FR'"


class ShopArchive(Archive):
    """Says what it has archived."""

    queue = "shop"
    consumer = "shop_archive"

    def on_commit(self, commit: Commit) -> None:
        print(f"{commit.events:,} events up to tick {commit.end.tick}", flush=True)


def replay(archive: str, queue: str) -> None:
    with pgqpy.connect() as conn:
        pgqpy.Admin(conn).create_queue(queue)
    french = Replay(get_session(), archive, Selection(queue="shop", where=FRENCH))
    # ev_extra4 holds the origin of each event, so that it is not taken for a new order.
    french.send(None, queue, mark="ev_extra4")
    for count in french.counts():
        print(f"{count.day}: {count.events:,} orders", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--once", action="store_true", help="stop at the newest tick")
    parser.add_argument("--archive", default="archives/shop", help="a directory")
    parser.add_argument("--replay", metavar="QUEUE", help="send from the archive to this queue")
    arguments = parser.parse_args()

    if arguments.replay:
        replay(arguments.archive, arguments.replay)
    else:
        ShopArchive(path=arguments.archive).run(until_empty=arguments.once)


if __name__ == "__main__":
    main()
