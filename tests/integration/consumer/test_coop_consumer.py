"""CoopConsumer: workers that share a consumer's events, how they come and go, and fail."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import closing
from datetime import timedelta
from time import monotonic
from typing import Any, cast

import pytest

import pgqpy
from pgqpy import Admin, AsyncCoopConsumer, Batch, CoopConsumer, Event, errors
from pgqpy._runtime.acompat import Waker
from pgqpy.consumer._coop import CoopLoop
from tests.fixtures.fix_client import PATIENCE, Background, Send
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import eventually

LONG = timedelta(hours=1)


class Worker(CoopConsumer):
    consumer = "shared"
    backoff_first = 0.01
    batch_size = 1
    dead_after = LONG

    def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
        conn.execute("insert into seen values (%s, %s)", [event.data, self.worker_name])


@pytest.fixture(autouse=True)
def seen(conn: Connection, queue: str) -> None:
    conn.execute("create table seen (data text not null, worker text not null)")
    Admin(conn).register_consumer(queue, "shared")


@pytest.fixture
def fill(send: Send) -> None:
    """Twenty batches of one event."""
    for number in range(20):
        send([f"{number:02}"])


def seen_by(conn: Connection) -> dict[str, str]:
    rows = conn.execute("select data, worker from seen order by data").fetchall()
    assert len(dict(rows)) == len(rows), "an event was seen twice"
    return dict(rows)


def consumers(conn: Connection) -> list[str]:
    return [info.consumer_name for info in Admin(conn).get_consumer_info()]


def silence(conn: Connection) -> None:
    conn.execute("update pgq.subscription set sub_active = '2005-01-01' where sub_batch > 0")


@pytest.mark.smoke
@pytest.mark.usefixtures("fill")
def test_workers_at_the_same_time_process_each_event_once(
    dsn: str, conn: Connection, queue: str
) -> None:
    both_at_work = threading.Barrier(2)

    class Pair(Worker):
        met = False

        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            if not self.met:
                both_at_work.wait(PATIENCE)
                self.met = True
            super().process_batch(conn, batch)

    workers = [Pair(dsn, queue=queue) for _ in range(2)]
    threads = [
        threading.Thread(target=worker.run, kwargs={"until_empty": True}) for worker in workers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    seen = seen_by(conn)
    assert list(seen) == [f"{number:02}" for number in range(20)]
    assert set(seen.values()) == {worker.worker_name for worker in workers}


def test_a_worker_registers_when_it_runs_and_leaves_when_it_stops(
    dsn: str, conn: Connection, queue: str, send: Send, background: Background
) -> None:
    worker = Worker(dsn, queue=queue, worker_name="w1")
    thread = background(worker)
    send("a")
    eventually(conn, "select count(*) = 1 from seen")
    assert consumers(conn) == ["shared", "shared.w1"]
    worker.stop()
    thread.join(PATIENCE)
    assert consumers(conn) == ["shared"]


@pytest.mark.usefixtures("fill")
def test_the_effects_of_a_worker_that_lost_its_batch_are_rolled_back(
    dsn: str, conn: Connection, queue: str
) -> None:
    other = Worker(dsn, queue=queue, worker_name="other")

    class Slow(Worker):
        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            super().process_batch(conn, batch)
            with pgqpy.connect(dsn) as other_conn:
                silence(other_conn)
            assert other.run_once()

    with pytest.raises(errors.BatchLost, match="is not that of member 'slow'"):
        Slow(dsn, queue=queue, worker_name="slow").run_once()
    assert seen_by(conn) == {"00": "other"}
    Worker(dsn, queue=queue).run(until_empty=True)
    assert len(seen_by(conn)) == 20


def test_a_worker_says_that_it_is_at_work(
    dsn: str, conn: Connection, queue: str, send: Send, background: Background
) -> None:
    kept = threading.Event()
    taken_over: list[bool] = []

    class Long(Worker):
        dead_after = timedelta(seconds=0.2)

        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            with pgqpy.connect(dsn, autocommit=True) as other_conn:
                silence(other_conn)
                eventually(
                    other_conn, "select min(sub_active) > '2006-01-01' from pgq.subscription"
                )
                taken_over.append(Worker(dsn, queue=queue, worker_name="w2").run_once())
            super().process_batch(conn, batch)
            kept.set()

    background(Long(dsn, queue=queue, worker_name="w1"))
    send("a")
    assert kept.wait(PATIENCE)
    assert taken_over == [False]


@pytest.mark.parametrize("listens", [True, False])
def test_an_idle_worker_takes_over_what_a_dead_one_has_left(
    dsn: str, conn: Connection, queue: str, send: Send, background: Background, listens: bool
) -> None:
    class Heir(Worker):
        # A hundred quarters of it, as long as polls are where LISTEN works, are beyond PATIENCE.
        dead_after = timedelta(seconds=3)
        poll_interval = 3600
        listen = listens

    send("a")
    conn.execute("select pgq_coop.next_batch(%s, 'shared', 'dead')", [queue])
    background(Heir(dsn, queue=queue, worker_name="heir"))
    eventually(conn, "select count(*) = 1 from seen", patience=PATIENCE)
    assert seen_by(conn) == {"a": "heir"}
    assert "shared.dead" not in consumers(conn)


def test_an_idle_worker_sends_no_heartbeats_and_loses_no_batch(
    dsn: str, conn: Connection, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A heartbeat would write a row each time, and without a batch none can be lost."""
    worker = Worker(dsn, queue=queue, worker_name="w1")
    conn.execute("select pgq_coop.register_subconsumer(%s, 'shared', 'w1')", [queue])
    positions = "select array_agg(sub_active order by sub_consumer) from pgq.subscription"
    before = conn.execute(positions).fetchall()
    with closing(Waker()) as waker:
        loop = CoopLoop(worker, cast(Any, waker), strict=True)
        with loop._heartbeat as heartbeat:
            loop._beat(conn)
            assert heartbeat._due() > monotonic()
    assert conn.execute(positions).fetchall() == before
    assert "has lost batch" not in caplog.text


def test_a_worker_that_stops_with_a_failing_batch_leaves_it_to_the_others(
    dsn: str, conn: Connection, queue: str, send: Send, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Worker):
        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            self.stop()
            raise ValueError("no")

    send("a")
    with caplog.at_level(logging.WARNING, "pgqpy"):
        Failing(dsn, queue=queue, worker_name="w1").run()
    assert any("w1 stays registered" in record.getMessage() for record in caplog.records)
    silence(conn)
    assert Worker(dsn, queue=queue, worker_name="w2").run_once()
    assert seen_by(conn) == {"a": "w2"}


@pytest.mark.usefixtures("fill")
def test_workers_wait_while_a_plain_consumer_has_a_batch_and_say_what_for(
    dsn: str, conn: Connection, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    conn.execute("select pgq.next_batch(%s, 'shared')", [queue])

    class Waits(Worker):
        def on_error(self, error: Exception, batch: Batch | None) -> None:
            assert isinstance(error, errors.ConsumerInUse)
            self.stop()

    Waits(dsn, queue=queue).run()
    assert "consumer shared got no batch: consumer 'shared' has batch" in caplog.text
    assert "lost the database" not in caplog.text
    assert seen_by(conn) == {}


def test_workers_have_names_of_their_own(dsn: str, queue: str) -> None:
    names = {Worker(dsn, queue=queue).worker_name for _ in range(10)}
    assert len(names) == 10


@pytest.mark.usefixtures("fill")
def test_asyncio_workers_share_in_one_event_loop(dsn: str, conn: Connection, queue: str) -> None:
    met: set[str] = set()
    all_met = asyncio.Event()

    class AsyncWorker(AsyncCoopConsumer):
        consumer = "shared"
        batch_size = 1

        async def process_event(self, conn: pgqpy.AsyncConnection, event: Event) -> None:
            await conn.execute("insert into seen values (%s, %s)", [event.data, self.worker_name])
            met.add(self.worker_name)
            if len(met) == 3:
                all_met.set()
            await all_met.wait()

    async def main() -> list[AsyncWorker]:
        workers = [AsyncWorker(dsn, queue=queue) for _ in range(3)]
        await asyncio.gather(*(worker.run(until_empty=True) for worker in workers))
        return workers

    workers = asyncio.run(main())
    seen = seen_by(conn)
    assert len(seen) == 20
    assert set(seen.values()) == {worker.worker_name for worker in workers}
    assert consumers(conn) == ["shared"]
