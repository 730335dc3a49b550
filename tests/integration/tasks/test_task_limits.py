"""Limits hold for all workers, after deaths and with any backlog; and no task waits for ever."""

from __future__ import annotations

import random
import string
import threading
import time
from bisect import bisect_left
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psycopg
import pytest

from pgqpy.errors import translate_errors
from pgqpy.tasks import Tasks, TaskWorker
from tests.fixtures import queue_ops
from tests.fixtures import task_ops as ops
from tests.fixtures.fix_client import PATIENCE, wait_until
from tests.fixtures.fix_db import Calls, Connect, Connection, with_snapshot
from tests.fixtures.fix_task_worker import running
from tests.fixtures.task_ops import finish, ids, sweep_until

QUEUE = "limited"


@pytest.fixture
def tasks(conn: Connection) -> Connection:
    conn.execute("select pgq_task.create_queue(%s)", [QUEUE])
    return conn


def limit(conn: Connection, **limits: object) -> None:
    names = ", ".join(f"{name} => %({name})s" for name in limits)
    with translate_errors():
        conn.execute(
            f"select pgq_task.set_limits('{QUEUE}'{', ' * bool(names)}{names})".encode(), limits
        )


def push(conn: Connection, key: str | None, number: int = 1) -> list[int]:
    statement = (
        "select pgq_task.push_many('limited', array_fill('1'::jsonb, array[%s]),"
        " headers => jsonb_strip_nulls(jsonb_build_object('limit_key', %s::text)))"
    )
    return [task for (task,) in conn.execute(statement, [number, key])]


def claim(conn: Connection, number: int = 1, lease: str | None = None) -> list[tuple[int, int]]:
    return ops.claim(conn, QUEUE, number=number, lease=lease)


def test_at_most_so_many_of_a_queue_run_at_a_time(tasks: Connection) -> None:
    pushed = push(tasks, None, 10)
    limit(tasks, max_running=3)
    claimed = claim(tasks, 2)
    claimed += claim(tasks, 5)
    assert ids(claimed) == pushed[:3]
    assert claim(tasks) == []
    finish(tasks, claimed[1])
    assert ids(claim(tasks, 5)) == [pushed[3]]


def test_at_most_so_many_of_a_key_run_at_a_time_and_others_pass(tasks: Connection) -> None:
    a = push(tasks, "a", 300)
    b = push(tasks, "b", 2)
    none = push(tasks, None, 2)
    limit(tasks, max_running_per_key=3)
    claimed = claim(tasks, 100, "1 hour")
    assert {*ids(claimed)} == {*a[:3], *b, *none}
    assert claim(tasks) == []
    of_a = [each for each in claimed if each[0] in a]
    # Waiting tasks come in their order, before tasks pushed later.
    later = push(tasks, "a", 1)
    order = []
    while of_a:
        finish(tasks, of_a.pop(0))
        for following in claim(tasks, 5):
            order.append(following[0])
            of_a.append(following)
    assert order == a[3:] + later
    assert set(ops.statuses(tasks)) == {*b, *none}


@pytest.mark.parametrize("limits", [{"max_running": 20}, {"max_running_per_key": 20}])
def test_a_claim_that_begins_at_random_gets_what_waits_before(
    tasks: Connection, limits: dict[str, int]
) -> None:
    pushed = push(tasks, "a", 6)
    limit(tasks, **limits)
    for seed in range(64):
        with tasks.transaction(force_rollback=True):
            tasks.execute("select setseed(%s)", [seed / 64])
            claimed = ops.claim(tasks, QUEUE, number=10, random=True)
            assert sorted(ids(claimed)) == pushed


def test_limits_hold_while_many_claim_and_finish(tasks: Connection, connect: Connect) -> None:
    limit(tasks, max_running=6, max_running_per_key=2)
    pushed = {task: key for key in "abcdef" for task in push(tasks, key, 40)}
    running: Counter[str] = Counter()
    seen: list[int] = []
    too_many: list[str] = []
    lock = threading.Lock()

    def work(conn: Connection) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            claimed = claim(conn, random.randint(1, 3), "1 hour")
            with lock:
                for task, _ in claimed:
                    running[pushed[task]] += 1
                    seen.append(task)
                if running.total() > 6 or max(running.values(), default=0) > 2:
                    too_many.append(str(running))
            time.sleep(0.001)
            with lock:
                # Less by our count before it is less by the server's.
                for task, _ in claimed:
                    running[pushed[task]] -= 1
            finish(conn, *claimed)
            if len(seen) == len(pushed):
                return

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [connect() for _ in range(8)]))
    assert not too_many
    assert sorted(seen) == sorted(pushed)


def test_a_claim_counts_until_it_is_rolled_back(tasks: Connection, connect: Connect) -> None:
    limit(tasks, max_running=1, rate=10, rate_period="1 hour")
    pushed = push(tasks, None, 2)
    other = connect(autocommit=False)
    assert claim(other)[0][0] == pushed[0]
    assert claim(tasks) == []
    other.rollback()
    assert claim(tasks)[0][0] == pushed[0]
    assert claim(other) == []
    other.rollback()


def test_what_a_dead_worker_had_is_free_when_its_lease_ends(tasks: Connection) -> None:
    limit(tasks, max_running_per_key=1)
    # The second one is parked meanwhile, and comes again as well if its worker dies.
    pushed = push(tasks, "a", 2)
    assert len(claim(tasks, 5, "0.1 seconds")) == 1
    seen: list[int] = []
    while len(seen) < 2:
        lost = sweep_until(tasks, lambda: claim(tasks, 5, "0.1 seconds"))
        claimed = sweep_until(tasks, lambda: claim(tasks, 5))
        assert len(lost) == len(claimed) == 1
        seen += ids(claimed)
        finish(tasks, *claimed)
    assert sorted(seen) == pushed


def rate_of(times: list[float], period: float) -> int:
    """The most in any period."""
    return max(number + 1 - bisect_left(times, at - period) for number, at in enumerate(times))


@pytest.mark.parametrize("per_key", [False, True])
def test_a_rate_holds_in_any_period(tasks: Connection, connect: Connect, per_key: bool) -> None:
    period = 0.5
    limit(tasks, rate_period=f"{period} seconds", **{"rate_per_key" if per_key else "rate": 10})
    pushed = push(tasks, "a", 40)
    free = push(tasks, "b" if per_key else None, 5)
    left = set(pushed + free)
    if per_key:
        # Five others pass those that have to wait.
        found = {*ids(claim(tasks, 20, "1 hour"))}
        assert found == {*pushed[:10], *free}
        left -= found
    lock = threading.Lock()
    deadline = time.monotonic() + PATIENCE

    def work(conn: Connection) -> None:
        while left and time.monotonic() < deadline:
            claimed = claim(conn, random.randint(1, 4), "1 hour")
            with lock:
                left.difference_update(task for task, _ in claimed)
            time.sleep(0.005)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [connect() for _ in range(4)]))
    assert not left
    statement = (
        "select extract(epoch from last_attempt)::float8 as at from pgq_task.task"
        " where id = any (%s) order by 1"
    )
    times = [row["at"] for row in ops.rows(tasks, statement, pushed)]
    assert len(times) == 40
    assert rate_of(times, period - 0.000001) <= 10


def pass_minutes(conn: Connection, minutes: int) -> None:
    """Simulate that time has passed: move all recorded times into the past."""
    queue_id = queue_ops.value(conn, "select queue_id from pgq_task.queue")
    for moved in (
        f"pgq_task.limit_{queue_id}_0 set at = at - t, turn = turn - t",
        f"pgq_task.limit_{queue_id}_1 set at = at - t, turn = turn - t",
        "pgq_task.queue_limit set since = since - t",
    ):
        conn.execute(f"update {moved} from make_interval(mins => {minutes}) t".encode())
    places = minutes * 60_000_000 * 256
    conn.execute("update pgq_task.task set pos = pos - %s where lease is null", [places])
    moved = "low = greatest(low - p, 0), ahead = greatest(ahead - p, 0)"
    conn.execute(f"update pgq_task.mark set {moved} from (select {places}::int8) p (p)".encode())


def test_a_task_that_has_waited_for_a_rate_is_not_overtaken(tasks: Connection) -> None:
    limit(tasks, rate_per_key=2, rate_period="1 hour")
    first = push(tasks, "a", 8)
    seen = ids(claim(tasks, 20, "1 day"))
    assert seen == first[:2]
    # From the end of the first hour on there is room for one every half an hour.
    for _ in range(22):
        push(tasks, "a", 1)
        seen += ids(claim(tasks, 20, "1 day"))
        pass_minutes(tasks, 10)
    assert seen == first


def test_limits_that_are_changed_or_taken_away_free_waiting_tasks(tasks: Connection) -> None:
    limit(tasks, max_running_per_key=1)
    pushed = push(tasks, "a", 5)
    claimed = claim(tasks, 5)
    assert len(claimed) == 1
    assert sorted(ops.statuses(tasks).values()) == ["claimed", *["held"] * 4]
    limit(tasks, max_running_per_key=3)
    claimed += claim(tasks, 5)
    assert len(claimed) == 3
    limit(tasks)
    assert not ops.rows(tasks, "select * from pgq_task.get_limits()")
    claimed += claim(tasks, 5)
    assert ids(claimed) == pushed


def test_what_runs_when_limits_are_set_counts(tasks: Connection) -> None:
    push(tasks, "a", 6)
    claimed = claim(tasks, 3)
    limit(tasks, max_running=3, max_running_per_key=2)
    assert claim(tasks) == []
    finish(tasks, *claimed[:2])
    assert len(claim(tasks, 5)) == 1
    limit(tasks, rate=100)
    claimed += claim(tasks, 1)
    limit(tasks, max_running_per_key=3)
    assert claim(tasks) == []


def test_a_task_that_waits_for_a_rate_is_free_when_it_is_raised(tasks: Connection) -> None:
    limit(tasks, rate_per_key=1, rate_period="1 day")
    pushed = push(tasks, "a", 400)
    seen = ids(claim(tasks, 5))
    assert seen == pushed[:1]
    assert Counter(ops.statuses(tasks).values()) == {"claimed": 1, "scheduled": 399}
    limit(tasks, rate_per_key=300, rate_period="1 day")
    # A new task stands behind them, and does not wait for the turns of before.
    pushed += push(tasks, "a", 1)
    seen += ids(claim(tasks, 1000))
    assert sorted(seen) == pushed[:300]
    limit(tasks)
    seen += ids(claim(tasks, 1000))
    assert sorted(seen) == pushed


def test_what_is_scheduled_stays_so_when_limits_are_changed(tasks: Connection) -> None:
    limit(tasks, rate_per_key=1)
    tasks.execute(
        "select pgq_task.push_many('limited', array_fill('1'::jsonb, array[600]),"
        " delay => '1 hour', headers => '{\"limit_key\": \"a\"}')"
    )
    inserts = [
        {"queue": QUEUE, "payload": 1, "delay": "1 hour", "headers": {"limit_key": "a"}}
        for _ in range(600)
    ]
    ops.modify(tasks, inserts=inserts)
    limit(tasks, rate_per_key=2)
    limit(tasks)
    assert Counter(ops.statuses(tasks).values()) == {"scheduled": 1200}


def test_renewing_a_lease_that_had_ended_counts_again(tasks: Connection) -> None:
    limit(tasks, max_running=1)
    # Waiting tasks stand before the end of a lease that is renewed behind their push.
    _, other, _ = push(tasks, None, 3)
    [first] = claim(tasks)
    renewed = "select version from pgq_task.renew('w', array[%s], array[%s], %s::interval)"
    version = queue_ops.value(tasks, renewed, *first, "0.3 seconds")
    second = wait_until(lambda: claim(tasks))
    assert second[0][0] == other
    finish(tasks, *second)
    # It was slow, but no other worker has taken its task over.
    assert queue_ops.value(tasks, renewed, first[0], version, "1 hour")
    assert claim(tasks) == []


def test_keys_may_be_of_any_length(tasks: Connection) -> None:
    limit(tasks, max_running=9, max_running_per_key=1, rate_per_key=100)
    # Nothing that could be compressed.
    long = "".join(random.choices(string.printable, k=20_000))
    for key in (long, long + "x", ""):
        pushed = push(tasks, key, 2)
        claimed = ids(claim(tasks, 5))
        assert claimed == (pushed[:1] if key else pushed)


def test_how_much_is_used_is_told(tasks: Connection) -> None:
    assert Tasks(tasks).limits() == []
    limit(tasks, max_running=5, rate=100, rate_period="1 hour")
    push(tasks, None, 4)
    finish(tasks, *claim(tasks, 2))
    claim(tasks, 1)
    [used] = Tasks(tasks).limits(QUEUE)
    assert (used.max_running, used.running, used.rate, used.recent) == (5, 1, 100, 3)
    limit(tasks, rate_per_key=7)
    [used] = Tasks(tasks).limits()
    assert (used.running, used.recent) == (None, 3)
    [counted] = ops.rows(tasks, "select claimed from pgq_task.get_statistics('limited')")
    assert counted["claimed"] == 3


def test_a_waiting_task_can_be_moved_and_deleted(tasks: Connection) -> None:
    tasks.execute("select pgq_task.create_queue('other')")
    limit(tasks, max_running_per_key=1)
    _, moved, gone = push(tasks, "a", 3)
    claim(tasks, 5)
    assert ops.statuses(tasks)[moved] == "held"
    [info] = ops.rows(tasks, "select * from pgq_task.get_queue_info('limited')")
    assert (info["claimed"], info["held"], info["scheduled"]) == (1, 2, 0)
    assert info["next_time"] is None
    ops.modify(tasks, changes=[{"id": moved, "version": 1, "queue": "other"}], deletes=[(gone, 1)])
    assert ids(ops.claim(tasks, "other")) == [moved]
    [info] = ops.rows(tasks, "select * from pgq_task.get_queue_info('limited')")
    assert (info["total"], info["claimed"], info["held"]) == (1, 1, 0)


def test_priorities_count_among_waiting_tasks(tasks: Connection) -> None:
    limit(tasks, max_running_per_key=1)
    first = ops.push(tasks, QUEUE, headers={"limit_key": "a"})
    low = ops.push(tasks, QUEUE, headers={"limit_key": "a"})
    [claimed] = claim(tasks, 5)
    assert claimed[0] == first
    high = [ops.push(tasks, QUEUE, headers={"limit_key": "a"}, priority=5)]
    claim(tasks, 5)
    high += [ops.push(tasks, QUEUE, headers={"limit_key": "a"}, priority=5) for _ in range(2)]
    for expected in (*high, low):
        finish(tasks, claimed)
        [claimed] = claim(tasks, 5)
        assert claimed[0] == expected


def test_what_counts_is_forgotten_when_it_does_not_any_more(tasks: Connection) -> None:
    """The tables of a limit are emptied in turn, and nothing is counted wrong for it."""
    limit(tasks, max_running_per_key=2, rate_per_key=1000, rate_period="0.05 seconds")
    queue_id = queue_ops.value(tasks, "select queue_id from pgq_task.queue")
    push(tasks, "slow", 3)
    slow = claim(tasks, 5, "1 hour")
    assert len(slow) == 2
    rotated = 0
    for _ in range(40):
        [task] = push(tasks, "a", 1)
        [claimed] = claim(tasks)
        assert claimed[0] == task
        finish(tasks, claimed)
        time.sleep(0.005)
        rotated += queue_ops.value(tasks, "select pgq_task._rotate_limits(%s, 0)::int", queue_id)
    assert rotated > 2
    assert claim(tasks) == []
    finish(tasks, slow[0])
    assert len(claim(tasks, 5)) == 1
    kept = ops.rows(
        tasks,
        f"select (select count(*) from pgq_task.limit_{queue_id}_0)"
        f"     + (select count(*) from pgq_task.limit_{queue_id}_1) as n",
    )
    assert kept[0]["n"] < 80


def test_a_claim_of_a_dropped_queue_says_so(
    tasks: Connection, connect: Connect, calls: Calls
) -> None:
    limit(tasks, max_running=5)
    push(tasks, None, 2)
    # An older snapshot cannot claim.
    with pytest.raises(psycopg.Error, match="READ COMMITTED"):
        claim(with_snapshot(connect))
    dropper = connect(autocommit=False)
    dropper.execute("select pgq_task.drop_queue('limited', true)")
    third = connect()
    claiming = calls.blocked(claim, third)
    dropper.commit()
    with suppress(psycopg.Error):
        assert claiming.result() == []
    with pytest.raises(psycopg.Error, match="task queue 'limited' does not exist"):
        claiming.result() or claim(third)
    left = "select count(*) from pg_class where relname ~ '^limit_\\d'"
    assert queue_ops.value(tasks, left) == 0


def test_a_clock_that_goes_back_keeps_no_task_waiting(tasks: Connection) -> None:
    limit(tasks, max_running=5, rate=2, rate_period="1 hour")
    push(tasks, None, 3)
    assert len(claim(tasks, 5)) == 2
    queue_id = queue_ops.value(tasks, "select queue_id from pgq_task.queue")
    ahead = f"update pgq_task.limit_{queue_id}_0 set at = at + %s::interval".encode()
    tasks.execute(ahead, ["1 day"])
    assert claim(tasks) == []
    due = "select extract(epoch from pgq_task.set_waiting(array['limited']))::float8"
    assert 3500 < queue_ops.value(tasks, due) <= 3600
    tasks.execute(ahead, ["-2 hours"])
    assert len(claim(tasks)) == 1


@pytest.mark.any_pg
def test_a_worker_goes_on_when_what_it_does_itself_makes_room(tasks: Connection, dsn: str) -> None:
    limit(tasks, max_running_per_key=1)
    for key in "ab":
        push(tasks, key, 5)
    worker = TaskWorker(dsn, QUEUE, lambda task: time.sleep(0.1), concurrency=4)
    # No worker polls for them, and no notification tells of them.
    worker.poll_interval = 3600
    with running(worker):
        wait_until(lambda: not ops.statuses(tasks))


@pytest.fixture
def ear(tasks: Connection, connect: Connect) -> Connection:
    ear = connect()
    ear.execute("listen pgq_task")
    return ear


@pytest.mark.parametrize("limited", [False, True])
def test_a_worker_that_waits_for_room_is_notified_when_a_task_is_finished(
    tasks: Connection, ear: Connection, limited: bool
) -> None:
    if limited:
        limit(tasks, max_running=1)
    push(tasks, None, 4)
    for call in ("finish('w', %s, %s)", "finish_many('w', array[%s], array[%s])"):
        [claimed] = claim(tasks)
        tasks.execute("select pgq_task.set_waiting(array['limited'])")
        tasks.execute(f"select pgq_task.{call}".encode(), claimed)
        tasks.execute("notify pgq_task, 'end'")
        told = [note.payload for note in ear.notifies(timeout=PATIENCE, stop_after=1 + limited)]
        assert told == [QUEUE] * limited + ["end"]


def test_a_waiting_worker_knows_when_the_rate_allows_the_next(tasks: Connection) -> None:
    waiting = "select extract(epoch from pgq_task.set_waiting(array['limited']))::float8"
    push(tasks, None, 2)
    limit(tasks, rate=1, rate_period="1 hour")
    assert queue_ops.value(tasks, waiting) is None
    claim(tasks)
    assert 3500 < queue_ops.value(tasks, waiting) <= 3600


def test_a_worker_that_finds_no_room_looks_again(tasks: Connection, ear: Connection) -> None:
    limit(tasks, max_running_per_key=1)
    push(tasks, "a", 3000)
    other = push(tasks, "b")
    assert len(claim(tasks)) == 1
    tasks.execute("select pgq_task.set_waiting(array['limited'])")
    while not (found := claim(tasks)):
        assert next(ear.notifies(timeout=PATIENCE)).payload == QUEUE
    assert ids(found) == other
