"""pgmq by its SQL functions: a worker that polls in the server, and deletes handled messages."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
from psycopg.types.json import Jsonb

from benchmarks.programs import protocol

# 30 s until a message is visible again, 100 at once, the server's default poll: 5 s, 100 ms
READ = f"select msg_id, message from pgmq.read_with_poll('q', 30, {1 if protocol.SINGLY else 100})"


def install(dsn: str) -> None:
    """Make the queue; its SQL file is installed already."""
    with psycopg.connect(dsn) as conn:
        conn.execute("select pgmq.create('q')")


def send(dsn: str, payloads: Iterator[str]) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        for payload in payloads:
            conn.execute("select pgmq.send('q', %s)", [Jsonb({"sent": payload})])


def bulk(dsn: str, payloads: Iterator[str]) -> None:
    with psycopg.connect(dsn) as conn:
        messages = [Jsonb({"sent": payload}) for payload in payloads]
        conn.execute("select count(*) from pgmq.send_batch('q', %s)", [messages])


def work(dsn: str, log: protocol.Log) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        log.ready()
        while not log.complete:
            done = []
            for msg_id, message in conn.execute(READ):
                log.take(message["sent"])
                done.append(msg_id)
            conn.execute("select count(*) from pgmq.delete('q', %s::bigint[])", [done])


if __name__ == "__main__":
    protocol.main(install, send, bulk, work)
