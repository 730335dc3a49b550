"""PgQ's C version and its Python client, unchanged, run by Debian's Python. It needs pgqd."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pgq
import psycopg2

from benchmarks.programs import protocol

CONFIG = """
[{name}]
job_name = {name}
db = {dsn}
queue_name = q
logfile = {directory}/log
pidfile = {directory}/pid
use_skylog = 0
{settings}
"""


@contextmanager
def configured(
    kind: type[pgq.Consumer], name: str, dsn: str, settings: Mapping[str, int]
) -> Iterator[Any]:
    """A consumer with a configuration file, which is there during the block."""
    lines = "\n".join(f"{setting} = {value}" for setting, value in settings.items())
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "ini")
        escaped = dsn.replace("%", "%%")
        config.write_text(
            CONFIG.format(name=name, dsn=escaped, directory=directory, settings=lines)
        )
        yield kind(name, "db", ["-q", str(config)])


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

    with configured(Worker, "worker", dsn, {}) as worker:
        log.ready()
        worker.start()


if __name__ == "__main__":
    protocol.main(install, send, bulk, work)
