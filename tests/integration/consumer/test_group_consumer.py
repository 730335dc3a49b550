"""GroupConsumer: workers that share a queue by keys, each key in order."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

import pytest

import pgqpy
from pgqpy.errors import GroupConflict, InvalidParameter, KeysParked, LeaseLost, ParkingFull
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import PATIENCE, Background, Tick
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import eventually

GROUP = "group"
AT_ONCE = pgqpy.FixedDelay(0, attempts=None)
BY_HAND = pgqpy.FixedDelay(0, attempts=1)

Effect = dict[str, list[str]]


class Worker(pgqpy.GroupConsumer):
    """Writes each event into the table ``effect``."""

    queue = "test_queue"
    consumer = GROUP
    partitions = 4
    poll_interval = 0.01
    backoff_first = 0.01
    lease = timedelta(seconds=60)

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        conn.execute(
            "insert into effect (key, data, worker) values (%s, %s, %s)",
            [event.extra1, event.data, self.worker_name],
        )


class Picky(Worker):
    """Fails for events whose data is among `bad`; their keys are parked until told otherwise."""

    retry_policy = BY_HAND
    bad: frozenset[str] = frozenset()

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        super().process_event(conn, event)
        if event.data in self.bad:
            raise ValueError(f"no {event.data}")


def picky(dsn: str, *bad: str) -> Picky:
    worker = Picky(dsn)
    worker.bad = frozenset(bad)
    return worker


@dataclass
class Group:
    """A group of four partitions, what is sent to it, and what its workers do."""

    conn: Connection
    dsn: str
    tick: Tick

    @property
    def admin(self) -> pgqpy.GroupAdmin:
        return pgqpy.GroupAdmin(self.conn)

    def insert(self, *datas: str) -> None:
        """Events whose key is the word before the hyphen, or the first letter."""
        for data in datas:
            key = data.rpartition("-")[0] or data[0]
            self.conn.execute(
                "select pgq.insert_event('test_queue', 't', %s, %s, null, null, null)", [data, key]
            )

    def send(self, *datas: str) -> None:
        """These events, in a batch."""
        self.insert(*datas)
        self.tick()

    def fill(self, keys: int, rounds: int) -> Effect:
        """Insert events for this many keys; returns the expected effect."""
        for number in range(rounds):
            self.insert(*(f"k{key}-{number}" for key in range(keys)))
            if number % 3 == 0:
                self.tick()
        self.tick()
        return {f"k{key}": [f"k{key}-{number}" for number in range(rounds)] for key in range(keys)}

    def effect(self) -> Effect:
        """What was written for each key, in its order."""
        found: Effect = defaultdict(list)
        for key, data in self.conn.execute("select key, data from effect order by nr"):
            found[key].append(data)
        return dict(found)

    def await_effects(self, count: int) -> None:
        eventually(self.conn, "select count(*) = %s from effect", count)

    def parked(self) -> dict[str, int]:
        return {key.key: key.events for key in self.admin.get_parked_keys("test_queue", GROUP)}

    def unpark(self) -> None:
        self.admin.unpark_key("test_queue", GROUP)


@pytest.fixture
def group(conn: Connection, dsn: str, queue: str, tick: Tick) -> Group:
    conn.execute("create table effect (nr serial, key text, data text, worker text)")
    Worker(dsn).register()
    return Group(conn, dsn, tick)


PARTITIONS = "pgq.get_group_partitions('test_queue', 'group')"
OWNERS = f"select count(distinct worker) = %s and count(worker) = 4 from {PARTITIONS}"


@pytest.mark.smoke
def test_one_worker_gets_all_events_and_each_key_in_order(group: Group) -> None:
    expected = group.fill(keys=20, rounds=10)
    worker = Worker(group.dsn)
    assert worker.run_once() is True
    worker.run(until_empty=True)
    assert worker.run_once() is False
    assert group.effect() == expected


def test_workers_share_and_each_key_stays_in_order(group: Group, background: Background) -> None:
    for number in range(3):
        background(Worker(group.dsn, worker_name=f"w{number}"))
    eventually(group.conn, OWNERS, 3)
    expected = group.fill(keys=30, rounds=10)
    group.await_effects(300)
    assert group.effect() == expected
    workers = "select count(distinct worker) from effect group by key"
    assert set(group.conn.execute(workers)) == {(1,)}
    assert ops.value(group.conn, "select count(distinct worker) from effect") == 3
    # More workers than partitions are spare.
    for number in range(3, 6):
        background(Worker(group.dsn, worker_name=f"w{number}"))
    eventually(group.conn, "select workers = 6 from pgq.get_group_info()")
    eventually(group.conn, OWNERS, 4)
    group.conn.execute("truncate effect")
    expected = group.fill(keys=5, rounds=3)
    group.await_effects(15)
    assert group.effect() == expected


def test_a_worker_that_comes_or_goes_is_noticed_at_once(
    group: Group, background: Background
) -> None:
    background(Worker(group.dsn, worker_name="first"))
    every = f"select count(*) = %s from {PARTITIONS} where worker = %s"
    eventually(group.conn, every, 4, "first")
    second = Worker(group.dsn, worker_name="second")
    thread = background(second)
    eventually(group.conn, every, 2, "second")
    second.stop()
    thread.join(PATIENCE)
    # The lease is a minute: no worker waited for its end.
    eventually(group.conn, every, 4, "first")


def test_a_failing_key_is_parked_and_the_others_go_on(group: Group) -> None:
    worker = picky(group.dsn, "a2")
    group.send("a1", "b1", "a2", "b2", "a3")
    worker.run(until_empty=True)
    assert group.effect() == {"a": ["a1"], "b": ["b1", "b2"]}
    assert group.parked() == {"a": 2}
    group.send("a4", "b3")
    worker.run(until_empty=True)
    assert group.effect() == {"a": ["a1"], "b": ["b1", "b2", "b3"]}
    assert group.parked() == {"a": 3}
    [key] = group.admin.get_parked_keys("test_queue", GROUP)
    assert key.error == "ValueError: no a2"
    assert (key.attempts, key.next_attempt) == (1, None)

    worker.bad = frozenset()
    group.insert("a5")
    assert group.admin.unpark_key("test_queue", GROUP, "a") == 1
    group.tick()
    worker.run(until_empty=True)
    assert group.effect()["a"] == ["a1", "a2", "a3", "a4", "a5"]
    assert group.parked() == {}


def test_a_parked_key_is_tried_again_in_order_until_it_succeeds(group: Group) -> None:
    attempts: list[int] = []

    class Third(Worker):
        retry_policy = AT_ONCE

        def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
            super().process_event(conn, event)
            if event.data == "a1":
                attempts.append(event.retry_count)
                if event.retry_count < 3:
                    raise ValueError

    group.send("a1", "a2")
    Third(group.dsn).run(until_empty=True)
    assert group.effect() == {"a": ["a1", "a2"]}
    # The first time twice: what it had written was rolled back with the batch.
    assert attempts in ([0, 0, 1, 2, 3], [0, 0, 1, 1, 2, 2, 3])
    assert group.parked() == {}


def test_what_is_parked_is_not_dropped_by_mistake_and_given_up_it_is_a_dead_letter(
    group: Group,
) -> None:
    worker = picky(group.dsn, "a1", "b1")
    group.send("a1", "a2", "b1")
    worker.run(until_empty=True)
    assert group.admin.give_up_parked("test_queue", GROUP, "a") == 1
    worker.run(until_empty=True)
    assert group.effect() == {"a": ["a2"]}
    assert group.parked() == {"b": 1}
    letter = group.conn.execute("select ev_data, dl_reason, dl_attempts from pgq.dead_letter")
    assert letter.fetchall() == [("a1", "ValueError: no a1", 1)]
    with pytest.raises(KeysParked, match="1 parked"):
        worker.unregister()
    group.admin.drop_group("test_queue", GROUP, force=True)
    assert pgqpy.Admin(group.conn).get_consumer_info() == []


def test_a_dead_letter_lets_its_key_go_on(group: Group) -> None:
    class GivesUp(Worker):
        retry_policy = AT_ONCE

        def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
            super().process_event(conn, event)
            if event.data == "a1" or (event.data == "b1" and event.retry_count):
                raise pgqpy.DeadLetter("hopeless")
            if event.data == "b1":
                raise ValueError

    group.send("a1", "a2", "b1", "b2")
    GivesUp(group.dsn).run(until_empty=True)
    assert group.effect() == {"a": ["a2"], "b": ["b2"]}
    letters = group.conn.execute("select ev_data, dl_id from pgq.dead_letter order by 1").fetchall()
    assert [data for data, _ in letters] == ["a1", "b1"]
    assert group.parked() == {}
    # Replayed, they come to the group, and to the partition of their key.
    group.conn.execute("select pgq.replay_dead_letters(%s)", [[number for _, number in letters]])
    group.conn.execute("select pgq.maint_retry_events()")
    group.tick()
    Worker(group.dsn).run(until_empty=True)
    assert group.effect() == {"a": ["a2", "a1"], "b": ["b2", "b1"]}


def test_retry_holds_up_the_key_and_undoes_what_was_written(group: Group) -> None:
    attempts: list[int] = []

    class Later(Worker):
        def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
            super().process_event(conn, event)
            attempts.append(event.retry_count)
            if event.data == "a1" and not event.retry_count:
                event.retry(0)

    group.send("a1", "a2")
    Later(group.dsn).run(until_empty=True)
    assert group.effect() == {"a": ["a1", "a2"]}
    assert 1 in attempts
    assert group.parked() == {}


def test_with_too_much_parked_a_partition_stops_and_says_so(group: Group) -> None:
    group.admin.set_group_config("test_queue", GROUP, "park_limit", 1)
    worker = picky(group.dsn, "a1")
    group.send("a1", "a2")
    # The batch is finished, with all that it holds; the next is not begun.
    with pytest.raises(ParkingFull, match="partition"):
        worker.run(until_empty=True)
    assert group.parked() == {"a": 2}
    group.send("a3", *(f"k{number}-1" for number in range(20)))
    with pytest.raises(ParkingFull, match="park_limit"):
        worker.run(until_empty=True)
    assert group.parked() == {"a": 2}
    partitions = group.admin.get_group_partitions("test_queue", GROUP)
    assert [each.is_full for each in partitions].count(True) == 1
    # Keys of other partitions went on.
    assert 5 < len(group.effect()) < 20

    worker.bad = frozenset()
    group.unpark()
    worker.run(until_empty=True)
    assert group.effect()["a"] == ["a1", "a2", "a3"]
    assert len(group.effect()) == 21


def test_a_full_partition_lets_its_parked_keys_be_tried(
    group: Group, background: Background
) -> None:
    group.admin.set_group_config("test_queue", GROUP, "park_limit", 0)
    heard: list[Exception] = []

    class Hears(Picky):
        bad = frozenset({"a1"})
        retry_policy = AT_ONCE

        def on_error(self, error: Exception, batch: pgqpy.Batch | None) -> None:
            heard.append(error)
            self.bad = frozenset()

    group.send("a1", "a2")
    background(Hears(group.dsn))
    group.await_effects(2)
    assert isinstance(heard[0], ParkingFull)


def test_an_outage_costs_its_partition_a_pause_and_no_other(
    group: Group, background: Background
) -> None:
    class Outage(Exception):
        pass

    mended = threading.Event()

    class Suffers(Worker):
        outages = (Outage,)
        backoff_cap = 0.05

        def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
            if event.extra1 == "k0" and not mended.is_set():
                raise Outage
            super().process_event(conn, event)

    expected = group.fill(keys=20, rounds=2)
    background(Suffers(group.dsn))
    eventually(
        group.conn,
        "select count(distinct key) = (select count(*) from generate_series(0, 19) k"
        " where pgq.key_partition('k' || k, 4) <> pgq.key_partition('k0', 4)) from effect",
    )
    mended.set()
    group.await_effects(40)
    assert group.effect() == expected


SILENCE = """
select pgq._append_position(-member_id, (pgq._get_position(-member_id)).pos_nr + 1,
                            null, null, null, now() - interval '1 day')
  from pgq.group_member
"""
SEEN = f"select min(last_seen) < '1 hour' from {PARTITIONS}"


def test_a_worker_says_that_it_lives_while_it_is_at_work_and_again_if_it_could_not(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    group.admin.set_group_config("test_queue", GROUP, "lease", "300 milliseconds")
    admin = group.conn

    class Long(Worker):
        def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
            super().process_event(conn, event)
            admin.execute("alter function pgq.group_heartbeat rename to away")
            deadline = monotonic() + PATIENCE
            while "cannot say that it lives" not in caplog.text and monotonic() < deadline:
                sleep(0.01)
            # Nor is one of its signs under way that it gave before.
            admin.execute(SILENCE)
            assert admin.execute(SEEN.encode()).fetchone() != (True,)
            admin.execute("alter function pgq.away rename to group_heartbeat")
            eventually(admin, SEEN)
            # Nor may the transaction that finishes the batch be idle for longer than the lease.
            group.admin.set_group_config("test_queue", GROUP, "lease", "1 minute")

    group.send("a1")
    Long(group.dsn).run(until_empty=True)
    assert group.effect() == {"a": ["a1"]}
    assert "cannot say that it lives" in caplog.text


def test_a_worker_that_lost_the_partition_cannot_commit(group: Group) -> None:
    class Slow(Worker):
        def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
            super().process_event(conn, event)
            # Others take this worker for dead.
            group.conn.execute("select pgq.leave_group(member_id) from pgq.group_member")

    group.send("a1")
    with pytest.raises(LeaseLost, match="another owner"):
        Slow(group.dsn).run(until_empty=True)
    assert group.effect() == {}
    Worker(group.dsn).run(until_empty=True)
    assert group.effect() == {"a": ["a1"]}


def test_a_worker_that_lost_its_membership_joins_again(
    group: Group, background: Background
) -> None:
    background(Worker(group.dsn))
    eventually(group.conn, "select workers = 1 from pgq.get_group_info()")
    group.conn.execute("select pgq.leave_group(member_id) from pgq.group_member")
    group.send("a1")
    group.await_effects(1)
    assert group.effect() == {"a": ["a1"]}


def test_partitions_are_resized_while_workers_run(group: Group, background: Background) -> None:
    for number in range(2):
        background(Worker(group.dsn, worker_name=f"w{number}"))
    expected = group.fill(keys=20, rounds=3)
    for size in (9, 2, 4):
        group.admin.resize_group("test_queue", GROUP, size)
        more = {key: f"{key}-turn {size}" for key in expected}
        group.send(*more.values())
        eventually(group.conn, "select partitions = %s from pgq.get_group_info()", size)
        for key, data in more.items():
            expected[key].append(data)
    group.await_effects(120)
    assert group.effect() == expected


def test_partitions_are_resized_where_transactions_are_serializable_by_default(
    group: Group,
) -> None:
    group.conn.execute(
        "do $$ begin execute pg_catalog.format('alter database %I set"
        " default_transaction_isolation = serializable', pg_catalog.current_database()); end $$"
    )
    expected = group.fill(keys=20, rounds=3)
    # One partition is ahead of the others, so they have to catch up.
    Worker(group.dsn).run_once()
    group.admin.resize_group("test_queue", GROUP, 3)
    Worker(group.dsn).run(until_empty=True)
    assert group.conn.execute("select partitions from pgq.get_group_info()").fetchall() == [(3,)]
    assert group.effect() == expected


def test_parked_keys_follow_when_partitions_are_resized(group: Group) -> None:
    expected = group.fill(keys=12, rounds=3)
    worker = picky(group.dsn, *(f"{key}-0" for key in expected))
    worker.run(until_empty=True)
    assert group.parked() == dict.fromkeys(expected, 3)
    for size in (7, 2):
        group.admin.resize_group("test_queue", GROUP, size)
        worker.run(until_empty=True)
        assert group.admin.get_group_info()[0].partitions == size
        for key, datas in expected.items():
            datas.append(f"{key}-of {size}")
            group.insert(datas[-1])
        group.tick()
        worker.run(until_empty=True)
        assert group.effect() == {}
    worker.bad = frozenset()
    group.unpark()
    worker.run(until_empty=True)
    assert group.effect() == expected
    assert group.parked() == {}


def test_only_types_that_are_wanted_come_and_are_parked(group: Group) -> None:
    worker = picky(group.dsn, "a1")
    worker.event_types = ("t",)
    group.insert("a1", "a2")
    group.conn.execute("select pgq.insert_event('test_queue', 'u', 'x', 'a', null, null, null)")
    group.tick()
    worker.run(until_empty=True)
    assert group.parked() == {"a": 2}
    worker.bad = frozenset()
    group.unpark()
    worker.run(until_empty=True)
    assert group.effect() == {"a": ["a1", "a2"]}


def test_large_batches_are_streamed_and_parked_alike(group: Group) -> None:
    class Fails(Worker):
        retry_policy = AT_ONCE

        def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
            super().process_event(conn, event)
            if int((event.data or "").partition("-")[2]) % 397 == 5 and event.retry_count < 2:
                raise ValueError

    group.conn.execute(
        "select count(pgq.insert_event('test_queue', 't', key || '-' || n, key, null, null, null))"
        " from (select n, 'k' || mod(n, 7) as key from generate_series(1, 3000) n order by n) e"
    )
    group.tick()
    Fails(group.dsn).run(until_empty=True)
    assert group.effect() == {
        f"k{key}": [f"k{key}-{n}" for n in range(1, 3001) if n % 7 == key] for key in range(7)
    }


def test_with_process_batch_whole_batches_of_a_partition_come(group: Group) -> None:
    got: dict[int, list[str | None]] = defaultdict(list)

    class Whole(Worker):
        def process_batch(self, conn: pgqpy.Connection, batch: pgqpy.Batch) -> None:
            assert isinstance(batch, pgqpy.GroupBatch)
            got[batch.partition] += [event.extra1 for event in batch]

    group.fill(keys=20, rounds=2)
    Whole(group.dsn).run(until_empty=True)
    assert sorted(got) == [0, 1, 2, 3]
    for partition, keys in got.items():
        for key in keys:
            assert ops.value(group.conn, "select pgq.key_partition(%s, 4)", key) == partition


class AsyncWorker(pgqpy.AsyncGroupConsumer):
    queue = "test_queue"
    consumer = GROUP
    poll_interval = 0.01
    retry_policy = AT_ONCE

    async def process_event(self, conn: pgqpy.AsyncConnection, event: pgqpy.Event) -> None:
        await conn.execute(
            "insert into effect (key, data, worker) values (%s, %s, '')", [event.extra1, event.data]
        )
        if event.data == "k3-1" and event.retry_count < 2:
            raise ValueError


def test_the_same_with_asyncio(group: Group) -> None:
    async def run() -> None:
        workers = [AsyncWorker(group.dsn, worker_name=str(number)) for number in range(3)]
        async with asyncio.TaskGroup() as tasks:
            for worker in workers:
                tasks.create_task(worker.run(handle_signals=False))
            await asyncio.to_thread(group.await_effects, 60)
            for worker in workers:
                worker.stop()

    expected = group.fill(keys=20, rounds=3)
    asyncio.run(run())
    assert group.effect() == expected
    assert group.parked() == {}


@pytest.mark.parametrize("on_conn", [False, True])
def test_asyncio_processes_different_keys_at_once_and_each_in_order(
    group: Group, on_conn: bool
) -> None:
    running: set[str | None] = set()
    overlapped: list[bool] = []
    most = 0
    done: dict[str | None, list[str | None]] = defaultdict(list)

    class Several(AsyncWorker):
        concurrency = 5

        async def process_event(self, conn: pgqpy.AsyncConnection, event: pgqpy.Event) -> None:
            nonlocal most
            overlapped.append(event.extra1 in running)
            running.add(event.extra1)
            most = max(most, len(running))
            try:
                await asyncio.sleep(0.001 * (event.id % 3))
                if on_conn:
                    await super().process_event(conn, event)
                elif event.data == "k3-1" and event.retry_count < 2:
                    raise ValueError
                if event.data == "k4-1" and not event.retry_count:
                    event.retry(0)
                    return
                done[event.extra1].append(event.data)
            finally:
                running.discard(event.extra1)

    expected = group.fill(keys=20, rounds=6)
    asyncio.run(Several(group.dsn).run(until_empty=True))
    assert most > 1
    assert not any(overlapped)
    assert (group.effect() if on_conn else done) == expected
    assert group.parked() == {}


def test_isolation_levels_make_no_difference(group: Group) -> None:
    class Strict(Picky):
        isolation_level = pgqpy.IsolationLevel.SERIALIZABLE
        retry_policy = AT_ONCE
        bad = frozenset({"k1-1"})

        def on_event_failed(self, event: pgqpy.Event, error: Exception, delay: Any) -> None:
            self.bad = frozenset()

    expected = group.fill(keys=10, rounds=3)
    Strict(group.dsn).run(until_empty=True)
    assert group.effect() == expected
    assert group.parked() == {}


def test_what_a_group_cannot_be_is_refused(group: Group) -> None:
    class Other(Worker):
        key = "ev_data"

    class Bad(Worker):
        consumer = "bad"
        key = "now()::text"

    class Several(Worker):
        concurrency = 2

    with pytest.raises(GroupConflict, match="key"):
        Other(group.dsn).run(until_empty=True)
    assert Worker(group.dsn).register() is False
    with pytest.raises(InvalidParameter, match="not a key of events"):
        Bad(group.dsn).register()
    with pytest.raises(ValueError, match="only AsyncConsumer"):
        Several(group.dsn).run(until_empty=True)
