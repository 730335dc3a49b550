"""A consumer with a standby: events are read there, and positions are kept on the primary."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import ClassVar

import psycopg
import pytest

import pgqpy
from pgqpy import Admin, AsyncConsumer, Consumer, Event, Producer
from pgqpy.cascade import CascadedConsumer
from pgqpy.errors import InvalidConsumer, NotReplayed
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_client import running, wait_until
from tests.fixtures.fix_standby import HotPair

pytestmark = pytest.mark.slow


class Seen(Consumer):
    """Keeps what it has seen, in a table of the primary."""

    queue = "q"
    consumer = "c"
    backoff_first = backoff_cap = 0.01
    read_patience: float | None = None

    def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
        conn.execute("insert into seen values (%s)", [event.data])


@pytest.fixture(autouse=True)
def queue(hot_pair: HotPair) -> Iterator[None]:
    Admin(hot_pair.conn).create_queue("q")
    hot_pair.conn.execute("create table seen (data text primary key)")
    ops.rotate_whenever_asked(hot_pair.conn, "q")
    ops.register(hot_pair.conn, "q", "c")
    yield
    hot_pair.conn.execute("select pgq.drop_queue('q', true)")
    hot_pair.conn.execute("drop table seen")


def send(hot_pair: HotPair, *datas: str) -> None:
    Producer("q").insert_events(hot_pair.conn, [("t", data) for data in datas])
    ops.tick(hot_pair.conn, "q")


def seen(hot_pair: HotPair) -> list[str]:
    return [data for (data,) in hot_pair.conn.execute("select data from seen order by data")]


def opened(hot_pair: HotPair) -> bool:
    return bool(ops.value(hot_pair.conn, "select true from pgq.subscription where sub_batch > 0"))


def test_events_come_from_the_standby_when_it_has_replayed_them_whatever_is_rotated(
    hot_pair: HotPair,
) -> None:
    consumer = Seen(hot_pair.primary.dsn, read_dsn=hot_pair.standby.dsn)
    with running(consumer):
        send(hot_pair, "a")
        wait_until(lambda: seen(hot_pair) == ["a"])
        hot_pair.pause()
        send(hot_pair, "b", *(f"c {number}" for number in range(1000)))
        wait_until(lambda: opened(hot_pair))
        for _ in range(4):
            ops.tick(hot_pair.conn, "q")
            ops.rotate(hot_pair.conn, "q")
            ops.rotate_logs(hot_pair.conn)
        # The primary has all that is needed, and is not asked.
        assert seen(hot_pair) == ["a"]
        hot_pair.resume()
        wait_until(lambda: len(seen(hot_pair)) == 1002)


def test_asyncio_and_a_worker_that_shares_its_consumer_read_there_too(hot_pair: HotPair) -> None:
    class Worker(Seen, pgqpy.CoopConsumer):
        pass

    class Later(AsyncConsumer):
        queue, consumer, read_patience = "q", "later", None

        async def process_event(self, conn: pgqpy.AsyncConnection, event: Event) -> None:
            await conn.execute("insert into seen values (%s)", [f"later {event.data}"])

    there = hot_pair.standby.dsn
    ops.register(hot_pair.conn, "q", "later")
    hot_pair.pause()
    send(hot_pair, "a")
    with running(Worker(hot_pair.primary.dsn, read_dsn=there)):
        wait_until(lambda: opened(hot_pair))
        assert seen(hot_pair) == []
        hot_pair.resume()
        wait_until(lambda: seen(hot_pair) == ["a"])
    asyncio.run(Later(hot_pair.primary.dsn, read_dsn=there).run(until_empty=True))
    assert seen(hot_pair) == ["a", "later a"]


def test_without_the_standby_the_primary_is_read_or_the_batch_waits(
    hot_pair: HotPair, caplog: pytest.LogCaptureFixture
) -> None:
    class Impatient(Seen):
        read_patience = 0.0

    caplog.set_level(logging.INFO, "pgqpy")
    hot_pair.pause()
    send(hot_pair, "a")
    strict = Seen(hot_pair.primary.dsn, read_dsn=hot_pair.standby.dsn)
    stopped = threading.Timer(0.1, strict.stop)
    stopped.start()
    with pytest.raises(NotReplayed, match="has not replayed tick"):
        strict.run_once()
    stopped.join()
    assert Impatient(hot_pair.primary.dsn, read_dsn=hot_pair.standby.dsn).run_once()
    assert seen(hot_pair) == ["a"]
    assert "batches are read on the primary: the standby has not replayed" in caplog.text
    send(hot_pair, "b")
    Impatient(hot_pair.primary.dsn, read_dsn="host=/nowhere").run(until_empty=True)
    assert seen(hot_pair) == ["a", "b"]
    hot_pair.resume()


def test_a_slow_consumer_does_not_hold_up_replay(hot_pair: HotPair) -> None:
    class Slow(Seen):
        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            if event.data == "0":
                # Replay removes a row that a query on the standby could see.
                hot_pair.conn.execute("delete from bystander")
                hot_pair.conn.execute("vacuum bystander")
                hot_pair.catch_up()
            super().process_event(conn, event)

    hot_pair.conn.execute("create table bystander as select 1")
    size = "x" * 10_000
    send(hot_pair, "0", *(f"{number:04} {size}" for number in range(2000)))
    assert Slow(hot_pair.primary.dsn, read_dsn=hot_pair.standby.dsn).run_once()
    assert len(seen(hot_pair)) == 2001


def test_a_range_that_was_truncated_is_an_error_on_the_standby_and_never_empty(
    hot_pair: HotPair,
) -> None:
    hot_pair.there.execute("alter system set hot_standby_feedback = on")
    hot_pair.there.execute("alter system set wal_receiver_status_interval = '1s'")
    hot_pair.there.execute("select pg_reload_conf()")
    feedback = "select backend_xmin is not null from pg_stat_replication"
    wait_until(lambda: ops.value(hot_pair.conn, feedback))
    ops.insert_ticked(hot_pair.conn, "q", "a")
    ticks = hot_pair.conn.execute("select min(tick_id), max(tick_id) from pgq.tick").fetchone()
    assert ticks is not None
    query = ops.value(hot_pair.conn, "select pgq.tick_range_sql('q', %s, %s)", *ticks)
    hot_pair.catch_up()
    with psycopg.connect(hot_pair.standby.dsn) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("select 1")
        hot_pair.conn.execute("select pgq.unregister_consumer('q', 'c')")
        for _ in range(4):
            ops.tick(hot_pair.conn, "q")
            ops.rotate(hot_pair.conn, "q")
        hot_pair.catch_up()
        # The trap: to this snapshot the tables are empty.
        assert old.execute("select count(*) from pgq_queue.q").fetchone() == (0,)
        with ops.refused("PQ008"):
            old.execute(query)


def test_what_another_server_has_is_not_taken_for_it(hot_pair: HotPair, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as other:
        Admin(other).create_queue("q")
        ops.register(other, "q", "c")
        for _ in range(5):
            ops.tick(other, "q")
        send(hot_pair, "a")
        tick = hot_pair.conn.execute("select max(tick_id), max(tick_time) from pgq.tick").fetchone()
        assert tick is not None
        has = "select pgq.has_replayed('q', %s, %s)"
        hot_pair.catch_up()
        assert ops.value(hot_pair.there, has, *tick)
        assert not ops.value(other, has, *tick)
        with ops.refused("PQ018"):
            other.execute("select pgq.has_replayed('q', %s, %s, true)", tick)
        # As a node of a cascaded queue has it: with the same time, and other events.
        for log in 0, 1:
            other.execute(f"update pgq.tick_{log} set tick_time = %s", tick[1:])
        assert ops.value(other, has, *tick)
        consumer = Seen(hot_pair.primary.dsn, read_dsn=dsn)
        consumer.read_patience = 0.0
        assert consumer.run_once()
        assert seen(hot_pair) == ["a"]


class Keyed(pgqpy.GroupConsumer):
    """A group whose key is the first letter; it parks that of an event that is `bad`."""

    queue, consumer = "q", "g"
    start, key = "first", "left(ev_data, 1)"
    partitions = 1
    batch_size = 1
    poll_interval = backoff_first = backoff_cap = 0.01
    read_patience: float | None = None
    retry_policy = pgqpy.FixedDelay(0, attempts=1)
    bad = ""

    def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
        if event.data == self.bad:
            raise ValueError(event.data)
        conn.execute("insert into seen values (%s)", [event.data])


def test_a_group_reads_there_but_knows_which_keys_are_parked_by_the_primary(
    hot_pair: HotPair,
) -> None:
    primary, there = hot_pair.primary.dsn, hot_pair.standby.dsn
    send(hot_pair, "a1")
    hot_pair.catch_up()
    hot_pair.pause()
    # The standby has the tick, and not the key's function: it lags, and nothing is wrong.
    early = Keyed(primary, read_dsn=there)
    early.read_patience = 0.0
    early.register()
    assert early.run_once()
    assert seen(hot_pair) == ["a1"]
    hot_pair.resume()

    # It has the events, and not that their key is parked meanwhile.
    send(hot_pair, "b1")
    send(hot_pair, "b2", "c1")
    send(hot_pair, "b3", "c2")
    hot_pair.catch_up()
    hot_pair.pause()
    late = Keyed(primary, read_dsn=there)
    late.bad = "b1"
    assert late.run_once()
    assert late.run_once()
    assert seen(hot_pair) == ["a1", "c1"]
    hot_pair.resume()
    hot_pair.catch_up()
    hot_pair.pause()
    # Nor that it is not parked any more.
    late.bad = ""
    pgqpy.GroupAdmin(hot_pair.conn).unpark_key("q", "g")
    late.run(until_empty=True)
    assert seen(hot_pair) == ["a1", "b1", "b2", "b3", "c1", "c2"]
    hot_pair.resume()


def test_a_group_with_asyncio_reads_there_and_keeps_the_order_of_keys(hot_pair: HotPair) -> None:
    class Concurrent(pgqpy.AsyncGroupConsumer):
        queue, consumer, start, key = "q", "g", "first", "left(ev_data, 1)"
        partitions, concurrency, read_patience = 2, 4, None
        done: ClassVar[list[str]] = []

        async def process_event(self, conn: pgqpy.AsyncConnection, event: Event) -> None:
            await asyncio.sleep(0.001 if event.data == "a0" else 0)
            self.done.append(event.data or "")
            await conn.execute("insert into seen values (%s)", [event.data])

    send(hot_pair, *(f"{key}{number}" for number in range(5) for key in "abc"))
    # Only the standby may be asked.
    hot_pair.conn.execute("alter function pgq.group_batch_keys(bigint) rename to hidden")
    hot_pair.catch_up()
    try:
        asyncio.run(
            Concurrent(hot_pair.primary.dsn, read_dsn=hot_pair.standby.dsn).run(until_empty=True)
        )
    finally:
        hot_pair.conn.execute("alter function pgq.hidden(bigint) rename to group_batch_keys")
    assert sorted(Concurrent.done) == seen(hot_pair)
    assert [data for data in Concurrent.done if data[0] == "a"] == ["a0", "a1", "a2", "a3", "a4"]


def test_a_consumer_that_may_change_its_node_refuses_a_standby() -> None:
    kind = type("C", (CascadedConsumer,), {"process_remote_event": lambda self, conn, event: None})
    with pytest.raises(InvalidConsumer, match="can change its provider"):
        kind("host=here", queue="q", consumer="c", read_dsn="host=there").run()


def test_status_and_doctor_say_that_it_is_a_standby(
    hot_pair: HotPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGQPY_DSN", hot_pair.standby.dsn)
    cli = Cli(hot_pair.standby.dsn)
    send(hot_pair, "a", "b")
    hot_pair.catch_up()
    # The primary may write something at any time, and the standby replay it a moment later.
    wait_until(lambda: "standby, 0 s behind" in cli.ok("status"))
    [info] = cli.json("status")["queues"]
    # Sequences are 32 numbers ahead there.
    assert (info["unticked_events"], info["consumers"][0]["pending_events"]) == (0, 2)
    # It gives up what takes seconds, and says so.
    told = "this server is a standby: the ticker leads on the primary"
    wait_until(lambda: told in cli("doctor").output)
    assert "target_session_attrs=read-write" in cli.fails("consumer", "register", "q", "d")
