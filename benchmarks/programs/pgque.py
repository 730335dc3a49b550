"""PgQue and its Python client. ``tick`` does the work that pg_cron would do every second."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pgque
import psycopg

from benchmarks.programs import protocol


def install(dsn: str) -> None:
    """Make the queue; its SQL file is installed already."""
    with psycopg.connect(dsn) as conn:
        conn.execute("select pgque.create_queue('q')")
        conn.execute("select pgque.subscribe('q', 'worker')")


def send(dsn: str, payloads: Iterator[str]) -> None:
    with pgque.connect(dsn, autocommit=True) as client:
        for payload in payloads:
            client.send("q", payload, type="item")


def bulk(dsn: str, payloads: Iterator[str]) -> None:
    with pgque.connect(dsn) as client:
        client.send_batch("q", "item", list(payloads))
        client.conn.commit()


def work(dsn: str, log: protocol.Log) -> None:
    worker = pgque.Consumer(dsn, queue="q", name="worker")

    @worker.on("item")  # type: ignore[untyped-decorator]
    def item(message: pgque.Message) -> None:
        log.take(message.payload)
        if log.complete:
            worker.stop()

    log.ready()
    worker.start()


def tick(dsn: str) -> None:
    """Run its loop for a second: it ticks ten times by default, and commits after each."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        while True:
            began = time.monotonic()
            conn.execute("call pgque.ticker_loop()")
            time.sleep(max(0, began + 1 - time.monotonic()))


if __name__ == "__main__":
    if sys.argv[1] == "tick":
        tick(sys.argv[2])
    protocol.main(install, send, bulk, work)
