"""RemoteConsumer and TrackedConsumer with a PgBouncer in transaction mode on either side."""

from __future__ import annotations

import pytest

import pgqpy
from pgqpy import Event, Producer, RemoteConsumer, TrackedConsumer
from tests.fixtures.fix_client import Tick
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_pool import Pool


class Remote(RemoteConsumer):
    consumer = "copy"

    def process_remote_event(self, target: pgqpy.Connection, event: Event) -> None:
        target.execute("insert into effect values (%s)", [event.data])


class Tracked(TrackedConsumer):
    consumer = "copy"

    def process_tracked_event(self, target: pgqpy.Connection, event: Event) -> None:
        target.execute("insert into effect values (%s)", [event.data])


@pytest.mark.parametrize("kind", [Remote, Tracked])
def test_poolers_in_transaction_mode_are_no_obstacle(
    pool: Pool, conn: Connection, queue: str, tick: Tick, kind: type[Remote | Tracked]
) -> None:
    conn.execute("create table effect (data text)")
    # One for each of a transaction of the queue, one of the target, and a COPY.
    pooled = pool("transaction", size=3)
    consumer = kind(pooled, target_dsn=pooled, queue=queue)
    consumer.run(until_empty=True)
    for data in "abc":
        Producer(queue).insert_events(conn, [("t", data)] * 150)
        tick()
    consumer.run(until_empty=True)
    consumer.run(until_empty=True)
    rows = conn.execute("select data, count(*) from effect group by 1 order by 1").fetchall()
    assert rows == [("a", 150), ("b", 150), ("c", 150)]
