"""A queue of pgqpy; the ticker is a process of its own, or the worker's with TICKING."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psycopg

from benchmarks.programs import protocol
from pgqpy import BatchStats, Connection, Consumer, Event, Producer
from pgqpy.schema import schema_sql


class Worker(Consumer):
    """Notes when each event arrives."""

    queue = "q"
    consumer = "worker"

    def __init__(self, dsn: str, log: protocol.Log) -> None:
        super().__init__(dsn)
        self.log = log

    def process_event(self, conn: Connection, event: Event) -> None:
        self.log.take(event.data or "")

    def on_batch(self, stats: BatchStats) -> None:
        if self.log.complete:
            self.stop()


def install(dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute(schema_sql().encode())
        conn.execute("select pgq.create_queue('q')")
        # A registered consumer gets the items that are sent from now on.
        conn.execute("select pgq.register_consumer('q', 'worker')")


def send(dsn: str, payloads: Iterator[str]) -> None:
    producer = Producer("q")
    with psycopg.connect(dsn, autocommit=True) as conn:
        for payload in payloads:
            producer.insert_event(conn, "item", payload)


def bulk(dsn: str, payloads: Iterator[str]) -> None:
    with psycopg.connect(dsn) as conn:
        Producer("q").insert_events(conn, (("item", payload) for payload in payloads))


def work(dsn: str, log: protocol.Log) -> None:
    worker = Worker(dsn, log)
    log.ready()
    worker.run(ticker="auto" if "TICKING" in os.environ else None)


if __name__ == "__main__":
    protocol.main(install, send, bulk, work)
