"""Workers of a consumer group behind PgBouncer in transaction mode: leases need no session."""

from __future__ import annotations

from datetime import timedelta

import pgqpy
from tests.fixtures.fix_client import Background, Tick
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_pool import Pool
from tests.fixtures.fix_ticker import eventually


class Worker(pgqpy.GroupConsumer):
    queue = "test_queue"
    consumer = "group"
    partitions = 4
    poll_interval = 0.02
    lease = timedelta(seconds=2)
    retry_policy = pgqpy.FixedDelay(0, attempts=None)

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        conn.execute("insert into effect (key, data) values (%s, %s)", [event.extra1, event.data])
        if event.data == "3" and not event.retry_count:
            raise ValueError


def test_workers_share_through_a_pool_with_fewer_sessions_than_they_have(
    pool: Pool, conn: Connection, queue: str, tick: Tick, background: Background
) -> None:
    conn.execute("create table effect (nr serial, key text, data text)")
    dsn = pool("transaction", size=4)
    workers = [Worker(dsn, worker_name=f"w{number}", prepare_threshold=None) for number in range(3)]
    threads = [background(worker) for worker in workers]
    eventually(
        conn,
        "select coalesce((select workers = 3 from pgq.get_group_info()), false)"
        " and (select count(distinct worker) = 3 and count(worker) = 4"
        " from pgq.get_group_partitions('test_queue', 'group'))",
        patience=120,
    )
    for number in range(6):
        conn.execute(
            "select pgq.insert_event(%s, 't', %s, 'k' || k, null, null, null)"
            " from generate_series(1, 10) k",
            [queue, str(number)],
        )
        tick()
        if number == 3:
            workers[0].stop()
            threads[0].join()
    eventually(conn, "select count(*) = 60 from effect", patience=120)
    found = conn.execute("select array_agg(data order by nr) from effect group by key").fetchall()
    assert found == [([str(number) for number in range(6)],)] * 10
