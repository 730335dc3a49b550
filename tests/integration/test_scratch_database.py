"""`pgqpy.testing.ScratchDatabase` drains consumers of all kinds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from typing import Any

import pytest

import pgqpy
from pgqpy.consumer.coop import CoopConsumer
from pgqpy.consumer.group import GroupConsumer
from pgqpy.consumer.remote import RemoteConsumer
from pgqpy.errors import InvalidPayload, InvalidTask, PgqError
from pgqpy.event import NewEvent
from pgqpy.retry import FixedDelay, Retry, RetryPolicy
from pgqpy.tasks import CurrentJob, Flow, TaskApp, TaskWorker, current_job
from pgqpy.testing import ScratchDatabase, _scratch, eager, run_job
from tests.fixtures import queue_ops as ops

pytestmark = pytest.mark.any_pg

EVENTS = [NewEvent("t", str(number), f"key {number % 3}") for number in range(20)]


@pytest.fixture
def scratch(dsn: str) -> Iterator[ScratchDatabase]:
    database = ScratchDatabase(dsn)
    database.create_queue("q")
    yield database
    database.close()


class Seen:
    """Remembers events, for consumers of any kind."""

    queue = "q"
    consumer = "c"
    retry_policy: RetryPolicy | None = FixedDelay(0, attempts=3)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[int] = []

    def process_event(self, conn: Any, event: pgqpy.Event) -> None:
        if event.type == "broken":
            raise ZeroDivisionError
        self.seen.append(int(event.data or 0))


class Alone(Seen, pgqpy.Consumer):
    pass


class Shared(Seen, CoopConsumer):
    pass


class Grouped(Seen, GroupConsumer):
    partitions = 2


class Asynchronous(Seen, pgqpy.AsyncConsumer):
    async def process_event(self, conn: Any, event: pgqpy.Event) -> None:  # type: ignore[override]
        super().process_event(conn, event)


@pytest.mark.parametrize("kind", [Alone, Shared, Grouped, Asynchronous])
def test_a_consumer_of_any_kind_has_all_events_once(scratch: ScratchDatabase, kind: Any) -> None:
    consumer = kind(scratch.dsn)
    scratch.insert_events("q", EVENTS[:10])
    scratch.tick("q")
    scratch.insert_events("q", EVENTS[10:])
    scratch.drain(consumer)
    assert sorted(consumer.seen) == list(range(20))
    scratch.insert_event("q", "t", "20")
    scratch.drain(consumer)
    scratch.drain(consumer)
    assert sorted(consumer.seen) == list(range(21))


@pytest.mark.parametrize("kind", [Alone, Shared, Asynchronous])
def test_retries_without_delay_end_as_dead_letters(scratch: ScratchDatabase, kind: Any) -> None:
    consumer = kind(scratch.dsn)
    scratch.insert_event("q", "broken")
    scratch.insert_event("q", "t", "1")
    scratch.drain(consumer)
    assert consumer.seen == [1]
    assert scratch.conn.execute("select dl_attempts from pgq.dead_letter").fetchall() == [(3,)]


@pytest.mark.parametrize("kind", [Alone, Asynchronous])
def test_events_that_are_put_back_for_ever_are_an_error(
    scratch: ScratchDatabase, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_scratch, "ROUNDS", 3)
    monkeypatch.setattr(kind, "retry_policy", FixedDelay(0))
    scratch.insert_event("q", "broken")
    with pytest.raises(PgqError, match="put events back 3 times, and they are due again"):
        scratch.drain(kind(scratch.dsn))
    assert ops.value(scratch.conn, "select max(ev_retry) from pgq.event_template") == 3


def test_delayed_events_come_when_they_are_due(scratch: ScratchDatabase) -> None:
    consumer = Alone(scratch.dsn)
    scratch.insert_event("q", "t", "1", delay=timedelta())
    scratch.insert_event("q", "t", "2", delay=timedelta(hours=1))
    scratch.drain(consumer)
    assert consumer.seen == [1]


def test_a_consumer_with_a_target(scratch: ScratchDatabase) -> None:
    class Copy(RemoteConsumer):
        queue = "q"
        consumer = "c"

        def process_remote_batch(
            self, conn: Any, batch: pgqpy.Batch, target: pgqpy.Connection
        ) -> None:
            for event in batch:
                target.execute("insert into copied values (%s)", [event.data])

    scratch.conn.execute("create table copied (data text)")
    scratch.insert_events("q", EVENTS)
    scratch.drain(Copy(scratch.dsn, target_dsn=scratch.dsn))
    assert scratch.conn.execute("select count(*) from copied").fetchall() == [(20,)]


def test_drain_runs_workers_and_tasks_are_brought_forward(scratch: ScratchDatabase) -> None:
    queue = scratch.create_task_queue("mails", max_attempts=2)
    app = TaskApp(queue, retry_policy=FixedDelay(3600))
    done: list[str] = []

    @app.task
    def send(to: str) -> None:
        done.append(to)
        if to == "broken":
            raise ZeroDivisionError

    send.options(delay=60).push(scratch.conn, "broken")
    send.push(scratch.conn, "me")
    assert [task.payload["args"]["to"] for task in scratch.tasks(queue)] == ["broken", "me"]
    scratch.drain(app.worker(scratch.dsn))
    assert done == ["me"]
    for attempts in (1, 2):
        assert scratch.bring_forward(queue) == 1
        scratch.drain(app.async_worker(scratch.dsn))
        assert len(done) == 1 + attempts
    assert not scratch.tasks(queue)
    [failed] = scratch.tasks("mails.failed")
    assert "ZeroDivisionError" in failed.headers["reason"]  # type: ignore[index]
    with pytest.raises(PgqError, match="AppWorker is for another database"):
        scratch.drain(app.worker("postgresql:///other"))
    with pytest.raises(TypeError, match=r"TaskWorker\(pgq\.dsn\)"):
        scratch.drain(TaskWorker)  # type: ignore[arg-type]


def test_eager_jobs_run_when_they_are_pushed() -> None:
    app = TaskApp("mails")
    seen: list[object] = []

    @app.middleware
    @contextmanager
    def around(job: CurrentJob) -> Iterator[None]:
        seen.append(job.task.queue)
        yield

    @app.task(order_key=lambda day: day.isoformat())
    async def note(day: date) -> None:
        seen.append(day)

    @app.task(transaction=True)
    def broken() -> None:
        seen.append(current_job().conn)
        raise ZeroDivisionError

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    @app.task
    def show() -> None:
        seen.append(current_job().results)

    today = date(2026, 5, 4)
    # An app with a job of the same name, in another queue.
    reports = TaskApp("reports")

    @reports.task(name="show")
    def write() -> None:
        seen.append("written")

    with eager(app, reports) as ran:
        write.push(None)  # type: ignore[call-overload]
        assert seen.pop() == "written"
        del ran[:]
        assert note.options(delay=3600, queue="later").push(None, today) == 1  # type: ignore[call-overload]
        assert note.push_many(None, [{"day": today}] * 2) == [2, 3]
        with pytest.raises(ZeroDivisionError):
            broken.push("a connection")  # type: ignore[call-overload]
        flow = Flow()
        flow.add(show).after(*(flow.add(double, number) for number in (1, 2)))
        flow.push(None)  # type: ignore[arg-type]
        with pytest.raises(InvalidTask, match="other is no job of an app"):
            TaskApp("mails").task(name="other")(lambda: None).push(None)  # type: ignore[call-overload]
    assert seen[-4:] == ["mails", "mails", "mails", [2, 4]]
    del seen[-4:]
    assert seen == ["later", today, "mails", today, "mails", today, "mails", "a connection"]
    assert [task.order_key for task in ran[:4]] == ["2026-05-04"] * 3 + [None]


def test_a_job_goes_on_after_one_that_it_has_pushed() -> None:
    app = TaskApp("mails")

    @app.task
    def inner() -> None: ...

    @app.task
    def outer() -> list[str]:
        inner.push(None)  # type: ignore[call-overload]
        run_job(inner)
        return [current_job().task.payload["task"]]

    with eager(app):
        assert run_job(outer) == ["outer"]


def test_one_job_is_run_with_encoded_arguments_and_middleware() -> None:
    app = TaskApp("mails")
    seen: list[object] = []

    @app.middleware
    @contextmanager
    def around(job: CurrentJob) -> Iterator[None]:
        seen.append(job.task.payload)
        yield

    @app.task
    async def tomorrow(day: date) -> date:
        return day + timedelta(days=1)

    @app.task
    def later(seconds: int) -> Retry:
        if seconds < 0:
            raise ValueError(seconds)
        return Retry(seconds)

    assert run_job(tomorrow, date(2026, 5, 4)) == "2026-05-05"
    assert seen == [{"task": "tomorrow", "args": {"day": "2026-05-04"}}]
    assert isinstance(run_job(later, 7), Retry)
    with pytest.raises(ValueError, match="-1"):
        run_job(later, seconds=-1)
    with pytest.raises(InvalidPayload):
        run_job(later, "soon")  # type: ignore[arg-type]
