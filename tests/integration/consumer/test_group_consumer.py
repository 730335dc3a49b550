"""GroupConsumer: workers that share a queue by keys, each key in order."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

import psycopg
import pytest

import pgqpy
from pgqpy.errors import (
    GroupConflict,
    InvalidParameter,
    KeysParked,
    LeaseLost,
    ParkingFull,
)
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import PATIENCE, Background, Tick
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import eventually

GROUP = "group"
AT_ONCE = pgqpy.FixedDelay(0, attempts=None)
BY_HAND = pgqpy.FixedDelay(0, attempts=1)


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
    """Fails for events whose data is among `bad`."""

    retry_policy = AT_ONCE
    bad: frozenset[str] = frozenset()

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        super().process_event(conn, event)
        if event.data in self.bad:
            raise ValueError(f"no {event.data}")


@pytest.fixture
def effect(conn: Connection) -> Callable[[], dict[str, list[str]]]:
    """``effect()``: what was written for each key, in its order."""
    conn.execute("create table effect (nr serial, key text, data text, worker text)")

    def effects() -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for key, data in conn.execute("select key, data from effect order by nr"):
            found[key].append(data)
        return dict(found)

    return effects


Effect = Callable[[], dict[str, list[str]]]


def insert(conn: Connection, *events: tuple[str | None, str]) -> None:
    """Events of (key, data)."""
    for key, data in events:
        conn.execute(
            "select pgq.insert_event('test_queue', 't', %s, %s, null, null, null)", [data, key]
        )


def fill(conn: Connection, tick: Tick, keys: int, rounds: int) -> dict[str, list[str]]:
    """Insert events for this many keys; returns the expected results."""
    for number in range(rounds):
        insert(conn, *((f"k{key}", f"k{key}-{number}") for key in range(keys)))
        if number % 3 == 0:
            tick()
    tick()
    return {f"k{key}": [f"k{key}-{number}" for number in range(rounds)] for key in range(keys)}


@pytest.fixture
def group(conn: Connection, dsn: str, queue: str) -> pgqpy.GroupAdmin:
    Worker(dsn).register()
    return pgqpy.GroupAdmin(conn)


def parked(group: pgqpy.GroupAdmin) -> dict[str, int]:
    return {key.key: key.events for key in group.get_parked_keys("test_queue", GROUP)}


def owners(conn: Connection) -> dict[str, int]:
    """The number of partitions of each worker."""
    return dict(
        conn.execute(
            "select worker, count(*) from pgq.get_group_partitions('test_queue', %s)"
            " where worker is not null group by worker",
            [GROUP],
        ).fetchall()
    )


@pytest.mark.smoke
@pytest.mark.usefixtures("group")
def test_one_worker_gets_all_events_and_each_key_in_order(
    conn: Connection, dsn: str, tick: Tick, effect: Effect
) -> None:
    expected = fill(conn, tick, keys=20, rounds=10)
    Worker(dsn).run(until_empty=True)
    assert effect() == expected


@pytest.mark.usefixtures("group")
def test_workers_share_and_each_key_stays_in_order(
    conn: Connection, dsn: str, tick: Tick, effect: Effect, background: Background
) -> None:
    workers = [Worker(dsn, worker_name=f"w{number}") for number in range(3)]
    for worker in workers:
        background(worker)
    eventually(
        conn,
        "select count(distinct worker) = 3 and count(worker) = 4"
        " from pgq.get_group_partitions('test_queue', %s)",
        GROUP,
    )
    assert sorted(owners(conn).values()) == [1, 1, 2]
    expected = fill(conn, tick, keys=30, rounds=10)
    eventually(conn, "select count(*) = 300 from effect")
    assert effect() == expected
    by = conn.execute("select key from effect group by key having count(distinct worker) > 1")
    assert by.fetchall() == []
    assert len(conn.execute("select distinct worker from effect").fetchall()) == 3


@pytest.mark.usefixtures("group", "effect")
def test_a_worker_that_comes_or_goes_is_noticed_at_once(
    conn: Connection, dsn: str, background: Background
) -> None:
    first = Worker(dsn, worker_name="first")
    background(first)
    every = "select count(*) = %s from pgq.get_group_partitions('test_queue', %s) where worker = %s"
    eventually(conn, every, 4, GROUP, "first")
    second = Worker(dsn, worker_name="second")
    thread = background(second)
    eventually(conn, every, 2, GROUP, "second")
    second.stop()
    thread.join(PATIENCE)
    # The lease is a minute: no worker waited for its end.
    eventually(conn, every, 4, GROUP, "first")


@pytest.mark.usefixtures("group")
def test_more_workers_than_partitions_are_spare(
    conn: Connection, dsn: str, effect: Effect, background: Background, tick: Tick
) -> None:
    for number in range(6):
        background(Worker(dsn, worker_name=f"w{number}"))
    eventually(conn, "select workers = 6 from pgq.get_group_info()")
    eventually(
        conn,
        "select count(distinct worker) = 4 from pgq.get_group_partitions('test_queue', %s)",
        GROUP,
    )
    expected = fill(conn, tick, keys=5, rounds=3)
    eventually(conn, "select count(*) = 15 from effect")
    assert effect() == expected


def test_a_failing_key_is_parked_and_the_others_go_on(
    conn: Connection, dsn: str, tick: Tick, effect: Effect, group: pgqpy.GroupAdmin
) -> None:
    insert(conn, ("a", "a1"), ("b", "b1"), ("a", "a2"), ("b", "b2"), ("a", "a3"))
    tick()
    worker = Picky(dsn)
    worker.retry_policy = BY_HAND
    worker.bad = frozenset({"a2"})
    worker.run(until_empty=True)
    assert effect() == {"a": ["a1"], "b": ["b1", "b2"]}
    assert parked(group) == {"a": 2}
    insert(conn, ("a", "a4"), ("b", "b3"))
    tick()
    worker.run(until_empty=True)
    assert effect() == {"a": ["a1"], "b": ["b1", "b2", "b3"]}
    assert parked(group) == {"a": 3}
    [key] = group.get_parked_keys("test_queue", GROUP)
    assert key.error == "ValueError: no a2"
    assert (key.attempts, key.next_attempt) == (1, None)

    worker.bad = frozenset()
    insert(conn, ("a", "a5"))
    assert group.unpark_key("test_queue", GROUP, "a") == 1
    tick()
    worker.run(until_empty=True)
    assert effect()["a"] == ["a1", "a2", "a3", "a4", "a5"]
    assert parked(group) == {}


def test_a_parked_key_is_tried_again_in_order_until_it_succeeds(
    conn: Connection, dsn: str, tick: Tick, effect: Effect, group: pgqpy.GroupAdmin
) -> None:
    attempts: list[int] = []

    class Third(Worker):
        retry_policy = AT_ONCE

        def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
            super().process_event(conn, event)
            if event.data == "a1":
                attempts.append(event.retry_count)
                if event.retry_count < 3:
                    raise ValueError

    insert(conn, ("a", "a1"), ("a", "a2"))
    tick()
    Third(dsn).run(until_empty=True)
    assert effect() == {"a": ["a1", "a2"]}
    # The first time twice: what it had written was rolled back with the batch.
    assert attempts in ([0, 0, 1, 2, 3], [0, 0, 1, 1, 2, 2, 3])
    assert parked(group) == {}


def test_what_is_parked_and_given_up_by_hand_is_a_dead_letter(
    conn: Connection, dsn: str, tick: Tick, effect: Effect, group: pgqpy.GroupAdmin
) -> None:
    insert(conn, ("a", "a1"), ("a", "a2"))
    tick()
    worker = Picky(dsn)
    worker.retry_policy = BY_HAND
    worker.bad = frozenset({"a1"})
    worker.run(until_empty=True)
    assert group.give_up_parked("test_queue", GROUP, "a") == 1
    worker.run(until_empty=True)
    assert effect() == {"a": ["a2"]}
    assert parked(group) == {}
    letter = conn.execute("select ev_data, dl_reason, dl_attempts from pgq.dead_letter").fetchone()
    assert letter == ("a1", "ValueError: no a1", 1)


def test_a_dead_letter_lets_its_key_go_on(
    conn: Connection, dsn: str, tick: Tick, effect: Effect, group: pgqpy.GroupAdmin
) -> None:
    class GivesUp(Worker):
        retry_policy = AT_ONCE

        def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
            super().process_event(conn, event)
            if event.data == "a1" or (event.data == "b1" and event.retry_count):
                raise pgqpy.DeadLetter("hopeless")
            if event.data == "b1":
                raise ValueError

    insert(conn, ("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2"))
    tick()
    GivesUp(dsn).run(until_empty=True)
    assert effect() == {"a": ["a2"], "b": ["b2"]}
    letters = conn.execute("select ev_data, dl_id from pgq.dead_letter order by 1").fetchall()
    assert [data for data, _ in letters] == ["a1", "b1"]
    assert parked(group) == {}
    # Replayed, they come to the group, and to the partition of their key.
    conn.execute("select pgq.replay_dead_letters(%s)", [[number for _, number in letters]])
    conn.execute("select pgq.maint_retry_events()")
    tick()
    Worker(dsn).run(until_empty=True)
    assert effect() == {"a": ["a2", "a1"], "b": ["b2", "b1"]}


def test_retry_holds_up_the_key_and_undoes_what_was_written(
    conn: Connection, dsn: str, tick: Tick, effect: Effect, group: pgqpy.GroupAdmin
) -> None:
    attempts: list[int] = []

    class Later(Worker):
        def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
            super().process_event(conn, event)
            attempts.append(event.retry_count)
            if event.data == "a1" and not event.retry_count:
                event.retry(0)

    insert(conn, ("a", "a1"), ("a", "a2"))
    tick()
    Later(dsn).run(until_empty=True)
    assert effect() == {"a": ["a1", "a2"]}
    assert 1 in attempts
    assert parked(group) == {}


def test_with_too_much_parked_a_partition_stops_and_says_so(
    conn: Connection, dsn: str, tick: Tick, effect: Effect, group: pgqpy.GroupAdmin
) -> None:
    group.set_group_config("test_queue", GROUP, "park_limit", 1)
    worker = Picky(dsn)
    worker.retry_policy = BY_HAND
    worker.bad = frozenset({"a1"})
    insert(conn, ("a", "a1"), ("a", "a2"))
    tick()
    # The batch is finished, with all that it holds; the next is not begun.
    with pytest.raises(ParkingFull, match="partition"):
        worker.run(until_empty=True)
    assert parked(group) == {"a": 2}
    insert(conn, ("a", "a3"), *((f"k{number}", "1") for number in range(20)))
    tick()
    with pytest.raises(ParkingFull, match="park_limit"):
        worker.run(until_empty=True)
    assert parked(group) == {"a": 2}
    full = [p for p in group.get_group_partitions("test_queue", GROUP) if p.is_full]
    assert len(full) == 1
    # Keys of other partitions went on.
    assert 5 < len(effect()) < 20

    worker.bad = frozenset()
    group.unpark_key("test_queue", GROUP)
    worker.run(until_empty=True)
    assert effect()["a"] == ["a1", "a2", "a3"]
    assert len(effect()) == 21


@pytest.mark.usefixtures("group")
def test_a_full_partition_lets_its_parked_keys_be_tried(
    conn: Connection,
    dsn: str,
    tick: Tick,
    effect: Effect,
    group: pgqpy.GroupAdmin,
    background: Background,
) -> None:
    group.set_group_config("test_queue", GROUP, "park_limit", 0)
    heard: list[Exception] = []

    class Hears(Picky):
        bad = frozenset({"a1"})

        def on_error(self, error: Exception, batch: pgqpy.Batch | None) -> None:
            heard.append(error)
            self.bad = frozenset()

    insert(conn, ("a", "a1"), ("a", "a2"))
    tick()
    background(Hears(dsn))
    eventually(conn, "select count(*) = 2 from effect")
    assert isinstance(heard[0], ParkingFull)


@pytest.mark.usefixtures("group")
def test_an_outage_costs_its_partition_a_pause_and_no_other(
    conn: Connection, dsn: str, tick: Tick, effect: Effect, background: Background
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

    expected = fill(conn, tick, keys=20, rounds=2)
    background(Suffers(dsn))
    eventually(
        conn,
        "select count(distinct key) = (select count(*) from generate_series(0, 19) k"
        " where pgq.key_partition('k' || k, 4) <> pgq.key_partition('k0', 4)) from effect",
    )
    mended.set()
    eventually(conn, "select count(*) = 40 from effect")
    assert effect() == expected


SILENCE = """
select pgq._append_position(-member_id, (pgq._get_position(-member_id)).pos_nr + 1,
                            null, null, null, now() - interval '1 day')
  from pgq.group_member
"""
SEEN = "select min(last_seen) < '1 hour' from pgq.get_group_partitions('test_queue', 'group')"


def test_a_worker_says_that_it_lives_while_it_is_at_work_and_again_if_it_could_not(
    conn: Connection,
    dsn: str,
    tick: Tick,
    effect: Effect,
    group: pgqpy.GroupAdmin,
    caplog: pytest.LogCaptureFixture,
) -> None:
    group.set_group_config("test_queue", GROUP, "lease", "300 milliseconds")

    class Long(Worker):
        def process_event(self, _conn: pgqpy.Connection, event: pgqpy.Event) -> None:
            super().process_event(_conn, event)
            conn.execute("alter function pgq.group_heartbeat rename to away")
            deadline = monotonic() + PATIENCE
            while "cannot say that it lives" not in caplog.text and monotonic() < deadline:
                sleep(0.01)
            # Nor is one of its signs under way that it gave before.
            conn.execute(SILENCE)
            assert not ops.value(conn, SEEN)
            conn.execute("alter function pgq.away rename to group_heartbeat")
            eventually(conn, SEEN)

    insert(conn, ("a", "a1"))
    tick()
    Long(dsn).run(until_empty=True)
    assert effect() == {"a": ["a1"]}
    assert "cannot say that it lives" in caplog.text


@pytest.mark.usefixtures("group")
def test_a_worker_that_lost_the_partition_cannot_commit(
    conn: Connection, dsn: str, tick: Tick, effect: Effect
) -> None:
    class Slow(Worker):
        def process_event(self, _conn: pgqpy.Connection, event: pgqpy.Event) -> None:
            super().process_event(_conn, event)
            # Others take this worker for dead.
            conn.execute("select pgq.leave_group(member_id) from pgq.group_member")

    insert(conn, ("a", "a1"))
    tick()
    with pytest.raises(LeaseLost, match="another owner"):
        Slow(dsn).run(until_empty=True)
    assert effect() == {}
    Worker(dsn).run(until_empty=True)
    assert effect() == {"a": ["a1"]}


@pytest.mark.usefixtures("group")
def test_a_worker_that_lost_its_membership_joins_again(
    conn: Connection, dsn: str, tick: Tick, effect: Effect, background: Background
) -> None:
    background(Worker(dsn))
    eventually(conn, "select workers = 1 from pgq.get_group_info()")
    conn.execute("select pgq.leave_group(member_id) from pgq.group_member")
    insert(conn, ("a", "a1"))
    tick()
    eventually(conn, "select count(*) = 1 from effect")
    assert effect() == {"a": ["a1"]}


def test_partitions_are_resized_while_workers_run(
    conn: Connection,
    dsn: str,
    tick: Tick,
    effect: Effect,
    group: pgqpy.GroupAdmin,
    background: Background,
) -> None:
    for number in range(2):
        background(Worker(dsn, worker_name=f"w{number}"))
    expected = fill(conn, tick, keys=20, rounds=3)
    sizes = (9, 2, 4)
    for turn, size in enumerate(sizes):
        group.resize_group("test_queue", GROUP, size)
        insert(conn, *((f"k{key}", f"turn {turn}") for key in range(20)))
        tick()
        eventually(conn, "select partitions = %s from pgq.get_group_info()", size)
    eventually(conn, "select count(*) = 120 from effect")
    for key in expected:
        expected[key] += [f"turn {turn}" for turn in range(len(sizes))]
    assert effect() == expected


def test_parked_keys_follow_when_partitions_are_resized(
    conn: Connection, dsn: str, tick: Tick, effect: Effect, group: pgqpy.GroupAdmin
) -> None:
    worker = Picky(dsn)
    worker.retry_policy = BY_HAND
    keys = [f"k{number}" for number in range(12)]
    worker.bad = frozenset(f"{key}-0" for key in keys)
    expected = fill(conn, tick, keys=12, rounds=3)
    worker.run(until_empty=True)
    assert parked(group) == dict.fromkeys(keys, 3)
    for size in (7, 2):
        group.resize_group("test_queue", GROUP, size)
        worker.run(until_empty=True)
        assert group.get_group_info()[0].partitions == size
        for key in keys:
            insert(conn, (key, f"of {size}"))
            expected[key].append(f"of {size}")
        tick()
        worker.run(until_empty=True)
        assert effect() == {}
    worker.bad = frozenset()
    group.unpark_key("test_queue", GROUP)
    worker.run(until_empty=True)
    assert effect() == expected
    assert parked(group) == {}


@pytest.mark.usefixtures("group")
def test_only_types_that_are_wanted_come_and_are_parked(
    conn: Connection, dsn: str, tick: Tick, effect: Effect, group: pgqpy.GroupAdmin
) -> None:
    class Typed(Picky):
        event_types = ("t",)
        retry_policy = BY_HAND
        bad = frozenset({"a1"})

    insert(conn, ("a", "a1"), ("a", "a2"))
    conn.execute("select pgq.insert_event('test_queue', 'u', 'x', 'a', null, null, null)")
    tick()
    worker = Typed(dsn)
    worker.run(until_empty=True)
    assert parked(group) == {"a": 2}
    worker.bad = frozenset()
    group.unpark_key("test_queue", GROUP)
    worker.run(until_empty=True)
    assert effect() == {"a": ["a1", "a2"]}


@pytest.mark.usefixtures("group")
def test_large_batches_are_streamed_and_parked_alike(
    conn: Connection, dsn: str, tick: Tick, effect: Effect, group: pgqpy.GroupAdmin
) -> None:
    class Fails(Worker):
        retry_policy = AT_ONCE

        def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
            super().process_event(conn, event)
            if int((event.data or "").partition("-")[2]) % 97 == 5 and event.retry_count < 2:
                raise ValueError

    conn.execute(
        "select count(pgq.insert_event('test_queue', 't', key || '-' || n, key, null, null, null))"
        " from (select n, 'k' || mod(n, 7) as key from generate_series(1, 3000) n order by n) e"
    )
    tick()
    Fails(dsn).run(until_empty=True)
    assert effect() == {
        f"k{key}": [f"k{key}-{n}" for n in range(1, 3001) if n % 7 == key] for key in range(7)
    }


@pytest.mark.usefixtures("group")
def test_with_process_batch_whole_batches_of_a_partition_come(
    conn: Connection, dsn: str, tick: Tick, group: pgqpy.GroupAdmin
) -> None:
    got: dict[int, list[str | None]] = defaultdict(list)

    class Whole(Worker):
        def process_batch(self, conn: pgqpy.Connection, batch: pgqpy.Batch) -> None:
            assert isinstance(batch, pgqpy.GroupBatch)
            got[batch.partition] += [event.extra1 for event in batch]

    fill(conn, tick, keys=20, rounds=2)
    Whole(dsn).run(until_empty=True)
    assert sorted(got) == [0, 1, 2, 3]
    for partition, keys in got.items():
        for key in keys:
            assert ops.value(conn, "select pgq.key_partition(%s, 4)", key) == partition


def test_the_same_with_asyncio(
    conn: Connection, dsn: str, tick: Tick, effect: Effect, group: pgqpy.GroupAdmin
) -> None:
    class AsyncWorker(pgqpy.AsyncGroupConsumer):
        queue = "test_queue"
        consumer = GROUP
        poll_interval = 0.01
        retry_policy = AT_ONCE
        done = 0

        async def process_event(self, conn: pgqpy.AsyncConnection, event: pgqpy.Event) -> None:
            await conn.execute(
                "insert into effect (key, data, worker) values (%s, %s, '')",
                [event.extra1, event.data],
            )
            if event.data == "k3-1" and event.retry_count < 2:
                raise ValueError

    async def run() -> None:
        workers = [AsyncWorker(dsn, worker_name=str(number)) for number in range(3)]
        async with asyncio.TaskGroup() as tasks:
            for worker in workers:
                tasks.create_task(worker.run(handle_signals=False))
            async with await pgqpy.async_connect(dsn, autocommit=True) as watch:
                async with asyncio.timeout(PATIENCE):
                    while True:
                        cursor = await watch.execute("select count(*) from effect")
                        if await cursor.fetchone() == (60,):
                            break
                        await asyncio.sleep(0.01)
            for worker in workers:
                worker.stop()

    expected = fill(conn, tick, keys=20, rounds=3)
    asyncio.run(run())
    assert effect() == expected
    assert parked(group) == {}


def test_a_group_has_one_key_for_ever(dsn: str, queue: str, group: pgqpy.GroupAdmin) -> None:
    class Other(Worker):
        key = "ev_data"

    with pytest.raises(GroupConflict, match="key"):
        Other(dsn).run(until_empty=True)
    assert Worker(dsn).register() is False


@pytest.mark.one_database
@pytest.mark.parametrize(
    "key",
    ["now()::text", "(select 1)", "ev_extra1) from x; drop table y; --", "public.f(ev_data)", ""],
)
def test_a_key_is_one_harmless_expression(dsn: str, queue: str, key: str) -> None:
    class Bad(Worker):
        pass

    Bad.key = key
    with pytest.raises(InvalidParameter, match="not a key of events"):
        Bad(dsn).register()


def test_threads_process_one_event_after_the_other(dsn: str) -> None:
    class Several(Worker):
        concurrency = 2

    with pytest.raises(ValueError, match="only AsyncConsumer"):
        Several(dsn).run(until_empty=True)


@pytest.mark.parametrize("on_conn", [False, True])
def test_asyncio_processes_different_keys_at_once_and_each_in_order(
    conn: Connection,
    dsn: str,
    tick: Tick,
    effect: Effect,
    group: pgqpy.GroupAdmin,
    on_conn: bool,
) -> None:
    running: set[str | None] = set()
    overlapped: list[bool] = []
    most = 0
    done: dict[str | None, list[str | None]] = defaultdict(list)

    class Several(pgqpy.AsyncGroupConsumer):
        queue = "test_queue"
        consumer = GROUP
        poll_interval = 0.01
        concurrency = 5
        retry_policy = AT_ONCE

        async def process_event(self, conn: pgqpy.AsyncConnection, event: pgqpy.Event) -> None:
            nonlocal most
            overlapped.append(event.extra1 in running)
            running.add(event.extra1)
            most = max(most, len(running))
            try:
                await asyncio.sleep(0.001 * (event.id % 3))
                if on_conn:
                    await conn.execute(
                        "insert into effect (key, data, worker) values (%s, %s, '')",
                        [event.extra1, event.data],
                    )
                if event.data == "k3-1" and event.retry_count < 2:
                    raise ValueError
                if event.data == "k4-1" and not event.retry_count:
                    event.retry(0)
                    return
                done[event.extra1].append(event.data)
            finally:
                running.discard(event.extra1)

    expected = fill(conn, tick, keys=20, rounds=6)
    asyncio.run(Several(dsn).run(until_empty=True))
    assert most > 1
    assert not any(overlapped)
    assert (effect() if on_conn else done) == expected
    assert parked(group) == {}


def test_a_group_with_parked_events_is_not_dropped_by_mistake(
    conn: Connection, dsn: str, tick: Tick, effect: Effect, group: pgqpy.GroupAdmin
) -> None:
    worker = Picky(dsn)
    worker.retry_policy = BY_HAND
    worker.bad = frozenset({"a1"})
    insert(conn, ("a", "a1"))
    tick()
    worker.run(until_empty=True)
    with pytest.raises(KeysParked, match="1 parked"):
        worker.unregister()
    group.drop_group("test_queue", GROUP, force=True)
    assert pgqpy.Admin(conn).get_consumer_info() == []


def test_isolation_levels_make_no_difference(
    conn: Connection, dsn: str, tick: Tick, effect: Effect, group: pgqpy.GroupAdmin
) -> None:
    class Strict(Picky):
        isolation_level = pgqpy.IsolationLevel.SERIALIZABLE
        bad = frozenset({"k1-1"})

        def on_event_failed(self, event: pgqpy.Event, error: Exception, delay: Any) -> None:
            self.bad = frozenset()

    expected = fill(conn, tick, keys=10, rounds=3)
    Strict(dsn).run(until_empty=True)
    assert effect() == expected
    assert parked(group) == {}


def test_run_once_takes_a_batch(conn: Connection, dsn: str, tick: Tick, effect: Effect) -> None:
    Worker(dsn).register()
    insert(conn, ("a", "a1"))
    tick()
    assert Worker(dsn).run_once() is True
    assert Worker(dsn).run_once() is False
    assert effect() == {"a": ["a1"]}


def test_a_worker_without_rights_is_told_so(conn: Connection, dsn: str, queue: str) -> None:
    conn.execute("set role pgq_writer")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute("select pgq.create_group(%s, 'g', 1, 'ev_data')", [queue])
