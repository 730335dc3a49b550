"""PgQ's C version and its Python client, unchanged, run by Debian's Python. It needs pgqd."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pgq
import psycopg2

from benchmarks.programs import protocol

CONFIG = """
[worker]
job_name = worker
db = {dsn}
queue_name = q
logfile = {directory}/log
pidfile = {directory}/pid
use_skylog = 0
"""


def install(dsn: str) -> None:
    with psycopg2.connect(dsn) as conn, conn.cursor() as cursor:
        cursor.execute("create extension pgq")
        cursor.execute("select pgq.create_queue('q')")
        cursor.execute("select pgq.register_consumer('q', 'worker')")


def send(dsn: str, payloads: Iterator[str]) -> None:
    conn = psycopg2.connect(dsn)
    conn.autocommit = True
    cursor = conn.cursor()
    for payload in payloads:
        pgq.insert_event(cursor, "q", "item", payload)


def bulk(dsn: str, payloads: Iterator[str]) -> None:
    with psycopg2.connect(dsn) as conn, conn.cursor() as cursor:
        now = datetime.now(UTC)
        rows = [[now, "item", payload] for payload in payloads]
        pgq.bulk_insert_events(cursor, rows, ["time", "type", "data"], "q")


def work(dsn: str, log: protocol.Log) -> None:
    class Worker(pgq.Consumer):  # type: ignore[misc]
        def process_event(self, db: Any, ev: Any) -> None:
            log.take(ev.data)

        def process_batch(self, db: Any, batch_id: int, event_list: Any) -> None:
            super().process_batch(db, batch_id, event_list)
            if log.complete:
                self.stop()

    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "ini")
        config.write_text(CONFIG.format(dsn=dsn.replace("%", "%%"), directory=directory))
        worker = Worker("worker", "db", ["-q", str(config)])
        log.ready()
        worker.start()


if __name__ == "__main__":
    protocol.main(install, send, bulk, work)
