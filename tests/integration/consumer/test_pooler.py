"""Consumers behind PgBouncer: no session is theirs alone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import pgqpy
from pgqpy import Event, RemoteConsumer, TrackedConsumer
from pgqpy._runtime.acompat import Waker
from pgqpy._runtime.io import Io
from pgqpy._runtime.listener import Subscription
from tests.fixtures.fix_client import PATIENCE, Background, Send, Tick, wait_until
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_pool import Pool
from tests.fixtures.fix_ticker import eventually


@pytest.mark.parametrize("size", [1, 5])
def test_listening_in_transaction_mode_is_not_trusted(pool: Pool, queue: str, size: int) -> None:
    io = Io()
    subscription = Subscription(io, pool("transaction", size=size), queue)
    wait_until(lambda: io.run(subscription.open()))
    assert not subscription.works
    io.run(subscription.close())


def test_listening_in_session_mode_is_trusted_once_a_tick_was_heard(
    pool: Pool, queue: str, tick: Tick
) -> None:
    io = Io()
    subscription = Subscription(io, pool("session"), queue)
    wait_until(lambda: io.run(subscription.open()))
    at_first = subscription.works
    tick()
    waker: Any = Waker()
    io.run(subscription.wait(waker, PATIENCE))
    assert subscription.newest
    assert (at_first, subscription.works) == (False, True)
    io.run(subscription.close())
    waker.close()


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
    pool: Pool, conn: Connection, queue: str, send: Send, kind: type[Remote | Tracked]
) -> None:
    conn.execute("create table effect (data text)")
    # One for each of a transaction of the queue, one of the target, and a COPY.
    pooled = pool("transaction", size=3)
    consumer = kind(pooled, target_dsn=pooled, queue=queue)
    consumer.run(until_empty=True)
    for data in "abc":
        send(data * 150)
    consumer.run(until_empty=True)
    consumer.run(until_empty=True)
    rows = conn.execute("select data, count(*) from effect group by 1 order by 1").fetchall()
    assert rows == [("a", 150), ("b", 150), ("c", 150)]


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
