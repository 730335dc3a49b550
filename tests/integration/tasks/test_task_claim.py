"""Each task is claimed by one worker at a time, even with others claiming; none is left out."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.task_ops import ids, push_many, sweep

pytestmark = pytest.mark.smoke

QUEUE = "tasks"
AHEAD = "select ahead from pgq_task.marked_lane"


@pytest.fixture
def tasks(conn: Connection) -> Connection:
    conn.execute("select pgq_task.create_queue(%s)", [QUEUE])
    return conn


def claim(
    conn: Connection,
    number: int = 1,
    *,
    claimant: str = "me",
    lease: str | None = None,
    random_choice: bool = True,
) -> list[tuple[int, int]]:
    return task_ops.claim(
        conn, QUEUE, claimant=claimant, lease=lease, number=number, random=random_choice
    )


def test_many_workers_at_once_claim_each_task_once(tasks: Connection, connect: Connect) -> None:
    pushed = push_many(tasks, QUEUE, 1000)
    workers = [connect() for _ in range(16)]

    def work(number: int) -> list[int]:
        conn, mine = workers[number], []
        how_many = (1, 3, 40)[number % 3]
        options = {"claimant": str(number), "lease": "1 hour"}
        while claimed := claim(conn, how_many, **options, random_choice=number % 2 == 0):
            mine += ids(claimed)
            if number % 4 == 0:
                conn.execute("select pgq_task.sweep()")
        return mine

    with ThreadPoolExecutor(len(workers)) as pool:
        found = [task for mine in pool.map(work, range(len(workers))) for task in mine]
    assert sorted(found) == pushed


def test_a_claim_is_a_heap_only_update(tasks: Connection) -> None:
    """No index entry is made for it: dead ones are what slows queues down."""
    push_many(tasks, QUEUE, 500)
    counted = "pg_stat_user_tables where relid = 'pgq_task.task'::regclass"
    while claim(tasks, 1) and claim(tasks, 10):
        pass
    tasks.execute("select pg_stat_force_next_flush()")
    assert ops.value(tasks, f"select n_tup_upd from {counted}") >= 500
    # A page that was filled by the push has room for its own claims.
    assert ops.value(tasks, f"select n_tup_hot_upd >= 0.95 * n_tup_upd from {counted}")


def test_one_bad_task_does_not_hold_up_the_others(tasks: Connection) -> None:
    """Claims begin at random with one of those that wait longest."""
    push_many(tasks, QUEUE, 40)
    # Where nothing has waited there is no choice.
    tasks.execute("select pg_sleep(0.2)")
    firsts = set()
    for _ in range(100):
        [task] = claim(tasks)
        firsts.add(task[0])
        tasks.execute("select pgq_task.release('me', array[%s]::bigint[], array[%s])", task)
    assert len(firsts) > 10


def test_without_chance_the_first_that_became_available_comes_first(tasks: Connection) -> None:
    pushed = push_many(tasks, QUEUE, 50)
    found = [claim(tasks, random_choice=False)[0][0] for _ in range(50)]
    assert found == pushed


def test_higher_priorities_come_first_and_queues_take_turns(tasks: Connection) -> None:
    for queue in ("a", "b"):
        tasks.execute("select pgq_task.create_queue(%s)", [queue])
        for priority in (-1, 0, 5):
            push = "select pgq_task.push(%s, '1', priority => %s) from generate_series(1, 30)"
            tasks.execute(push, [queue, priority])
    one = "select queue, priority from pgq_task.claim('{a,b}', 'me', max_tasks => 1)"
    found = [tasks.execute(one).fetchall()[0] for _ in range(180)]
    assert [priority for _, priority in found] == [5] * 60 + [0] * 60 + [-1] * 60
    # By chance they would not once in 500 million times.
    assert {queue for queue, _ in found[:30]} == {"a", "b"}


def test_a_claim_in_repeatable_read_spoils_nothing(tasks: Connection, connect: Connect) -> None:
    """Its snapshot does not show what others have pushed since: its marks would pass that."""
    old = connect(autocommit=False)
    old.execute("set transaction isolation level repeatable read")
    seen = push_many(tasks, QUEUE, 200)
    old.execute("select from pgq_task.task")
    later = push_many(tasks, QUEUE, 100)
    time.sleep(0.05)
    before = ops.value(tasks, AHEAD)
    assert {task for task, _ in claim(old, 200)} == set(seen)
    assert ops.value(tasks, AHEAD) == before
    old.commit()
    assert {task for task, _ in claim(tasks, 300)} == set(later)


@pytest.fixture
def late(tasks: Connection, connect: Connect) -> tuple[Connection, int]:
    """A task whose push is not committed, and others behind it, of which half are claimed."""
    pusher = connect(autocommit=False)
    [late] = push_many(pusher, QUEUE)
    push_many(tasks, QUEUE, 200)
    time.sleep(0.05)
    assert len(claim(tasks, 100, random_choice=False)) == 100
    passed = ops.value(pusher, "select pos from pgq_task.task where id = %s", late)
    assert ops.value(tasks, AHEAD) > passed
    return pusher, late


def test_what_comes_to_light_behind_the_mark_is_claimed_when_nothing_else_is_there(
    tasks: Connection, late: tuple[Connection, int]
) -> None:
    assert len(claim(tasks, 1000)) == 100
    late[0].commit()
    assert ids(claim(tasks)) == [late[1]]


def test_what_comes_to_light_behind_the_mark_does_not_wait_for_the_others(
    tasks: Connection, late: tuple[Connection, int]
) -> None:
    """A sweep moves the mark back to it."""
    late[0].commit()
    assert claim(tasks, random_choice=False)[0][0] != late[1]
    sweep(tasks, 5)
    assert claim(tasks, random_choice=False)[0][0] == late[1]


def test_claims_that_run_dry_hide_no_late_commits(tasks: Connection, connect: Connect) -> None:
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
            mine = push_many(conn, QUEUE, count)
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
                    failing = "select pgq_task.fail_many(%s, array[%s]::bigint[], array[%s],"
                    failing += " array['no'], array[interval '50 ms'])"
                    conn.execute(failing, [worker, task, version])
            else:
                mine, versions = map(list, zip(*claimed, strict=True))
                conn.execute("begin")
                finish = "select pgq_task.finish_many(%s, %s::bigint[], %s::int4[])"
                lost = conn.execute(finish, [worker, mine, versions]).fetchall()
                if what < 0.6:
                    time.sleep(0.15)
                    conn.execute("rollback")
                    continue
                conn.execute("commit")
                with lock:
                    done.update(set(mine) - {task for (task,) in lost})

    pushers = [threading.Thread(target=push, args=(connect(), seed)) for seed in range(4)]
    workers = [threading.Thread(target=work, args=(connect(), 100 + seed)) for seed in range(4)]
    for thread in pushers + workers:
        thread.start()
    for thread in pushers:
        thread.join()

    def failed() -> set[int]:
        """Those that were lost five times, by chance."""
        rows = tasks.execute(
            "select id from pgq_task.tasks"
            " where queue = 'tasks.failed' and (headers ->> 'attempts')::int >= 5"
        )
        return {task for (task,) in rows}

    # Not by looking at the queue's own table, which would find what claims do not.
    try:
        wait_until(lambda: len(done) + len(failed()) >= len(pushed))
    finally:
        stop.set()
        for thread in workers:
            thread.join()
    assert set(done) | failed() == set(pushed)
    assert max(done.values()) == 1
    assert ops.value(tasks, "select count(*) from pgq_task.tasks where queue = 'tasks'") == 0
