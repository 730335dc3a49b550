"""Tasks with the same order_key are processed in the order of their ids, and hold up no others.

What stands before a lane's mark is moved out of the way by sweeps, so most of these tests are about
two sessions at once: a key's next task must come to light, in any order of their actions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from random import Random
from time import monotonic, sleep

import psycopg
import pytest
from psycopg import IsolationLevel

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import PATIENCE
from tests.fixtures.fix_db import Connect, Connection

QUEUE = "orders"
Task = tuple[int, int]


@pytest.fixture(autouse=True)
def task_queue(conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue(%s)", [QUEUE])


def push(conn: Connection, key: str | None, number: int = 1, queue: str = QUEUE) -> list[int]:
    rows = conn.execute(
        "select pgq_task.push_many(%s, array_fill('1'::jsonb, array[%s]),"
        " order_keys => array_fill(%s::text, array[%s]))",
        [queue, number, key, number],
    )
    return [row[0] for row in rows]


def claim(
    conn: Connection, number: int = 1, *, random: bool = False, queue: str = QUEUE
) -> list[Task]:
    return conn.execute(
        "select id, version from pgq_task.claim(array[%s], 'worker', null, %s, %s)",
        [queue, number, random],
    ).fetchall()


def finish(conn: Connection, task: Task) -> None:
    conn.execute("select pgq_task.finish('worker', %s, %s)", task)


def fail(
    conn: Connection,
    task: Task,
    delay: str = "1 hour",
    *,
    final: bool = False,
    claimant: str = "worker",
) -> None:
    conn.execute("select pgq_task.fail(%s, %s, %s, 'no', %s, %s)", [claimant, *task, delay, final])


def sweep(conn: Connection) -> None:
    """Sweeps until it has looked at all that is committed now."""
    for _ in range(2):
        deadline = monotonic() + PATIENCE
        while not ops.value(conn, "select pgq_task.sweep()"):
            assert monotonic() < deadline
            sleep(0.02)


def make_due(conn: Connection, task: int) -> None:
    conn.execute(
        "update pgq_task.task set pos = pgq_task._position_of(clock_timestamp()) where id = %s",
        [task],
    )


def status(conn: Connection) -> dict[int, str]:
    return dict(conn.execute("select id, status from pgq_task.tasks").fetchall())


def age(conn: Connection) -> None:
    """A sweep leaves alone what stands behind a claim of the last second."""
    conn.execute(
        "update pgq_task.task set last_attempt = last_attempt - interval '1 minute'"
        " where last_attempt > created"
    )


def hold_back(conn: Connection, head: int, *followers: int) -> None:
    """The followers stand nowhere until the head is gone."""
    age(conn)
    sweep(conn)
    nowhere = conn.execute("select id from pgq_task.task where pos is null order by id").fetchall()
    assert [task for (task,) in nowhere] == sorted(followers)
    assert status(conn)[head] == "claimed"


def eventually_claimed(conn: Connection, *tasks: int) -> None:
    """Exactly these, one after the other, if each is finished; sweeps find what is late."""
    for expected in tasks:
        deadline = monotonic() + PATIENCE
        while not (claimed := claim(conn, 10)):
            assert monotonic() < deadline, f"task {expected} is stuck"
            sweep(conn)
        assert [task for task, _ in claimed] == [expected]
        finish(conn, claimed[0])


def test_of_one_key_one_task_is_claimed_at_a_time_in_the_order_of_ids(conn: Connection) -> None:
    tasks = push(conn, "a", 3)
    for expected in tasks:
        ((task, version),) = claim(conn, 10, random=True)
        assert task == expected
        assert claim(conn, 10) == []
        finish(conn, (task, version))


def test_a_failed_task_holds_back_its_own_key_and_no_other(conn: Connection) -> None:
    first, second = push(conn, "a", 2)
    others = push(conn, "b") + push(conn, None)
    fail(conn, claim(conn)[0])
    claimed = claim(conn, 10)
    assert sorted(task for task, _ in claimed) == others
    make_due(conn, first)
    assert [task for task, _ in claim(conn, 10)] == [first]
    assert second in status(conn)


def test_a_scheduled_task_holds_back_the_later_ones_of_its_key(conn: Connection) -> None:
    conn.execute("select pgq_task.push('orders', '1', delay => '1 hour', order_key => 'a')")
    push(conn, "a")
    (other,) = push(conn, "b")
    assert [task for task, _ in claim(conn, 10)] == [other]


def test_keys_are_of_a_queue(conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue('others')")
    push(conn, "a")
    (other,) = push(conn, "a", queue="others")
    assert claim(conn)
    assert [task for task, _ in claim(conn, queue="others")] == [other]


def test_ten_thousand_followers_of_a_stuck_key_are_out_of_everybody_elses_way(
    conn: Connection,
) -> None:
    push(conn, "stuck", 10_001)
    fail(conn, claim(conn)[0])
    others = push(conn, None, 3)
    sweep(conn)
    assert ops.value(conn, "select count(*) from pgq_task.task where pos is null") == 10_000
    conn.execute("vacuum pgq_task.task")
    ((plan,),) = conn.execute(
        "explain (analyze, buffers, format json) select * from pgq_task.claim(array['orders'], 'w')"
    )
    # 10,000 of them would be hundreds of pages of the table alone, and as many looks at the index.
    assert plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"] < 2_000
    assert len(claim(conn, 10)) == len(others) - 1


def test_followers_of_a_key_that_is_never_at_rest_are_out_of_the_way_as_well(
    conn: Connection,
) -> None:
    """Each of its tasks is claimed just now, and no sweep finds the head where it can stay."""
    _, *followers = push(conn, "busy", 20)
    others = push(conn, None, 2)
    (head,) = claim(conn)
    sweep(conn)
    held = "select array_agg(id order by id) from pgq_task.task where pos is null"
    assert ops.value(conn, held) == followers
    assert [task for task, _ in claim(conn, 10)] == others
    finish(conn, head)
    eventually_claimed(conn, *followers[:3])


def test_the_next_one_is_available_when_the_one_before_is_finished(conn: Connection) -> None:
    tasks = push(conn, "a", 3)
    head = claim(conn)[0]
    hold_back(conn, *tasks)
    finish(conn, head)
    assert status(conn) == {tasks[1]: "available", tasks[2]: "held"}
    eventually_claimed(conn, *tasks[1:])


GONE: dict[str, Callable[[Connection, Task], object]] = {
    "finished": finish,
    "finished with others": lambda conn, task: conn.execute(
        "select pgq_task.finish_many('worker', %s, %s)", [[task[0]], [task[1]]]
    ),
    "failed for good": lambda conn, task: fail(conn, task, final=True),
    "deleted": lambda conn, task: conn.execute(
        "select pgq_task.modify('worker', deletes => jsonb_build_array(jsonb_build_object("
        "'id', %s::int8, 'version', %s::int4)))",
        task,
    ),
    "moved to another queue": lambda conn, task: conn.execute(
        "select pgq_task.modify('worker', changes => jsonb_build_array(jsonb_build_object("
        "'id', %s::int8, 'version', %s::int4, 'queue', 'elsewhere')))",
        task,
    ),
    "given another key": lambda conn, task: conn.execute(
        "select pgq_task.modify('worker', changes => jsonb_build_array(jsonb_build_object("
        "'id', %s::int8, 'version', %s::int4, 'order_key', 'b', 'delay', '1 hour')))",
        task,
    ),
}

gone = pytest.mark.parametrize("go", GONE.values(), ids=GONE.keys())


@gone
def test_however_the_one_before_goes_the_next_one_comes(
    conn: Connection, go: Callable[[Connection, Task], object]
) -> None:
    conn.execute("select pgq_task.create_queue('elsewhere')")
    tasks = push(conn, "a", 3)
    head = claim(conn)[0]
    hold_back(conn, *tasks)
    go(conn, head)
    eventually_claimed(conn, *tasks[1:])


@gone
def test_however_a_held_one_goes_the_one_behind_it_is_not_forgotten(
    conn: Connection, go: Callable[[Connection, Task], object]
) -> None:
    conn.execute("select pgq_task.create_queue('elsewhere')")
    tasks = push(conn, "a", 3)
    head = claim(conn)[0]
    hold_back(conn, *tasks)
    go(conn, (tasks[1], 1))
    finish(conn, head)
    eventually_claimed(conn, tasks[2])


def test_popped_tasks_release_the_next_one(conn: Connection) -> None:
    tasks = push(conn, "a", 2)
    head = claim(conn)[0]
    hold_back(conn, *tasks)
    fail(conn, head, "0")
    assert ops.value(conn, "select id from pgq_task.pop('orders')") == tasks[0]
    assert ops.value(conn, "select id from pgq_task.pop('orders')") == tasks[1]


@pytest.fixture
def background() -> Callable[[Callable[[], object]], threading.Thread]:
    def start(run: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    return start


def waits(conn: Connection, pid: int) -> bool:
    return bool(ops.value(conn, "select cardinality(pg_blocking_pids(%s)) > 0", pid))


@gone
def test_ending_the_head_while_a_sweep_holds_back_its_follower_releases_it(
    conn: Connection,
    connect: Connect,
    background: Callable[[Callable[[], object]], threading.Thread],
    go: Callable[[Connection, Task], object],
) -> None:
    conn.execute("select pgq_task.create_queue('elsewhere')")
    tasks = push(conn, "a", 2)
    head = claim(conn)[0]
    sweep(conn)
    conn.execute("update pgq_task.task set pos = pgq_task._position_of(created) where pos is null")
    sweeper, worker = connect(autocommit=False), connect()
    assert ops.value(sweeper, "select pgq_task._hold_back(%s)", tasks[1])
    thread = background(lambda: go(worker, head))
    deadline = monotonic() + PATIENCE
    while not waits(conn, worker.info.backend_pid):
        assert thread.is_alive(), "it did not wait for what the sweep does"
        assert monotonic() < deadline
        sleep(0.01)
    sweeper.commit()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    eventually_claimed(conn, tasks[1])


@gone
def test_a_sweep_does_not_hold_back_for_a_head_that_is_just_going(
    conn: Connection, connect: Connect, go: Callable[[Connection, Task], object]
) -> None:
    conn.execute("select pgq_task.create_queue('elsewhere')")
    tasks = push(conn, "a", 2)
    head = claim(conn)[0]
    worker = connect(autocommit=False)
    go(worker, head)
    sweep(conn)
    worker.commit()
    eventually_claimed(conn, tasks[1])


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_ending_the_head_with_an_old_snapshot_releases_a_task_it_cannot_see(
    conn: Connection, connect: Connect, level: IsolationLevel
) -> None:
    (first,) = push(conn, "a")
    head = claim(conn)[0]
    age(conn)
    sweep(conn)
    worker = connect(autocommit=False)
    worker.isolation_level = level
    worker.execute("select 1 from pgq_task.task")
    later = push(conn, "a")
    hold_back(conn, first, *later)
    finish(worker, head)
    worker.commit()
    sweep(conn)
    eventually_claimed(conn, *later)


def test_a_follower_that_is_locked_when_its_turn_comes_is_released_later(
    conn: Connection, connect: Connect
) -> None:
    tasks = push(conn, "a", 2)
    head = claim(conn)[0]
    hold_back(conn, *tasks)
    other = connect(autocommit=False)
    other.execute("select from pgq_task.task where id = %s for update", [tasks[1]])
    finish(conn, head)
    sweep(conn)
    assert status(conn) == {tasks[1]: "held"}
    assert claim(conn, 10) == []
    other.rollback()
    eventually_claimed(conn, tasks[1])


def test_a_worker_that_waits_hears_of_a_follower_that_is_released_late(
    conn: Connection, connect: Connect
) -> None:
    tasks = push(conn, "a", 2)
    head = claim(conn)[0]
    hold_back(conn, *tasks)
    other, ear = connect(autocommit=False), connect()
    other.execute("select from pgq_task.task where id = %s for update", [tasks[1]])
    finish(conn, head)
    ear.execute("listen pgq_task")
    ear.execute("select pgq_task.set_waiting(array['orders'])")
    other.rollback()
    sweep(conn)
    assert next(ear.notifies(timeout=PATIENCE, stop_after=1)).payload == QUEUE


def test_a_task_that_came_to_light_late_goes_first_and_holds_back_one_that_was_lost(
    conn: Connection, connect: Connect
) -> None:
    """Ids are drawn when tasks are pushed, not when their transactions commit."""
    producer = connect(autocommit=False)
    (early,) = push(producer, "a")
    (late,) = push(conn, "a")
    assert [task for task, _ in claim(conn)] == [late]
    producer.commit()
    conn.execute("update pgq_task.task set lease = clock_timestamp() where id = %s", [late])
    ((task, version),) = claim(conn, 10)
    assert task == early
    fail(conn, (task, version))
    sweep(conn)
    assert status(conn) == {early: "scheduled", late: "held"}
    assert ops.value(conn, "select id from pgq_task.task where pos is null") == late
    make_due(conn, early)
    eventually_claimed(conn, early, late)


KEYS, TASKS, WORKERS = 6, 20, 5


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
            except (psycopg.errors.SerializationFailure, psycopg.Error) as error:
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
            conn.execute(
                "select pgq_task.fail(%s, %s, %s, 'no', %s)",
                [me, task, version, f"{random.randint(0, 50)} ms"],
            )
        elif how != "lose":
            conn.execute(
                "insert into done (id, order_key, how) values (%s, %s, %s)", [task, key, how]
            )
            named = f'[{{"id": {task}, "version": {version}}}]'
            if how == "bury":
                fail(conn, (task, version), final=True, claimant=me)
            elif how == "finish":
                conn.execute("select pgq_task.finish(%s, %s, %s)", [me, task, version])
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
    done, deadline = -1, monotonic() + PATIENCE
    while status_counts(conn) and not turmoil.errors:
        if (now := ops.value(conn, "select count(*) from done")) > done:
            done, deadline = now, monotonic() + PATIENCE
        assert monotonic() < deadline, f"stuck: {status_counts(conn)}"
        sleep(0.05)
    turmoil.stopping.set()
    for thread in turmoil.threads:
        thread.join(PATIENCE)
    assert not turmoil.errors, turmoil.errors
    rows = conn.execute("select order_key, id from done order by nr").fetchall()
    assert len(rows) > KEYS * TASKS
    for key in {key for key, _ in rows}:
        ids = [task for each, task in rows if each == key]
        assert ids == sorted(set(ids))


def status_counts(conn: Connection) -> dict[str, int]:
    return dict(
        conn.execute(
            "select status, count(*) from pgq_task.tasks where queue = 'orders' group by 1"
        ).fetchall()
    )
