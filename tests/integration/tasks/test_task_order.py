"""Tasks with the same order_key are processed in the order of their ids, and hold up no others.

What stands before a lane's mark is moved out of the way by sweeps, so most of these tests are about
two sessions at once: a key's next task must come to light, in any order of their actions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from random import Random
from time import sleep

import psycopg
import pytest
from psycopg import IsolationLevel

from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops
from tests.fixtures.fix_client import PATIENCE, wait_until
from tests.fixtures.fix_db import Calls, Connect, Connection, with_snapshot
from tests.fixtures.task_ops import fail, finish, ids, sweep, sweep_until

QUEUE = "orders"
Task = tuple[int, int]


@pytest.fixture(autouse=True)
def task_queue(conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue(%s)", [QUEUE])


def push(conn: Connection, key: str | None, number: int = 1, queue: str = QUEUE) -> list[int]:
    return task_ops.push_many(conn, queue, number, key)


def claim(
    conn: Connection, number: int = 1, *, random: bool = False, queue: str = QUEUE
) -> list[Task]:
    return task_ops.claim(conn, queue, number=number, random=random)


def make_due(conn: Connection, task: int) -> None:
    conn.execute(
        "update pgq_task.task set pos = pgq_task._position_of(clock_timestamp()) where id = %s",
        [task],
    )


def age(conn: Connection) -> None:
    """A sweep leaves alone what stands behind a claim of the last second."""
    conn.execute(
        "update pgq_task.task set last_attempt = last_attempt - interval '1 minute'"
        " where last_attempt > created"
    )


def hold_back(conn: Connection, head: int, *followers: int) -> None:
    """The followers stand nowhere until the head is gone."""
    age(conn)
    sweep(conn, 2)
    nowhere = conn.execute("select id from pgq_task.task where pos is null order by id").fetchall()
    assert [task for (task,) in nowhere] == sorted(followers)
    assert task_ops.statuses(conn)[head] == "claimed"


def eventually_claimed(conn: Connection, *tasks: int) -> None:
    """Exactly these, one after the other, if each is finished; sweeps find what is late."""
    for expected in tasks:
        claimed = claim(conn, 10) or sweep_until(conn, lambda: claim(conn, 10))
        assert ids(claimed) == [expected]
        finish(conn, claimed[0])


def test_of_one_key_one_task_is_claimed_at_a_time_in_the_order_of_ids(conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue('others')")
    # Keys are of a queue.
    (other,) = push(conn, "a", queue="others")
    for expected in push(conn, "a", 3):
        ((task, version),) = claim(conn, 10, random=True)
        assert task == expected
        assert claim(conn, 10) == []
        finish(conn, (task, version))
    assert ids(claim(conn, queue="others")) == [other]


def test_a_failed_task_holds_back_its_own_key_and_no_other(conn: Connection) -> None:
    first, second = push(conn, "a", 2)
    conn.execute("select pgq_task.push('orders', '1', delay => '1 hour', order_key => 'c')")
    # So does one that is scheduled.
    push(conn, "c")
    others = push(conn, "b") + push(conn, None)
    fail(conn, claim(conn)[0], delay="1 hour")
    assert sorted(ids(claim(conn, 10))) == others
    make_due(conn, first)
    assert ids(claim(conn, 10)) == [first]
    assert second in task_ops.statuses(conn)


def test_followers_of_a_stuck_key_are_out_of_the_way(conn: Connection) -> None:
    push(conn, "stuck", 10_001)
    fail(conn, claim(conn)[0], delay="1 hour")
    others = push(conn, None, 3)
    sweep(conn, 2)
    assert ops.value(conn, "select count(*) from pgq_task.task where pos is null") == 10_000
    conn.execute("vacuum pgq_task.task")
    # 10,000 of them would be hundreds of pages of the table alone, and as many looks at the index.
    assert task_ops.pages_read(conn, "select * from pgq_task.claim('{orders}', 'w')") < 2_000
    assert len(claim(conn, 10)) == len(others) - 1


def test_followers_of_a_busy_key_are_out_of_the_way(conn: Connection) -> None:
    """Each of its tasks is claimed just now, and no sweep finds the head where it can stay."""
    _, *followers = push(conn, "busy", 20)
    others = push(conn, None, 2)
    (head,) = claim(conn)
    sweep(conn, 2)
    held = "select array_agg(id order by id) from pgq_task.task where pos is null"
    assert ops.value(conn, held) == followers
    assert ids(claim(conn, 10)) == others
    finish(conn, head)
    eventually_claimed(conn, *followers[:3])


NAMED = "jsonb_build_array(jsonb_build_object('id', %s::int8, 'version', %s::int4"
GONE = {
    "finished": "finish('w', %s, %s)",
    "finished with others": "finish_many('w', array[%s], array[%s])",
    "failed for good": "fail('w', %s, %s, 'no', final => true)",
    "deleted": f"modify('w', deletes => {NAMED})))",
    "moved to another queue": f"modify('w', changes => {NAMED}, 'queue', 'elsewhere')))",
    "given another key": f"modify('w', changes => {NAMED}, 'order_key', 'b', 'delay', '1 h')))",
}

gone = pytest.mark.parametrize("how", GONE)


def go(conn: Connection, how: str, task: Task) -> None:
    conn.execute(f"select pgq_task.{GONE[how]}".encode(), task)


@pytest.fixture
def head(conn: Connection) -> Task:
    """The first of three tasks with a key, claimed."""
    conn.execute("select pgq_task.create_queue('elsewhere')")
    push(conn, "a", 3)
    return claim(conn)[0]


@gone
def test_however_the_head_goes_the_next_one_comes(conn: Connection, head: Task, how: str) -> None:
    hold_back(conn, 1, 2, 3)
    go(conn, how, head)
    found = task_ops.statuses(conn)
    assert (found[2], found[3]) == ("available", "held")
    eventually_claimed(conn, 2, 3)


@gone
def test_however_a_held_one_goes_the_next_comes(conn: Connection, head: Task, how: str) -> None:
    hold_back(conn, 1, 2, 3)
    go(conn, how, (2, 1))
    finish(conn, head)
    eventually_claimed(conn, 3)


def test_popped_tasks_release_the_next_one(conn: Connection, head: Task) -> None:
    hold_back(conn, 1, 2, 3)
    fail(conn, head)
    for task in (1, 2, 3):
        assert ops.value(conn, "select id from pgq_task.pop('orders')") == task


@gone
def test_ending_the_head_while_a_sweep_holds_back_its_follower_releases_it(
    conn: Connection, connect: Connect, calls: Calls, head: Task, how: str
) -> None:
    sweep(conn, 2)
    conn.execute("update pgq_task.task set pos = pgq_task._position_of(created) where pos is null")
    sweeper, worker = connect(autocommit=False), connect()
    for follower in (2, 3):
        assert ops.value(sweeper, "select pgq_task._hold_back(%s)", follower)
    going = calls.blocked(go, worker, how, head)
    sweeper.commit()
    going.result()
    eventually_claimed(conn, 2)


@gone
def test_a_sweep_does_not_hold_back_for_a_head_that_is_just_going(
    conn: Connection, connect: Connect, head: Task, how: str
) -> None:
    worker = connect(autocommit=False)
    go(worker, how, head)
    sweep(conn, 2)
    worker.commit()
    eventually_claimed(conn, 2)


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_ending_the_head_with_an_old_snapshot_releases_a_task_it_cannot_see(
    conn: Connection, connect: Connect, level: IsolationLevel
) -> None:
    (first,) = push(conn, "a")
    head = claim(conn)[0]
    age(conn)
    sweep(conn, 2)
    worker = with_snapshot(connect, level)
    later = push(conn, "a")
    hold_back(conn, first, *later)
    finish(worker, head)
    worker.commit()
    sweep(conn, 2)
    eventually_claimed(conn, *later)


def test_a_follower_that_is_locked_when_its_turn_comes_is_released_later(
    conn: Connection, connect: Connect, head: Task
) -> None:
    hold_back(conn, 1, 2, 3)
    other, ear = connect(autocommit=False), connect()
    other.execute("select from pgq_task.task where id = 2 for update")
    finish(conn, head)
    sweep(conn, 2)
    assert task_ops.statuses(conn) == {2: "held", 3: "held"}
    assert claim(conn, 10) == []
    # A worker that waits hears of it.
    ear.execute("listen pgq_task")
    ear.execute("select pgq_task.set_waiting(array['orders'])")
    other.rollback()
    sweep(conn, 2)
    assert next(ear.notifies(timeout=PATIENCE, stop_after=1)).payload == QUEUE
    eventually_claimed(conn, 2)


def test_a_task_that_comes_late_goes_first(conn: Connection, connect: Connect) -> None:
    """Ids are drawn when tasks are pushed, not when their transactions commit."""
    producer = connect(autocommit=False)
    (early,) = push(producer, "a")
    (late,) = push(conn, "a")
    assert ids(claim(conn)) == [late]
    producer.commit()
    conn.execute("update pgq_task.task set lease = clock_timestamp() where id = %s", [late])
    ((task, version),) = claim(conn, 10)
    assert task == early
    fail(conn, (task, version), delay="1 hour")
    sweep(conn, 2)
    assert task_ops.statuses(conn) == {early: "scheduled", late: "held"}
    assert ops.value(conn, "select id from pgq_task.task where pos is null") == late
    make_due(conn, early)
    eventually_claimed(conn, early, late)


def work_off(conn: Connection, count: int) -> None:
    """Claim and finish tasks of the key one after the other; the sweeps settle their ids."""
    for number in range(count):
        (claimed,) = claim(conn)
        finish(conn, claimed)
        if number % 50 == 0:
            sweep(conn)


@pytest.mark.parametrize("how", ["pushed", "inserted", "moved"])
def test_a_task_that_comes_late_is_not_overlooked(
    conn: Connection, connect: Connect, how: str
) -> None:
    """Though it is noted that earlier ones are gone."""
    other = connect(autocommit=False)
    if how == "pushed":
        (early,) = push(other, "a")
    elif how == "moved":
        (early,) = push(conn, "b")
    push(conn, "a", 250)
    if how == "moved":
        task_ops.claim(conn, QUEUE, number=1)
    work_off(conn, 200)
    low = ops.value(conn, "select coalesce(max(low), 0) from pgq_task.key_low")
    assert low <= early if how == "pushed" else low > 100
    if how == "inserted":
        early = -1
        insert = f'[{{"queue": "{QUEUE}", "id": -1, "order_key": "a"}}]'
        other.execute("select pgq_task.modify('w', inserts => %s)", [insert])
    elif how == "moved":
        change = f'[{{"id": {early}, "version": 2, "order_key": "a"}}]'
        other.execute("select pgq_task.modify('w', changes => %s)", [change])
    other.commit()
    eventually_claimed(conn, early)


KEYS, TASKS, WORKERS = 6, 12, 5


class Turmoil:
    """Workers that finish, fail, lose, move and delete tasks of a few keys, while others sweep.

    What is done is written to the table ``done`` in the transaction that ends a task.
    """

    def __init__(self, connect: Connect, seed: int) -> None:
        self.random = Random(seed)
        self.stopping = threading.Event()
        self.errors: list[BaseException] = []
        setup = connect()
        setup.execute("create table done (nr bigserial, id bigint, order_key text, how text)")
        setup.execute("select pgq_task.create_queue('elsewhere')")
        setup.execute("update pgq_task.queue set queue_lease = '300 milliseconds'")
        jobs: list[Callable[[Connection, Random], None]] = [
            *(self.produce, self.produce, self.sweep, self.change),
            *[self.work] * WORKERS,
        ]
        self.connections = [connect() for _ in jobs]
        self.producers = 2
        self.threads = [
            threading.Thread(target=self.run, args=[job, conn, Random(seed * 100 + number), number])
            for number, (job, conn) in enumerate(zip(jobs, self.connections, strict=True))
        ]

    def run(
        self,
        job: Callable[[Connection, Random], None],
        conn: Connection,
        random: Random,
        number: int,
    ) -> None:
        try:
            if job == self.produce:
                # A key is one producer's, so that its ids are in the order of the commits.
                keys = [f"key {key}" for key in range(KEYS) if key % self.producers == number]
                for _ in range(TASKS):
                    for key in keys:
                        with conn.transaction(force_rollback=random.random() < 0.1):
                            push(conn, key, random.randint(1, 3))
                return
            while not self.stopping.is_set():
                job(conn, random)
        except BaseException as error:
            self.errors.append(error)
            self.stopping.set()

    def produce(self, conn: Connection, random: Random) -> None:
        raise NotImplementedError

    def sweep(self, conn: Connection, random: Random) -> None:
        conn.execute("select pgq_task.sweep()")
        self.stopping.wait(0.01)

    def change(self, conn: Connection, random: Random) -> None:
        """Users change an unclaimed task: it goes to another lane."""
        to = random.choice(['{"priority": 1}', '{"priority": 0}', '{"delay": "5 ms"}'])
        with suppress(psycopg.errors.SerializationFailure):
            conn.execute("select pgq_task.change_tasks('orders', null, %s, 9)", [to])
        self.stopping.wait(0.02)

    def pop(self, conn: Connection) -> None:
        conn.execute(
            "insert into done (id, order_key, how)"
            " select id, order_key, 'pop' from pgq_task.pop('orders', 2)"
        )

    def work(self, conn: Connection, random: Random) -> None:
        if random.random() < 0.1:
            self.pop(conn)
        claimed = conn.execute(
            "select id, version, order_key from pgq_task.claim(array['orders'], %s, null, %s)",
            [str(id(conn)), random.randint(1, 4)],
        ).fetchall()
        if not claimed:
            self.stopping.wait(0.01)
        for task, version, key in claimed:
            try:
                conn.isolation_level = random.choice(
                    [IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ]
                )
                with conn.transaction(force_rollback=random.random() < 0.05):
                    self.end(conn, random, task, version, key)
                    if random.random() < 0.1:
                        sleep(0.02)
            except psycopg.Error as error:
                # Lost to another worker, or to be retried; a deadlock is neither.
                if error.sqlstate not in ("40001", "PQ071"):
                    raise
            finally:
                conn.isolation_level = None

    def end(self, conn: Connection, random: Random, task: int, version: int, key: str) -> None:
        me = str(id(conn))
        how = random.choices(
            ["finish", "fail", "lose", "move", "delete", "bury"], weights=[50, 15, 5, 10, 10, 10]
        )[0]
        if how == "fail":
            fail(conn, (task, version), delay=f"{random.randint(0, 50)} ms", claimant=me)
        elif how != "lose":
            conn.execute(
                "insert into done (id, order_key, how) values (%s, %s, %s)", [task, key, how]
            )
            named = f'[{{"id": {task}, "version": {version}}}]'
            if how == "bury":
                fail(conn, (task, version), final=True, claimant=me)
            elif how == "finish":
                finish(conn, (task, version), claimant=me)
            elif how == "move":
                named = named.replace("}", ', "queue": "elsewhere"}')
                conn.execute("select pgq_task.modify(%s, changes => %s)", [me, named])
            else:
                conn.execute("select pgq_task.modify(%s, deletes => %s)", [me, named])


@pytest.mark.parametrize("seed", range(2))
def test_in_any_turmoil_each_task_is_done_once_in_the_order_of_its_key_and_none_is_stuck(
    conn: Connection, connect: Connect, seed: int
) -> None:
    turmoil = Turmoil(connect, seed)
    for thread in turmoil.threads:
        thread.start()
    for thread in turmoil.threads[: turmoil.producers]:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    left = "select count(*) from pgq_task.tasks where queue = 'orders'"
    try:
        wait_until(lambda: turmoil.errors or ops.value(conn, left) == 0)
    finally:
        turmoil.stopping.set()
        for thread in turmoil.threads:
            thread.join(PATIENCE)
    assert not turmoil.errors, turmoil.errors
    rows = conn.execute("select order_key, id from done order by nr").fetchall()
    assert len(rows) > KEYS * TASKS
    for key in {key for key, _ in rows}:
        done = [task for each, task in rows if each == key]
        assert done == sorted(set(done))
