"""Workers of task queues killed at each step, and stopped for longer than their leases: no task is
lost, and what is written in the transaction that finishes a task is there exactly once.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable

import pytest

from pgqpy.tasks import Tasks
from tests.fixtures.fix_client import PATIENCE
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_example import Program, Run
from tests.fixtures.fix_ticker import eventually

#: Prints its steps, and waits at the named step for a line of input.
WORKER = """
import logging
import sys
import time
import pgqpy
from pgqpy import FixedDelay
from pgqpy.tasks import TaskWorker

logging.disable()
dsn, way, stop_at, lease = sys.argv[1:]

def step(name):
    print(name, flush=True)
    if name == stop_at:
        sys.stdin.readline()

def write(conn, task):
    step("begun")
    conn.execute("insert into effect (task_id) values (%s)", [task.id])
    step("written")

class Base(TaskWorker):
    queues = "work"
    poll_interval = 0.1
    retry_policy = FixedDelay(0, attempts=None)

    def on_completed(self, stats):
        step("settled")

    def on_task_lost(self, task):
        print("lost", flush=True)

class Handle(Base):
    def handle_task(self, task):
        with pgqpy.connect(dsn) as conn:
            write(conn, task)

class Task(Base):
    def process_task(self, conn, task):
        write(conn, task)

class Slow(Task):
    def process_task(self, conn, task):
        time.sleep(0.01)
        super().process_task(conn, task)

class Batch(Base):
    def process_batch(self, conn, tasks):
        for task in tasks:
            write(conn, task)

{"handle": Handle, "task": Task, "slow": Slow, "batch": Batch}[way](dsn, lease=float(lease)).run()
"""

Start = Callable[..., Program]


@pytest.fixture
def start(dsn: str, run_python: Run) -> Start:
    """``start("task", "written")`` starts a worker that stops at that step."""

    def start_one(way: str, stop_at: str = "nowhere", lease: float = 1) -> Program:
        return run_python(WORKER, dsn, way, stop_at, lease)

    return start_one


@pytest.fixture
def tasks(conn: Connection) -> Tasks:
    made = Tasks(conn)
    made.create_queue("work")
    # On a busy machine leases of a second end more often than by kills.
    made.set_config("work", "max_attempts", 1000)
    conn.execute("create table effect (task_id bigint)")
    return made


def all_done(conn: Connection) -> None:
    eventually(conn, "select count(*) = 0 from pgq_task.tasks", patience=3 * PATIENCE)


def effects(conn: Connection) -> Counter[int]:
    return Counter(each for (each,) in conn.execute("select task_id from effect"))


@pytest.mark.parametrize("way", ["task", "batch", "handle"])
@pytest.mark.parametrize("step", ["begun", "written", "settled"])
def test_a_task_of_a_worker_that_was_killed_is_taken_over_after_its_lease(
    conn: Connection, tasks: Tasks, start: Start, way: str, step: str
) -> None:
    ids = tasks.push_many("work", range(3))
    first = start(way, step)
    first.hear(step)
    first.process.send_signal(signal.SIGKILL)
    start(way)
    all_done(conn)
    found = effects(conn)
    assert set(found) == set(ids)
    if way != "handle":
        assert found == Counter(ids)


def test_workers_with_much_to_do_take_over_what_a_killed_one_had_before_they_are_done(
    conn: Connection, tasks: Tasks, start: Start
) -> None:
    had = tasks.push("work", "its")
    first = start("task", "begun", lease=3)
    first.hear("begun")
    tasks.push_many("work", range(5000))
    others = [start("slow", lease=3) for _ in range(2)]
    others[0].hear("settled")
    first.process.send_signal(signal.SIGKILL)
    eventually(
        conn, "select count(*) > 0 from effect where task_id = %s", had, patience=3 * PATIENCE
    )
    waiting = conn.execute("select count(*) from pgq_task.tasks where status = 'available'")
    assert waiting.fetchall()[0][0] > 0
    assert effects(conn)[had] == 1


@pytest.mark.parametrize("way", ["task", "batch"])
def test_a_worker_that_was_killed_while_it_commits_has_committed_all_or_nothing(
    conn: Connection, connect: Connect, tasks: Tasks, start: Start, way: str
) -> None:
    conn.execute(
        """
        create function commits() returns trigger language plpgsql as
            'begin perform pg_advisory_xact_lock_shared(1); return null; end';
        create constraint trigger commits after insert on effect
            deferrable initially deferred for each row execute function commits();
        """
    )
    ids = tasks.push_many("work", range(3))
    gate = connect()
    gate.execute("select pg_advisory_lock(1)")
    first = start(way)
    eventually(
        conn, "select count(*) > 0 from pg_locks where locktype = 'advisory' and not granted"
    )
    first.process.send_signal(signal.SIGKILL)
    second = start(way)
    gate.execute("select pg_advisory_unlock(1)")
    second.hear("settled")
    all_done(conn)
    assert effects(conn) == Counter(ids)


@pytest.mark.parametrize("way", ["task", "batch", "handle"])
def test_early_and_slow_cannot_finish_what_late_and_quick_has_finished(
    conn: Connection, tasks: Tasks, start: Start, way: str
) -> None:
    ids = tasks.push_many("work", range(1))
    early = start(way, "written")
    early.hear("written")
    # Its thread does not renew, either.
    early.process.send_signal(signal.SIGSTOP)
    late = start(way)
    late.hear("settled")
    all_done(conn)
    early.process.send_signal(signal.SIGCONT)
    early.enter()
    early.hear("lost")
    # It goes on with others.
    late.process.send_signal(signal.SIGSTOP)
    ids += tasks.push_many("work", range(1))
    early.hear("written", times=2)
    early.enter()
    early.hear("settled")
    late.process.send_signal(signal.SIGCONT)
    all_done(conn)
    found = effects(conn)
    if way == "handle":
        assert set(found) == set(ids)
    else:
        assert found == Counter(ids)


@pytest.mark.parametrize("way", ["task", "handle"])
def test_early_and_slow_cannot_finish_what_late_and_quick_has_now(
    conn: Connection, tasks: Tasks, start: Start, way: str
) -> None:
    (task,) = tasks.push_many("work", range(1))
    early = start(way, "written")
    early.hear("written")
    early.process.send_signal(signal.SIGSTOP)
    late = start(way, "begun", lease=3600)
    late.hear("begun")
    early.process.send_signal(signal.SIGCONT)
    early.enter()
    early.hear("lost")
    assert conn.execute("select id, status from pgq_task.tasks").fetchall() == [(task, "claimed")]
    late.enter()
    all_done(conn)
    assert effects(conn)[task] == (2 if way == "handle" else 1)


@pytest.mark.parametrize("way", ["task", "batch", "handle"])
def test_sigterm_finishes_what_has_begun_and_gives_back_the_rest(
    conn: Connection, tasks: Tasks, start: Start, way: str
) -> None:
    tasks.push_many("work", range(40))
    worker = start(way, "begun", lease=60)
    worker.hear("begun")
    worker.process.send_signal(signal.SIGTERM)
    worker.enter()
    assert worker.wait() == 0
    assert len(effects(conn)) == 1
    left = conn.execute("select status, attempts, count(*) from pgq_task.tasks group by 1, 2")
    assert left.fetchall() == [("available", 0, 39)]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["task", "batch"])
def test_workers_killed_at_random_lose_and_double_nothing(
    conn: Connection, tasks: Tasks, start: Start, way: str
) -> None:
    rng = random.Random(7)
    ids: list[int] = []
    alive = [start(way) for _ in range(3)]
    for _ in range(6):
        done = len(effects(conn))
        ids += tasks.push_many("work", range(200))
        eventually(
            conn,
            "select count(*) > %s from effect",
            done + rng.randrange(100),
            patience=3 * PATIENCE,
        )
        alive.pop(rng.randrange(len(alive))).process.send_signal(signal.SIGKILL)
        alive.append(start(way))
    all_done(conn)
    assert effects(conn) == Counter(ids)
