"""Each task is claimed by one worker at a time, even with others claiming; none is left out."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg import errors

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection

pytestmark = pytest.mark.smoke

QUEUE = "tasks"
CLAIM = "select id, version from pgq_task.claim(array[%s], %s, %s, %s, %s)"


@pytest.fixture
def tasks(conn: Connection) -> Connection:
    conn.execute("select pgq_task.create_queue(%s)", [QUEUE])
    return conn


def push_many(conn: Connection, count: int) -> list[int]:
    found = conn.execute(
        "select pgq_task.push_many(%s, array(select to_jsonb(n) from generate_series(1, %s) n))",
        [QUEUE, count],
    )
    return [task for (task,) in found.fetchall()]


def claim(
    conn: Connection,
    max_tasks: int = 1,
    *,
    claimant: str = "me",
    lease: str | None = None,
    random_choice: bool = True,
) -> list[tuple[int, int]]:
    return conn.execute(CLAIM, [QUEUE, claimant, lease, max_tasks, random_choice]).fetchall()


def test_many_workers_at_once_claim_each_task_once(tasks: Connection, connect: Connect) -> None:
    pushed = push_many(tasks, 2000)
    workers = [connect() for _ in range(16)]

    def work(number: int) -> list[int]:
        conn, mine = workers[number], []
        how_many = (1, 3, 40)[number % 3]
        options = {"claimant": str(number), "lease": "1 hour"}
        while claimed := claim(conn, how_many, **options, random_choice=number % 2 == 0):
            mine += [task for task, _ in claimed]
            if number % 4 == 0:
                conn.execute("select pgq_task.sweep()")
        return mine

    with ThreadPoolExecutor(len(workers)) as pool:
        found = [task for mine in pool.map(work, range(len(workers))) for task in mine]
    assert sorted(found) == pushed


def test_a_claim_is_a_heap_only_update(tasks: Connection) -> None:
    """No index entry is made for it: dead ones are what slows queues down."""
    push_many(tasks, 1000)
    while claim(tasks, 1) and claim(tasks, 10):
        pass
    deadline = time.monotonic() + 60
    while True:
        updates, heap_only = tasks.execute(
            "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables"
            " where relid = 'pgq_task.task'::regclass"
        ).fetchall()[0]
        if updates >= 1000:
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # A page that was filled by the push has room for its own claims.
    assert heap_only >= 0.95 * updates


def test_one_bad_task_does_not_hold_up_the_others(tasks: Connection) -> None:
    """Claims begin at random with one of those that wait longest."""
    push_many(tasks, 40)
    # Where nothing has waited there is no choice.
    tasks.execute("select pg_sleep(0.2)")
    firsts = set()
    for _ in range(100):
        [(task, version)] = claim(tasks)
        firsts.add(task)
        tasks.execute(
            "select * from pgq_task.release('me', array[%s]::bigint[], array[%s])", [task, version]
        )
    assert len(firsts) > 10


def test_without_chance_the_first_that_became_available_comes_first(tasks: Connection) -> None:
    pushed = push_many(tasks, 50)
    found = [claim(tasks, random_choice=False)[0][0] for _ in range(50)]
    assert found == pushed


def test_higher_priorities_come_first_and_queues_take_turns(tasks: Connection) -> None:
    for queue in ("a", "b"):
        tasks.execute("select pgq_task.create_queue(%s)", [queue])
        for priority in (-1, 0, 5):
            for _ in range(30):
                tasks.execute(
                    f"select pgq_task.push('{queue}', '1', priority => {priority})".encode()
                )
    found = [
        tasks.execute(
            "select queue, priority from pgq_task.claim('{a,b}', 'me', max_tasks => 1)"
        ).fetchall()[0]
        for _ in range(180)
    ]
    assert [priority for _, priority in found] == [5] * 60 + [0] * 60 + [-1] * 60
    # By chance they would not once in 500 million times.
    assert {queue for queue, _ in found[:30]} == {"a", "b"}


@pytest.mark.one_database
@pytest.mark.parametrize("priority", ["40000", "-32769", "null"])
def test_a_priority_that_is_none_is_refused(tasks: Connection, priority: str) -> None:
    for call in (
        "push('tasks', '1', priority => {})",
        "push('tasks', '1', priority => {}, unique_key => 'k')",
        "push_many('tasks', array['1']::jsonb[], priority => {})",
    ):
        with pytest.raises(errors.DatabaseError, match="whole number between") as caught:
            tasks.execute(f"select pgq_task.{call.format(priority)}".encode())
        assert caught.value.sqlstate == "PQ072"
    assert ops.value(tasks, "select count(*) from pgq_task.task") == 0


def test_a_task_with_an_uncommitted_claim_is_not_claimed_again(
    tasks: Connection, connect: Connect
) -> None:
    push_many(tasks, 3)
    other = connect(autocommit=False)
    [(mine, _)] = claim(other)
    assert mine not in [task for task, _ in claim(tasks, 10)]
    other.rollback()
    assert [task for task, _ in claim(tasks, 10)] == [mine]


def test_a_worker_of_repeatable_read_gets_tasks_and_spoils_nothing(
    tasks: Connection, connect: Connect
) -> None:
    """Its snapshot does not show what others have pushed since: its marks would pass that."""
    old = connect(autocommit=False)
    old.execute("set transaction isolation level repeatable read")
    seen = push_many(tasks, 200)
    old.execute("select from pgq_task.task")
    later = push_many(tasks, 100)
    time.sleep(0.05)
    ahead = "select pg_sequence_last_value(lane_ahead) from pgq_task.lane"
    before = ops.value(tasks, ahead)
    assert {task for task, _ in claim(old, 200)} == set(seen)
    assert ops.value(tasks, ahead) == before
    old.commit()
    assert {task for task, _ in claim(tasks, 300)} == set(later)


def late_behind_the_mark(tasks: Connection, connect: Connect) -> tuple[Connection, int]:
    """A task whose push is not committed, and others behind it, of which half are claimed."""
    pusher = connect(autocommit=False)
    [late] = push_many(pusher, 1)
    push_many(tasks, 200)
    time.sleep(0.05)
    assert len(claim(tasks, 100, random_choice=False)) == 100
    ahead = "select pg_sequence_last_value(lane_ahead) from pgq_task.lane"
    assert ops.value(tasks, ahead) > ops.value(
        pusher, "select pos from pgq_task.task where id = %s", late
    )
    return pusher, late


def test_what_comes_to_light_behind_the_mark_is_claimed_when_nothing_else_is_there(
    tasks: Connection, connect: Connect
) -> None:
    pusher, late = late_behind_the_mark(tasks, connect)
    assert len(claim(tasks, 1000)) == 100
    pusher.commit()
    assert [task for task, _ in claim(tasks)] == [late]


def test_what_comes_to_light_behind_the_mark_does_not_wait_for_the_others(
    tasks: Connection, connect: Connect
) -> None:
    """A sweep moves the mark back to it."""
    pusher, late = late_behind_the_mark(tasks, connect)
    pusher.commit()
    assert claim(tasks, random_choice=False)[0][0] != late

    def found() -> bool:
        time.sleep(0.1)
        tasks.execute("select pgq_task.sweep()")
        return claim(tasks, random_choice=False)[0][0] == late

    assert any(found() for _ in range(50))


def test_claims_that_run_dry_do_not_hide_what_comes_to_light_late(
    tasks: Connection, connect: Connect
) -> None:
    """Transactions push, wait, and commit in any order, while workers claim, fail and sweep."""
    stop = threading.Event()
    pushed: list[int] = []
    done: Counter[int] = Counter()
    lock = threading.Lock()

    def push(conn: Connection, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(25):
            count = chance.choice((1, 1, 2, 30))
            conn.execute("begin")
            if chance.random() < 0.3:
                conn.execute("savepoint s")
            mine = push_many(conn, count)
            if chance.random() < 0.5:
                time.sleep(chance.choice((0.01, 0.3)))
            if chance.random() < 0.2:
                conn.execute("rollback")
                continue
            conn.execute("commit")
            with lock:
                pushed.extend(mine)

    def work(conn: Connection, seed: int) -> None:
        chance = random.Random(seed)
        while not stop.is_set():
            worker, how_many = f"w{seed}", chance.choice((1, 1, 5, 50))
            what = chance.random()
            conn.execute("begin")
            if what < 0.2:
                conn.execute("savepoint s")
            claimed = claim(conn, how_many, claimant=worker, lease="300 milliseconds")
            if what < 0.1:
                time.sleep(0.25)
                conn.execute("rollback")
                continue
            if what < 0.3:
                conn.execute("rollback to savepoint s" if what < 0.2 else "rollback")
                conn.execute("commit")
                continue
            conn.execute("commit")
            if not claimed:
                conn.execute("select pgq_task.sweep()")
                time.sleep(0.02)
            elif what < 0.4:
                continue  # as if killed
            elif what < 0.5:
                for task, version in claimed:
                    conn.execute(
                        "select pgq_task.fail_many(%s, array[%s]::bigint[], array[%s],"
                        " array['no'], array[interval '50 ms'])",
                        [worker, task, version],
                    )
            else:
                ids, versions = [task for task, _ in claimed], [version for _, version in claimed]
                conn.execute("begin")
                lost = conn.execute(
                    "select pgq_task.finish_many(%s, %s::bigint[], %s::int4[])",
                    [worker, ids, versions],
                ).fetchall()
                if what < 0.6:
                    time.sleep(0.15)
                    conn.execute("rollback")
                    continue
                conn.execute("commit")
                with lock:
                    done.update(set(ids) - {task for (task,) in lost})

    pushers = [threading.Thread(target=push, args=(connect(), seed)) for seed in range(4)]
    workers = [threading.Thread(target=work, args=(connect(), 100 + seed)) for seed in range(4)]
    for thread in pushers + workers:
        thread.start()
    for thread in pushers:
        thread.join()
    deadline = time.monotonic() + 120

    def failed() -> set[int]:
        """Those that were lost five times, by chance."""
        rows = tasks.execute(
            "select id from pgq_task.tasks"
            " where queue = 'tasks.failed' and (headers ->> 'attempts')::int >= 5"
        )
        return {task for (task,) in rows}

    # Not by looking at the queue's own table, which would find what claims do not.
    while len(done) + len(failed()) < len(pushed) and time.monotonic() < deadline:
        time.sleep(0.05)
    stop.set()
    for thread in workers:
        thread.join()
    assert set(done) | failed() == set(pushed)
    assert max(done.values()) == 1
    assert ops.value(tasks, "select count(*) from pgq_task.tasks where queue = 'tasks'") == 0
