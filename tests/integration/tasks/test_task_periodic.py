"""Each run of a periodic task is pushed once by any number of workers, and none is lost."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from pgqpy.errors import InvalidTask, PermissionDenied, TaskQueueNotFound
from pgqpy.tasks import AsyncTaskWorker, Task, TaskApp, Tasks, TaskWorker, current_job
from pgqpy.tasks._jobs import due as pushing
from pgqpy.tasks._jobs.due import push_due
from pgqpy.tasks._jobs.periodic import Cron, PeriodicTask, set_periodic
from tests.fixtures import queue_ops
from tests.fixtures import task_ops as ops
from tests.fixtures.fix_client import PATIENCE, wait_until
from tests.fixtures.fix_db import Connect, Connection, MakeRole
from tests.fixtures.fix_task_worker import aside, running
from tests.fixtures.forked import Forked
from tests.fixtures.task_ops import as_role

QUEUE = "reports"
PUSHED = "select headers ->> 'due' as due from pgq_task.tasks where queue = 'reports'"

PUSHER = """
import sys
from pgqpy import connect
from pgqpy.tasks._jobs.due import push_due
with connect(sys.argv[1], autocommit=True) as conn:
    while push_due(conn) == 0:
        pass
"""


@pytest.fixture
def tasks(conn: Connection) -> Connection:
    Tasks(conn).create_queue(QUEUE)
    return conn


def make(conn: Connection, cron: str = "* * * * *", missed: str = "all", **settings: Any) -> None:
    settings |= {"cron": Cron(cron), "missed": missed}
    task: Any = {"name": "report", "queue": QUEUE, "payload": 1} | settings
    set_periodic(conn, [PeriodicTask(**task)])


def miss(conn: Connection, minutes: int) -> list[str]:
    """Simulate that no worker ran for this long; returns the runs that were due."""
    conn.execute(
        "update pgq_task.periodic"
        " set last_due = date_trunc('minute', now()) - make_interval(mins => %s)",
        [minutes],
    )
    runs = (
        "select to_jsonb(last_due + make_interval(mins => n)) #>> '{}' as due"
        "  from pgq_task.periodic, generate_series(1, %s) n"
    )
    return [row["due"] for row in ops.rows(conn, runs, minutes)]


def pushed(conn: Connection) -> list[str]:
    return sorted(row["due"] for row in ops.rows(conn, PUSHED))


def within(conn: Connection, due: list[str], found: list[str]) -> None:
    """All that was due was pushed, once; the minute may have ended meanwhile."""
    assert len(set(found)) == len(found)
    assert found[: len(due)] == due
    later = ops.rows(
        conn, "select ceil(extract(epoch from now() - %s::timestamptz) / 60)::int as n", due[-1]
    )
    assert len(found) <= len(due) + later[0]["n"]


def test_five_workers_push_each_run_once(tasks: Connection, connect: Connect) -> None:
    make(tasks)
    due = miss(tasks, 500)
    connections = [connect() for _ in range(5)]

    def work(conn: Connection) -> None:
        while push_due(conn) == 0:
            pass

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(work, connections))
    within(tasks, due, pushed(tasks))


def test_workers_that_are_killed_lose_and_double_nothing(tasks: Connection, dsn: str) -> None:
    make(tasks)
    command = [sys.executable, "-c", PUSHER, dsn]
    killed = 0
    # Once more if they are done before they are killed.
    while not killed:
        tasks.execute("delete from pgq_task.task")
        due = miss(tasks, 2500)
        for _ in range(3):
            workers = [Forked(command) for _ in range(2)]
            enough = len(pushed(tasks)) + random.randrange(1, 300)
            while len(pushed(tasks)) < enough and workers[0].poll() is None:
                pass
            for worker in workers:
                worker.kill()
                killed += worker.wait(PATIENCE) < 0
    while push_due(tasks) == 0:
        pass
    within(tasks, due, pushed(tasks))


@pytest.mark.parametrize(("missed", "expected"), [("last", 1), ("skip", 0), ("all", 30)])
def test_what_was_missed_is_made_up_for_as_was_asked(
    tasks: Connection, caplog: pytest.LogCaptureFixture, missed: str, expected: int
) -> None:
    make(tasks, cron="0 0 1 1 *", missed=missed)
    seconds = push_due(tasks)
    assert seconds is not None
    assert 0 < seconds <= 366 * 86400
    assert not pushed(tasks), "nothing is pushed before it is due"
    # Years: no run is due while the test runs.
    tasks.execute(
        "update pgq_task.periodic set last_due = make_timestamptz("
        "extract(year from now())::int - 30, 1, 1, 0, 0, 0, 'UTC')"
    )
    with caplog.at_level(logging.WARNING):
        assert push_due(tasks) is not None
    found = pushed(tasks)
    assert len(found) == expected
    year = queue_ops.value(tasks, "select extract(year from now() at time zone 'UTC')::text")
    if found:
        assert found[-1].startswith(f"{year}-01-01")
    assert ("runs missed since" in caplog.text) == (missed != "all")
    assert push_due(tasks) is not None
    assert pushed(tasks) == found


def test_a_task_that_was_set_again_goes_on_where_it_was(
    tasks: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    make(tasks)
    due = miss(tasks, 3)
    make(tasks)
    make(tasks, payload=2)
    push_due(tasks)
    within(tasks, due, pushed(tasks))
    assert queue_ops.value(tasks, "select min(payload::text) from pgq_task.tasks") == "2"
    miss(tasks, 3)
    make(tasks, cron="0 0 1 1 *")
    before = pushed(tasks)
    push_due(tasks)
    assert pushed(tasks) == before
    assert not caplog.records
    Tasks(tasks).create_queue("other")
    make(tasks, queue="other")
    assert "periodic task report was of queue reports, and is of other" in caplog.text
    # It goes with its queue.
    Tasks(tasks).drop_queue("other")
    assert not ops.rows(tasks, "select * from pgq_task.get_periodic_info()")


def test_paused_tasks_are_not_pushed_and_not_made_up_for(tasks: Connection) -> None:
    make(tasks)
    tasks.execute("select pgq_task.pause_periodic('report')")
    [row] = ops.rows(tasks, "select * from pgq_task.get_periodic_info('report')")
    assert row["paused"] is not None
    assert (row["queue"], row["cron"], row["time_zone"]) == (QUEUE, "* * * * *", "UTC")
    miss(tasks, 10)
    assert push_due(tasks) is None
    # A worker that had looked before the pause does not push either.
    assert not queue_ops.value(
        tasks,
        "select pgq_task.push_periodic('report', last_due, last_due + interval '1 minute', '{}')"
        "  from pgq_task.periodic",
    )
    tasks.execute("select pgq_task.resume_periodic('report')")
    assert push_due(tasks) is not None
    assert len(pushed(tasks)) <= 1
    tasks.execute("select pgq_task.drop_periodic('report')")
    assert push_due(tasks) is None


def test_keys_hold_for_runs_too(tasks: Connection) -> None:
    make(tasks, unique_key="report", order_key="o", headers={"limit_key": "a"})
    due = miss(tasks, 3)
    push_due(tasks)
    [task] = ops.rows(tasks, "select * from pgq_task.tasks")
    assert (task["unique_key"], task["order_key"]) == ("report", "o")
    assert task["headers"] == {"limit_key": "a", "periodic": "report", "due": due[0]}
    [row] = ops.rows(tasks, "select * from pgq_task.get_periodic_info()")
    assert (row["unique_key"], row["headers"]) == ("report", {"limit_key": "a"})
    make(tasks)
    [row] = ops.rows(tasks, "select * from pgq_task.get_periodic_info()")
    assert (row["unique_key"], row["order_key"], row["headers"]) == (None, None, None)


def test_a_run_is_pushed_at_will(tasks: Connection) -> None:
    make(tasks, cron="0 0 1 1 *", priority=3)
    known = ops.rows(tasks, "select * from pgq_task.get_periodic_info()")
    Tasks(tasks).pause_periodic("report")
    first = Tasks(tasks).run_periodic("report")
    Tasks(tasks).resume_periodic("report")
    [task] = ops.rows(tasks, "select * from pgq_task.tasks")
    assert (task["id"], task["priority"], task["payload"]) == (first, 3, 1)
    assert task["headers"]["periodic"] == "report"
    assert (known[0]["cron"], known[0]["last_run"]) == ("0 0 1 1 *", None)
    assert len(pushed(tasks)) == 1
    [info] = Tasks(tasks).periodic()
    assert info.last_run == queue_ops.value(tasks, "select created from pgq_task.tasks")
    with pytest.raises(InvalidTask, match="there is no periodic task 'none'"):
        Tasks(tasks).run_periodic("none")


@pytest.mark.any_pg
def test_a_job_runs_at_an_interval(tasks: Connection, dsn: str) -> None:
    app = TaskApp(QUEUE)

    @app.periodic(every=90)
    @app.task
    def poll() -> None: ...

    app.worker(dsn).run(until_empty=True)
    tasks.execute("update pgq_task.periodic set last_due = last_due - interval '200 s'")
    seconds = push_due(tasks)
    assert seconds is not None
    assert 0 < seconds <= 70
    [info] = Tasks(tasks).periodic()
    assert (info.cron, info.last_run) == ("@every 90s", info.last_due)
    for wrong in (0, -1, 0.5, 1e12):
        with pytest.raises(InvalidTask, match="whole seconds"):
            app.periodic(every=wrong)
    for given in ({}, {"cron": "* * * * *", "every": 90}):
        with pytest.raises(InvalidTask, match="a cron expression, or an interval"):
            app.periodic(**given)  # type: ignore[arg-type]


def test_restricted_queues_keep_schedules_to_themselves(
    tasks: Connection, connect: Connect
) -> None:
    other = as_role(connect(), "pgq_reader")
    make(other, payload={"secret": 1})
    miss(tasks, 1)
    push_due(other)
    assert len(pushed(tasks)) >= 1
    tasks.execute("select pgq_task.restrict_queue('reports')")
    [row] = ops.rows(other, "select * from pgq_task.get_periodic_info()")
    assert (row["name"], row["payload"]) == ("report", None)
    # Errors neither: PostgreSQL quotes the row that it refuses.
    with queue_ops.refused("PQ072"):
        other.execute(
            "select pgq_task.push_periodic(name, last_due, null, null)"
            "  from pgq_task.get_periodic_info()"
        )
    Tasks(tasks).create_queue("other")
    with pytest.raises(PermissionDenied, match="reports"):
        make(as_role(connect(), "pgq_writer"), queue="other")


@pytest.mark.any_pg
def test_a_job_has_several_schedules_under_names_of_their_own(tasks: Connection, dsn: str) -> None:
    app = TaskApp(QUEUE)

    @app.periodic("0 8 * * *", periodic_name="morning", detail="short")
    @app.periodic("0 18 * * FRI", detail="long")
    @app.task(unique_key=lambda detail: detail, limit_key="reports")
    def report(detail: str) -> None: ...

    app.worker(dsn).run(until_empty=True)
    found = {
        each.name: (each.payload["args"], each.unique_key, each.headers)
        for each in Tasks(tasks).periodic()
    }
    assert found == {
        "morning": ({"detail": "short"}, "short", {"limit_key": "reports"}),
        "report": ({"detail": "long"}, "long", {"limit_key": "reports"}),
    }
    with pytest.raises(InvalidTask, match="two schedules called report"):
        app.periodic("* * * * *", detail="x")(report)


def test_what_makes_no_sense_is_refused(tasks: Connection) -> None:
    with pytest.raises(TaskQueueNotFound):
        make(tasks, queue="nowhere")
    with pytest.raises(InvalidTask, match="missed is 'sometimes'"):
        make(tasks, missed="sometimes")
    for function in ("pause_periodic", "resume_periodic", "drop_periodic", "get_periodic_info"):
        with pytest.raises(Exception, match="there is no periodic task 'none'"):
            tasks.execute(f"select pgq_task.{function}('none')".encode())
    make(tasks)
    with pytest.raises(Exception, match="not due, or were pushed"):
        tasks.execute(
            "select pgq_task.push_periodic('report', last_due, now() + interval '1 hour', '{}')"
            "  from pgq_task.periodic"
        )
    app = TaskApp(QUEUE)
    with pytest.raises(InvalidTask, match="is no job of this app"):
        app.periodic("* * * * *")(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(InvalidTask, match="missed is"):
        app.periodic("* * * * *", missed="never")


@pytest.mark.any_pg
def test_a_worker_tells_the_server_of_its_jobs_and_pushes_them(tasks: Connection, dsn: str) -> None:
    app = TaskApp(QUEUE)
    done: list[int] = []

    @app.periodic("0 0 1 1 *", time_zone="Asia/Tokyo", number=7)
    @app.task(priority=3)
    def yearly(number: int) -> None:
        done.append(number)
        worker.stop()

    worker = app.worker(dsn)
    worker.run(until_empty=True)
    [row] = ops.rows(tasks, "select * from pgq_task.get_periodic_info()")
    assert (row["name"], row["time_zone"], row["priority"]) == ("yearly", "Asia/Tokyo", 3)
    assert not done
    tasks.execute("update pgq_task.periodic set last_due = last_due - interval '2 years'")
    worker.run()
    assert done == [7]
    with pytest.raises(TypeError, match=r"yearly\(\)"):
        app.periodic("* * * * *", periodic_name="other", numbr=7)(yearly)


@pytest.mark.any_pg
@pytest.mark.parametrize("kind", ["plain", "asyncio", "app", "other app"])
def test_workers_push_whatever_is_due(tasks: Connection, dsn: str, kind: str) -> None:
    """Includes jobs made in SQL, which the programs do not know."""
    make(tasks, cron="0 0 1 1 *", missed="last", payload={"task": "other", "args": {}})
    tasks.execute("update pgq_task.periodic set last_due = last_due - interval '2 years'")
    app = TaskApp("other" if kind == "other app" else QUEUE)
    Tasks(tasks).create_queue("other")
    done: list[Any] = []

    def note(task: Task) -> None:
        assert task.headers is not None
        done.append(task.headers["periodic"])

    @app.task
    def other() -> None:
        note(current_job().task)

    if kind == "plain":
        TaskWorker(dsn, QUEUE, note).run(until_empty=True)
    elif kind == "asyncio":
        asyncio.run(AsyncTaskWorker(dsn, QUEUE, aside(note)).run(until_empty=True))
    else:
        app.worker(dsn, periodic=False).run(until_empty=True)
        assert not pushed(tasks)
        app.worker(dsn).run(until_empty=True)
    if kind == "other app":
        assert len(pushed(tasks)) == 1
    else:
        assert done == ["report"]


@pytest.mark.any_pg
def test_a_worker_that_waits_pushes_what_is_due(
    tasks: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqpy.tasks._worker.exchange.LOOK", 0.2)
    done = threading.Event()
    worker = TaskWorker(dsn, QUEUE, lambda task: done.set())
    worker.poll_interval = 3600.0
    with running(worker):
        # It has nothing to do.
        waits = "select pg_sequence_last_value('pgq_task.waiting_1') = 1"
        wait_until(lambda: queue_ops.value(tasks, waits))
        make(tasks)
        miss(tasks, 1)
        assert done.wait(PATIENCE)


@pytest.mark.any_pg
def test_a_worker_leaves_to_others_what_it_may_not_push(
    tasks: Connection, dsn: str, make_role: MakeRole, caplog: pytest.LogCaptureFixture
) -> None:
    make(tasks)
    miss(tasks, 1)
    tasks.execute("select pgq_task.restrict_queue('reports')")
    Tasks(tasks).create_queue("other")
    porter = make_conninfo(dsn, user=make_role("porter", "pgq_reader"))
    TaskWorker(porter, "other", print).run(until_empty=True)
    assert not pushed(tasks)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


@pytest.mark.any_pg
def test_a_worker_needs_cron_expressions_only_for_periodic_tasks(
    tasks: Connection, dsn: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pgqpy.tasks._jobs.periodic", None)
    TaskWorker(dsn, QUEUE, print).run(until_empty=True)
    assert "periodic" not in caplog.text
    make(tasks)
    TaskWorker(dsn, QUEUE, print).run(until_empty=True)
    assert "pushes no periodic tasks" in caplog.text


@pytest.mark.any_pg
def test_any_number_of_periodic_tasks_leaves_time_for_tasks(
    tasks: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        make(tasks, name=name, missed="last")
    miss(tasks, 5)
    # There is time for one.
    clock = itertools.count(0.0, pushing._PUSHING * 0.6)
    monkeypatch.setattr(pushing, "monotonic", lambda: next(clock))
    assert push_due(tasks) == pushing._PAUSE
    assert len(pushed(tasks)) == 1
    wait_until(lambda: push_due(tasks) == pushing._PAUSE and len(pushed(tasks)) >= 3)


def test_any_number_of_missed_runs_is_passed_over_a_few_at_a_time(
    tasks: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """A role may have a task of each second that workers may not push, and so is never caught up
    with."""
    make(tasks, cron="* * * * * *", missed="last")
    miss(tasks, 3 * pushing._MOST // 60)
    behind = "select extract(epoch from now() - last_due) from pgq_task.periodic"
    before = queue_ops.value(tasks, behind)
    assert push_due(tasks) == 0
    assert before - queue_ops.value(tasks, behind) < pushing._MOST + 60
    assert pushed(tasks) == []
    assert queue_ops.value(tasks, "select last_run from pgq_task.periodic") is None
    wait_until(lambda: push_due(tasks) > 0)  # type: ignore[operator]
    assert len(pushed(tasks)) == 1
    assert "runs missed since" in caplog.text


def test_an_expression_is_short_since_every_worker_reads_it(tasks: Connection) -> None:
    with pytest.raises(InvalidTask, match="at most 1000 characters"):
        make(tasks, cron=",".join(["1"] * 1000) + " * * * *")
    call = "select pgq_task.set_periodic('n', 'reports', '1 * * * *', repeat('x', 1001), '1')"
    with queue_ops.refused("PQ072"):
        tasks.execute(call)


@pytest.mark.any_pg
def test_a_periodic_task_that_cannot_be_pushed_does_not_hold_up_the_others(
    tasks: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    make(tasks, name="a")
    make(tasks, name="b")
    miss(tasks, 1)
    tasks.execute("update pgq_task.periodic set cron = 'nonsense' where periodic_name = 'a'")
    push_due(tasks)
    assert "periodic task a cannot be pushed" in caplog.text
    assert len(pushed(tasks)) in (1, 2)
