"""The primary is killed under load and its standby promoted: all goes on there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psutil
import psycopg
import pytest

import pgqpy
from pgqpy import Consumer, Event
from pgqpy.embedded import Server
from tests.faults.load import QUEUE, Load, drain
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import PATIENCE, running, wait_until
from tests.fixtures.fix_standby import HotPair, started_pair
from tests.fixtures.fix_ticker import StartTicker

pytestmark = pytest.mark.slow


class Watch(Consumer):
    """Remembers what it was given, outside of the database."""

    queue, consumer = QUEUE, "watch"
    backoff_first = backoff_cap = 0.05
    reconnect_cap = 0.1

    def __init__(self, dsn: str, *, read_dsn: str) -> None:
        super().__init__(dsn, read_dsn=read_dsn)
        self.events: dict[int, tuple[int, str]] = {}
        self.changed: list[Event] = []
        self.ticks: list[int] = []

    def process_batch(self, conn: pgqpy.Connection, batch: pgqpy.Batch) -> None:
        conn.execute("set local synchronous_commit = on")
        for event in batch:
            given = event.txid, event.data or ""
            if self.events.setdefault(event.id, given) != given:
                self.changed.append(event)
        self.ticks.append(batch.tick)


def synchronous(pair: HotPair) -> None:
    """Have commits of the primary wait for the standby.

    They do when the checkpointer has read the setting: later than the server has, and not later
    than its next checkpoint.
    """
    pair.conn.execute("alter system set synchronous_standby_names = '*'")
    pair.conn.execute("select pg_reload_conf()")
    wait_until(lambda: ops.value(pair.conn, "show synchronous_standby_names") == "*")
    pair.conn.execute("checkpoint")


def receivers(pair: HotPair) -> list[psutil.Process]:
    """The standby's process that receives, if it has begun to."""
    found = []
    for child in psutil.Process(pair.standby.pid).children():
        with suppress(psutil.NoSuchProcess):
            if "walreceiver" in " ".join(child.cmdline()):
                found.append(child)
    return found


def test_a_promoted_standby_goes_on_with_nothing_lost_or_doubled(
    server: Server, start_ticker: StartTicker
) -> None:
    with started_pair(server.version) as pair:
        synchronous(pair)
        load = Load(pair.dsn)
        pair.conn.execute("select pgq_task.create_queue('mails')")
        pair.conn.execute("select pgq_task.push('mails', '1')")
        watch = Watch(pair.dsn, read_dsn=pair.read_dsn)
        watch.register()
        daemon = start_ticker(pair.dsn, standby_period=0.05)
        daemon.hear("leading")
        with running(watch):
            load.start()
            try:
                load.progress(effects=200)
                wait_until(lambda: len(watch.events) > 100)
                before = len(watch.ticks)
                pair.fail_over()
                load.progress(effects=200)
                daemon.hear("leading", times=2)
                wait_until(lambda: ops.rotations(pair.there, QUEUE) > 2)
                wait_until(lambda: len(watch.ticks) > before + 5)
            finally:
                load.stop()
                daemon.stop()
            drain(pair.there)
            newest = ops.value(pair.there, "select max(tick_id) from pgq.tick")
            wait_until(lambda: watch.ticks[-1] >= newest)

        app = {data for (data,) in pair.there.execute("select data from app")}
        effect = {data for (data,) in pair.there.execute("select data from effect where retry = 0")}
        assert effect == app
        assert set(load.durable) <= app
        # Whatever was seen before the failover is there after it, under the same numbers.
        assert watch.changed == []
        assert watch.ticks == sorted(watch.ticks)
        assert sorted(data for _, data in watch.events.values()) == sorted(app)
        assert not ops.value(pair.there, "select pgq._is_native_txid() is false")
        [claimed] = pair.there.execute("select payload from pgq_task.claim('{mails}', 'w')")
        assert claimed == (1,)


def test_a_tick_is_on_the_standby_before_consumers_see_it(server: Server) -> None:
    """Whatever the ticker's synchronous_commit: its id must not come again after a failover."""
    with started_pair(server.version) as pair, ThreadPoolExecutor() as pool:
        pair.conn.execute("select pgq.create_queue('q')")
        synchronous(pair)
        [receiver] = wait_until(lambda: receivers(pair))
        newest = ops.value(pair.conn, "select max(tick_id) from pgq.tick")
        receiver.suspend()
        try:
            with psycopg.connect(pair.primary.dsn, autocommit=True) as ticker:
                ticker.execute("set synchronous_commit = local")
                made = pool.submit(ops.tick, ticker, "q")
                waits = "select wait_event = 'SyncRep' from pg_stat_activity where pid = %s"
                wait_until(lambda: ops.value(pair.conn, waits, ticker.info.backend_pid))
                assert ops.value(pair.conn, "select max(tick_id) from pgq.tick") == newest
                receiver.resume()
                made.result(PATIENCE)
        finally:
            receiver.resume()
