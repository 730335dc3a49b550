"""Waiting workers are notified of tasks: at once, once, and even if another was told before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from queue import Queue
from threading import Thread
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from pgqpy.tasks import Task, Tasks, TaskWorker
from pgqpy.tasks._worker.claimer import Claimer
from pgqpy.tasks._worker.loop import Loop
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import PATIENCE
from tests.fixtures.fix_db import Connect, Connection

QUEUE = "mails"


@pytest.fixture(autouse=True)
def task_queue(conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue(%s)", [QUEUE])


@pytest.fixture
def ear(connect: Connect) -> Connection:
    """The connection of a worker that listens."""
    conn = connect()
    conn.execute("listen pgq_task")
    return conn


def push(conn: Connection) -> None:
    conn.execute("select pgq_task.push(%s, '1')", [QUEUE])


def wait_for_tasks(conn: Connection) -> None:
    conn.execute("select pgq_task.set_waiting(array[%s])", [QUEUE])


def hear(conn: Connection, ear: Connection) -> int:
    """The worker's notifications since the last call; the notifying sessions have committed."""
    mark = f"until {uuid4()}"
    conn.execute("select pg_notify('pgq_task', %s)", [mark])
    told = 0
    for notify in ear.notifies(timeout=PATIENCE):
        if notify.payload == mark:
            return told
        told += notify.payload == QUEUE
    raise AssertionError("the last notification did not come")


def test_no_worker_is_notified_while_none_waits(conn: Connection, ear: Connection) -> None:
    push(conn)
    assert hear(conn, ear) == 0


@pytest.mark.parametrize(
    "call",
    [
        "pgq_task.push('mails', '1')",
        "pgq_task.push('mails', '1', delay => '1 hour')",
        "pgq_task.push('mails', '1', unique_key => 'k')",
        "pgq_task.push_many('mails', array['1', '2']::jsonb[])",
        "pgq_task.resume_queue('mails')",
    ],
)
def test_a_waiting_worker_is_notified(conn: Connection, ear: Connection, call: str) -> None:
    wait_for_tasks(ear)
    conn.execute(f"select {call}".encode())
    assert hear(conn, ear) == 1


@pytest.mark.parametrize("final", [False, True], ids=["retried", "failed"])
def test_a_waiting_worker_is_notified_of_tasks_that_failed(
    conn: Connection, ear: Connection, final: bool
) -> None:
    conn.execute("update pgq_task.queue set queue_error_queue = %s", [QUEUE])
    push(conn)
    ((task, version),) = conn.execute(
        "select id, version from pgq_task.claim(array[%s], 'w')", [QUEUE]
    )
    wait_for_tasks(ear)
    conn.execute("select pgq_task.fail('w', %s, %s, 'no', final => %s)", [task, version, final])
    assert hear(conn, ear) >= 1


def test_a_burst_is_one_signal_until_a_worker_waits_again(
    conn: Connection, ear: Connection
) -> None:
    wait_for_tasks(ear)
    for _ in range(20):
        push(conn)
    conn.execute("select pgq_task.push_many(%s, array['1']::jsonb[])", [QUEUE])
    assert hear(conn, ear) == 1
    wait_for_tasks(ear)
    push(conn)
    push(conn)
    assert hear(conn, ear) == 1


def state(conn: Connection) -> int:
    return int(ops.value(conn, "select pg_sequence_last_value('pgq_task.waiting_1')"))


def test_when_all_were_notified_no_lookup_is_needed(conn: Connection, ear: Connection) -> None:
    wait_for_tasks(ear)
    push(conn)
    assert state(conn) > 1
    for _ in range(2):
        push(conn)
        assert state(conn) == 0
    assert hear(conn, ear) == 1
    wait_for_tasks(ear)
    assert state(conn) == 1
    push(conn)
    assert hear(conn, ear) == 1


def test_a_worker_that_starts_to_wait_meanwhile_is_notified(
    conn: Connection, connect: Connect, ear: Connection
) -> None:
    """A session that finds all workers notified must not overwrite that one waits again."""
    waiter = connect(autocommit=False)
    wait_for_tasks(ear)
    push(conn)
    wait_for_tasks(waiter)
    push(conn)
    told = state(conn)
    assert told > 1
    push(conn)
    assert state(conn) == told
    waiter.commit()
    push(conn)
    assert state(conn) == 0
    assert hear(conn, ear) == 2


def test_push_many_folds_as_well(conn: Connection, ear: Connection) -> None:
    wait_for_tasks(ear)
    for _ in range(5):
        conn.execute("select pgq_task.push_many(%s, array['1', '2']::jsonb[])", [QUEUE])
    assert hear(conn, ear) == 1


def commit_late(conn: Connection) -> None:
    """Do nothing yet: the fixture closes it."""


def roll_back(conn: Connection) -> None:
    conn.rollback()


def die(conn: Connection) -> None:
    conn.close()


@pytest.mark.parametrize("end", [commit_late, roll_back, die])
def test_a_push_that_does_not_commit_suppresses_no_notification(
    conn: Connection, connect: Connect, ear: Connection, end: Callable[[Connection], None]
) -> None:
    wait_for_tasks(ear)
    first = connect(autocommit=False)
    push(first)
    end(first)
    push(conn)
    assert hear(conn, ear) == 1


def test_a_push_that_is_rolled_back_to_a_savepoint_suppresses_no_notification(
    conn: Connection, ear: Connection
) -> None:
    wait_for_tasks(ear)
    with conn.transaction(), conn.transaction(force_rollback=True):
        push(conn)
    assert hear(conn, ear) == 0
    push(conn)
    assert hear(conn, ear) == 1


def test_a_second_push_after_a_savepoint_that_was_rolled_back_tells(
    conn: Connection, ear: Connection
) -> None:
    wait_for_tasks(ear)
    with conn.transaction():
        with conn.transaction(force_rollback=True):
            push(conn)
        push(conn)
    assert hear(conn, ear) == 1


def test_a_worker_that_is_told_does_not_silence_the_one_that_waits_on(
    conn: Connection, connect: Connect, ear: Connection
) -> None:
    """Two wait, one push tells both; the one that gets nothing waits again."""
    other = connect()
    other.execute("listen pgq_task")
    wait_for_tasks(ear)
    wait_for_tasks(other)
    push(conn)
    assert hear(conn, ear) == 1
    assert hear(conn, other) == 1
    assert ear.execute("select id from pgq_task.claim(array[%s], 'w')", [QUEUE]).fetchone()
    wait_for_tasks(other)
    assert other.execute("select id from pgq_task.claim(array[%s], 'o')", [QUEUE]).fetchall() == []
    push(conn)
    assert hear(conn, other) >= 1


def test_a_consumer_that_rejects_without_delay_and_waits_at_once_misses_nothing(
    conn: Connection, ear: Connection
) -> None:
    """The seed's race: the second signal came in the window of the first, and was dropped."""
    wait_for_tasks(ear)
    push(conn)
    ((task, version),) = ear.execute(
        "select id, version from pgq_task.claim(array[%s], 'w')", [QUEUE]
    )
    wait_for_tasks(ear)
    assert ear.execute("select id from pgq_task.claim(array[%s], 'w')", [QUEUE]).fetchall() == []
    conn.execute("select pgq_task.fail('w', %s, %s, 'not now')", [task, version])
    assert hear(conn, ear) == 2
    assert ear.execute("select id from pgq_task.claim(array[%s], 'w')", [QUEUE]).fetchone()


def test_a_waiting_worker_learns_when_the_next_task_is_due(conn: Connection) -> None:
    due = "select extract(epoch from pgq_task.set_waiting(array['mails', 'others']))"
    conn.execute("select pgq_task.create_queue('others')")
    assert ops.value(conn, due) is None
    conn.execute("select pgq_task.push('mails', '1', delay => '2 hours')")
    conn.execute("select pgq_task.push('others', '1', delay => '1 hour', priority => 5)")
    assert 3500 < float(ops.value(conn, due)) <= 3600
    conn.execute("select pgq_task.pause_queue('others')")
    assert 7100 < float(ops.value(conn, due)) <= 7200


@pytest.mark.parametrize(
    ("queues", "sqlstate"), [("array['none']", "PQ070"), ("array[]::text[]", "PQ072")]
)
def test_waiting_for_no_queue_fails_clearly(conn: Connection, queues: str, sqlstate: str) -> None:
    with pytest.raises(psycopg.Error) as info:
        conn.execute(f"select pgq_task.set_waiting({queues})".encode())
    assert info.value.sqlstate == sqlstate


# --- workers that wait, and would look again in an hour


class Waiting(TaskWorker):
    """Tells what it gets."""

    poll_interval = 3600.0

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn, QUEUE)
        self.got: Queue[Any] = Queue()

    def handle_task(self, task: Task) -> None:
        self.got.put(task.payload)


@pytest.fixture
def waiting(dsn: str, conn: Connection) -> Iterator[Waiting]:
    """A worker that has looked, found nothing, and sleeps."""
    worker = Waiting(dsn)
    thread = Thread(target=worker.run, daemon=True)
    thread.start()
    deadline = monotonic() + PATIENCE
    while ops.value(conn, "select pg_sequence_last_value('pgq_task.waiting_1')") != 1:
        assert monotonic() < deadline
        sleep(0.01)
    yield worker
    worker.stop()
    thread.join(PATIENCE)
    assert not thread.is_alive()


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Waiting:
    """A waiting worker that looks again only after signals, folded into one an interval."""
    monkeypatch.setattr("pgqpy.tasks._worker.claimer._FIRST_LOOK", 3600.0)
    monkeypatch.setattr(Waiting, "fold_interval", request.param)
    worker: Waiting = request.getfixturevalue("waiting")
    wait_until_asleep(worker)
    return worker


def wait_until_asleep(worker: Waiting) -> None:
    deadline = monotonic() + PATIENCE
    while not (
        (loop := worker._loop)
        and (signal := loop._notifier)
        and signal.listening
        and loop._claimer._look_at > monotonic() + 1000
    ):
        assert monotonic() < deadline
        sleep(0.01)


def test_a_waiting_worker_gets_what_is_pushed(conn: Connection, waiting: Waiting) -> None:
    for number in range(5):
        Tasks(conn).push(QUEUE, number)
        assert waiting.got.get(timeout=PATIENCE) == number
        sleep(0.1 * number)  # asleep more or less deeply


@pytest.mark.parametrize("listening", [3600.0], indirect=True)
def test_signals_now_and_then_are_answered_at_once(conn: Connection, listening: Waiting) -> None:
    for number in range(3):
        wait_until_asleep(listening)
        Tasks(conn).push(QUEUE, number)
        assert listening.got.get(timeout=PATIENCE) == number


@pytest.mark.parametrize("listening", [1.0], indirect=True)
def test_a_stream_of_pushes_wakes_a_worker_once_an_interval(
    conn: Connection, listening: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()

    def count(owner: type, name: str) -> None:
        method = getattr(owner, name)

        def counted(self: Any, *args: Any) -> Any:
            counts[name] += 1
            counts[f"{name}, with tasks"] += owner is Claimer and self._found > 0
            return method(self, *args)

        monkeypatch.setattr(owner, name, counted)

    count(Claimer, "answered")
    count(Loop, "_turn")
    # Claims grow, however long each of them takes.
    monkeypatch.setattr("pgqpy.tasks._worker.claimer._QUICK", 1e9)
    fold = listening.fold_interval
    began = monotonic()
    Tasks(conn).push(QUEUE, 0)
    assert listening.got.get(timeout=PATIENCE) == 0
    # So it is woken at least once more, however late the other signals come.
    wait_until_asleep(listening)
    for number in range(1, 100):
        Tasks(conn).push(QUEUE, number)
        sleep(0.001)
    got = {listening.got.get(timeout=PATIENCE) for _ in range(1, 100)}
    assert got == {*range(1, 100)}
    # Others may find nothing: their tasks had been claimed with the one before.
    assert 1 < counts["answered, with tasks"] <= 4 + (monotonic() - began) / fold
    # Nor does it spin between them.
    assert counts["_turn"] < 20 * counts["answered"]


def test_a_scheduled_task_wakes_its_worker_when_it_is_due(
    conn: Connection, waiting: Waiting
) -> None:
    tasks = Tasks(conn)
    began = monotonic()
    now = tasks.server_time()
    # Should both be due when they come to light, the priority makes it the first.
    with conn.transaction():
        tasks.push(QUEUE, "later", at=now + timedelta(seconds=1.5))
        tasks.push(QUEUE, "soon", at=now + timedelta(seconds=0.5), priority=1)
    assert waiting.got.get(timeout=PATIENCE) == "soon"
    assert monotonic() - began >= 0.5
    assert waiting.got.get(timeout=PATIENCE) == "later"
    assert monotonic() - began >= 1.5


def test_a_task_that_failed_wakes_its_worker_when_it_is_to_be_tried_again(
    conn: Connection, waiting: Waiting
) -> None:
    ((task, version),) = conn.execute(
        "with pushed as (select pgq_task.push(%s, '1', delay => '1 hour') as id)"
        " select id, 1 from pushed",
        [QUEUE],
    )
    conn.execute("select pgq_task.fail('w', %s, %s, 'no', '300 ms')", [task, version])
    assert waiting.got.get(timeout=PATIENCE) == 1


def test_a_push_that_looked_before_the_worker_slept_and_commits_later_is_found(
    conn: Connection, connect: Connect, waiting: Waiting
) -> None:
    """The window in which no signal can tell: the worker looks again, after ever longer pauses."""
    late = connect(autocommit=False)
    conn.execute("select setval('pgq_task.waiting_1', 0)")
    Tasks(late).push(QUEUE, "late")
    Tasks(conn).push(QUEUE, "awake")
    conn.execute("select pg_notify('pgq_task', %s)", [QUEUE])
    assert waiting.got.get(timeout=PATIENCE) == "awake"
    sleep(0.1)
    late.commit()
    assert waiting.got.get(timeout=PATIENCE) == "late"
