"""Waiting workers are notified of tasks: at once, once, and even if another was told before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from queue import Queue
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

import pytest

from pgqpy.tasks import Task, Tasks, TaskWorker
from pgqpy.tasks._worker.claimer import Claimer
from pgqpy.tasks._worker.loop import Loop
from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops
from tests.fixtures.fix_client import PATIENCE, wait_until
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_task_worker import running

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


def push(conn: Connection) -> int:
    return task_ops.push(conn, QUEUE, 1)


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


def test_a_waiting_worker_is_notified(conn: Connection, ear: Connection) -> None:
    # None waits yet.
    failed = push(conn), push(conn)
    assert hear(conn, ear) == 0
    conn.execute("select pgq_task.create_queue('others'), pgq_task.push('others', '1')")
    conn.execute("update pgq_task.queue set queue_error_queue = %s", [QUEUE])
    task_ops.claim(conn, QUEUE, number=2)
    for call in (
        "push('mails', '1')",
        "push('mails', '1', delay => '1 hour')",
        "push('mails', '1', unique_key => 'k')",
        "push_many('mails', array['1', '2']::jsonb[])",
        """modify('w', '[{"queue": "mails"}]')""",
        """change_tasks('others', '{}', '{"queue": "mails"}')""",
        "resume_queue('mails')",
        f"fail('w', {failed[0]}, 2, 'no')",
        f"fail('w', {failed[1]}, 2, 'no', final => true)",
    ):
        wait_for_tasks(ear)
        conn.execute(f"select pgq_task.{call}".encode())
        told = hear(conn, ear)
        assert told == 1 or (told and "fail" in call), call


def test_a_burst_is_one_signal(conn: Connection, ear: Connection) -> None:
    for _ in range(2):
        wait_for_tasks(ear)
        for _ in range(10):
            push(conn)
            task_ops.push_many(conn, QUEUE, 2)
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


@pytest.mark.parametrize("end", ["open", "rollback", "close"])
def test_a_push_that_does_not_commit_suppresses_no_notification(
    conn: Connection, connect: Connect, ear: Connection, end: str
) -> None:
    wait_for_tasks(ear)
    first = connect(autocommit=False)
    push(first)
    if end != "open":
        getattr(first, end)()
    push(conn)
    assert hear(conn, ear) == 1


def test_a_savepoint_suppresses_no_notification(conn: Connection, ear: Connection) -> None:
    wait_for_tasks(ear)
    with conn.transaction(), conn.transaction(force_rollback=True):
        push(conn)
    assert hear(conn, ear) == 0
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
    assert task_ops.claim(ear, QUEUE)
    wait_for_tasks(other)
    assert task_ops.claim(other, QUEUE, claimant="o") == []
    push(conn)
    assert hear(conn, other) >= 1


def test_a_worker_that_fails_and_waits_misses_nothing(conn: Connection, ear: Connection) -> None:
    """The seed's race: the second signal came in the window of the first, and was dropped."""
    wait_for_tasks(ear)
    push(conn)
    [claimed] = task_ops.claim(ear, QUEUE)
    wait_for_tasks(ear)
    assert task_ops.claim(ear, QUEUE) == []
    task_ops.fail(conn, claimed)
    assert hear(conn, ear) == 2
    assert task_ops.claim(ear, QUEUE)


def test_a_waiting_worker_learns_when_the_next_task_is_due(conn: Connection) -> None:
    due = "select extract(epoch from pgq_task.set_waiting(array['mails', 'others']))"
    conn.execute("select pgq_task.create_queue('others')")
    assert ops.value(conn, due) is None
    conn.execute("select pgq_task.push('mails', '1', delay => '2 hours')")
    conn.execute("select pgq_task.push('others', '1', delay => '1 hour', priority => 5)")
    assert 3500 < float(ops.value(conn, due)) <= 3600
    conn.execute("select pgq_task.pause_queue('others')")
    assert 7100 < float(ops.value(conn, due)) <= 7200


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
    with running(worker):
        wait_until(lambda: state(conn) == 1)
        yield worker


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Waiting:
    """A waiting worker that looks again only after signals, folded into one an interval."""
    monkeypatch.setattr("pgqpy.tasks._worker.claimer._FIRST_LOOK", 3600.0)
    monkeypatch.setattr(Waiting, "fold_interval", request.param)
    worker: Waiting = request.getfixturevalue("waiting")
    wait_until_asleep(worker)
    return worker


def wait_until_asleep(worker: Waiting) -> None:
    wait_until(
        lambda: (
            (loop := worker._loop)
            and (signal := loop._notifier)
            and signal.listening
            and loop._claimer._look_at > monotonic() + 1000
        )
    )


@pytest.mark.any_pg
def test_a_waiting_worker_gets_what_is_pushed(conn: Connection, waiting: Waiting) -> None:
    for number in range(4):
        Tasks(conn).push(QUEUE, number)
        assert waiting.got.get(timeout=PATIENCE) == number
        sleep(0.1 * number)  # asleep more or less deeply


@pytest.mark.any_pg
@pytest.mark.parametrize("listening", [3600.0], indirect=True)
def test_signals_now_and_then_are_answered_at_once(conn: Connection, listening: Waiting) -> None:
    for number in range(3):
        wait_until_asleep(listening)
        Tasks(conn).push(QUEUE, number)
        assert listening.got.get(timeout=PATIENCE) == number


@pytest.mark.any_pg
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
    # Nor does it spin between them; a task that ends alone may be a turn, too.
    assert counts["_turn"] < 20 * counts["answered"] + 100


@pytest.mark.any_pg
def test_a_task_wakes_its_worker_when_it_is_due(conn: Connection, waiting: Waiting) -> None:
    tasks = Tasks(conn)
    began = monotonic()
    now = tasks.server_time()
    # Should both be due when they come to light, the priority makes it the first.
    with conn.transaction():
        tasks.push(QUEUE, "later", at=now + timedelta(seconds=0.8))
        tasks.push(QUEUE, "soon", at=now + timedelta(seconds=0.3), priority=1)
    for due, expected in ((0.3, "soon"), (0.8, "later")):
        assert waiting.got.get(timeout=PATIENCE) == expected
        assert monotonic() - began >= due
    # A task that failed wakes it when it is to be tried again.
    task = tasks.push(QUEUE, "again", delay=3600)
    conn.execute("select pgq_task.fail('w', %s, 1, 'no', '300 ms')", [task])
    assert waiting.got.get(timeout=PATIENCE) == "again"


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
