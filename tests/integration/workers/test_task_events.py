"""Events into tasks, and tasks into events, each in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import pytest

import pgqpy
from pgqpy import Event, FixedDelay, Producer, errors
from pgqpy.tasks import Task, TaskWorker
from pgqpy.testing import ScratchDatabase
from pgqpy_consumers.events_to_tasks import EventsToTasks, NewTask
from pgqpy_consumers.settings import ConfigError, build
from tests.fixtures import task_ops as ops
from tests.fixtures.fix_client import Tick
from tests.fixtures.fix_db import Connection
from tests.fixtures.pages import blocks, text_of


@pytest.fixture(autouse=True)
def mails(conn: Connection) -> str:
    conn.execute("select pgq_task.create_queue('mails')")
    return "mails"


Make = Callable[..., Any]


@pytest.fixture
def make(dsn: str, queue: str) -> Make:
    """``make(Class, **settings)``: a consumer that has seen all that was there."""

    def made(kind: type[EventsToTasks] = EventsToTasks, **settings: Any) -> Any:
        config = {"dsn": dsn, "queue": queue, "target_queue": "mails", **settings}
        consumer = kind.from_config(build(kind.Config, config))
        consumer.backoff_first = 0.01
        consumer.run(until_empty=True)
        return consumer

    return made


Send = Callable[..., None]


@pytest.fixture
def send(conn: Connection, queue: str, tick: Tick) -> Send:
    """``send((type, data), ...)`` inserts events that are a batch then."""

    def send_events(*events: tuple[str, str | None]) -> None:
        for number, (event_type, data) in enumerate(events):
            extra = f"customer {number % 2}"
            Producer(queue).insert_event(conn, event_type, data, extra1=extra)
        tick()

    return send_events


def payloads(conn: Connection) -> list[Any]:
    found = ops.rows(conn, "select payload from pgq_task.tasks where queue = 'mails' order by id")
    return [row["payload"] for row in found]


def test_events_become_tasks_once(conn: Connection, make: Make, send: Send) -> None:
    consumer = make()
    digits = "12345678901234567890.10"
    send(*[("paid", f'{{"n": {n}}}') for n in range(2000)], ("paid", None), ("paid", digits))
    for _ in range(2):
        consumer.run(until_empty=True)
    *found, _ = payloads(conn)
    assert found == [*({"n": n} for n in range(2000)), None]
    # Numbers keep their digits.
    kept = conn.execute("select payload::text from pgq_task.tasks order by id desc limit 1")
    assert kept.fetchone() == (digits,)


def test_settings_shape_the_tasks(conn: Connection, make: Make, send: Send) -> None:
    settings: dict[str, Any] = {"types": ["paid", "sent"], "payload": "event", "priority": 3}
    consumer = make(order_key="extra1", unique_key="type", **settings)
    send(("paid", "no JSON"), ("other", "1"), ("sent", "2"), ("paid", "3"))
    consumer.run(until_empty=True)
    tasks = ops.rows(conn, "select * from pgq_task.tasks order by id")
    assert [task["payload"]["data"] for task in tasks] == ["no JSON", "2"]
    assert [task["unique_key"] for task in tasks] == ["paid", "sent"]
    assert [task["order_key"] for task in tasks] == ["customer 0", "customer 0"]
    assert {task["priority"] for task in tasks} == {3}


def test_a_subclass_decides(conn: Connection, make: Make, send: Send) -> None:
    class Later(EventsToTasks):
        def task_of(self, event: Event) -> NewTask | None:
            if event.type == "paid":
                return NewTask(payload=event.id, queue="slow", delay=3600, headers={"a": 1})
            return None

    conn.execute("select pgq_task.create_queue('slow')")
    consumer = make(Later)
    send(("paid", "x"), ("other", "y"))
    consumer.run(until_empty=True)
    (task,) = ops.rows(conn, "select * from pgq_task.tasks")
    assert (task["queue"], task["status"], task["headers"]) == ("slow", "scheduled", {"a": 1})


def test_tasks_may_be_due_already(conn: Connection, make: Make, send: Send) -> None:
    class DayAfter(EventsToTasks):
        def task_of(self, event: Event) -> NewTask | None:
            return NewTask(
                payload=event.id, at=event.time + timedelta(days=1 - 3 * (event.type == "late"))
            )

    consumer = make(DayAfter)
    send(("new", "{}"), ("late", "{}"))
    consumer.run(until_empty=True)
    tasks = ops.rows(conn, "select status from pgq_task.tasks order by id")
    assert [task["status"] for task in tasks] == ["scheduled", "available"]


@pytest.mark.parametrize("data", ["{NaN", "[" * 5_000 + "]" * 5_000])
def test_an_event_that_is_no_json_is_named_and_none_of_its_batch_is_pushed(
    conn: Connection, make: Make, send: Send, data: str
) -> None:
    """Tasks sent to the server before the error are not pushed either."""
    consumer = make()
    send(*[("paid", "1")] * 1500, ("paid", data))
    with pytest.raises(errors.InvalidPayload, match="the data of event 1501 is no JSON") as caught:
        consumer.run(until_empty=True)
    assert "task_of" in (caught.value.hint or "")
    assert payloads(conn) == []
    consumer.payload = "text"
    consumer.run(until_empty=True)
    assert payloads(conn) == [*["1"] * 1500, data]


@pytest.mark.parametrize("data", ['"\\u0000"', '{"a": ["\\ud800"]}', '{"\\\\\\u0000": 1.5e400}'])
def test_an_event_that_is_json_but_not_jsonb_is_named(
    conn: Connection, make: Make, send: Send, data: str
) -> None:
    consumer = make()
    send(("paid", '"\\\\u0000 \\u00e4"'), ("paid", data), ("paid", "1e400"))
    with pytest.raises(errors.InvalidPayload, match="the task of event 2 cannot be pushed: a text"):
        consumer.run(until_empty=True)
    assert payloads(conn) == []
    consumer.payload = "text"
    consumer.run(until_empty=True)
    assert payloads(conn) == ['"\\\\u0000 \\u00e4"', data, "1e400"]


def test_fields_are_keys_if_they_can_be(
    conn: Connection, queue: str, tick: Tick, make: Make
) -> None:
    """One that is empty is none, and what is too long is named with its event."""
    consumer = make(order_key="extra1", unique_key="extra2")

    def insert(**extra: Any) -> int:
        return Producer(queue).insert_event(conn, "paid", "1", **extra)

    insert(extra1="", extra2="")
    insert(extra1="ä" * 500)
    tick()
    consumer.run(until_empty=True)
    found = conn.execute("select order_key, unique_key from pgq_task.tasks order by id").fetchall()
    assert found == [(None, None), ("ä" * 500, None)]
    insert(extra1="o", extra2="u")
    event = insert(extra2="ä" * 501)
    tick()
    expected = f"the task of event {event} cannot be pushed: a key .*, this unique_key has 1002"
    with pytest.raises(errors.InvalidTask, match=expected) as caught:
        consumer.run(until_empty=True)
    assert "task_of" in (caught.value.hint or "")
    assert len(payloads(conn)) == 2


def test_tasks_are_pushed_into_another_database(
    conn: Connection, make: Make, send: Send, target: Connection, target_dsn: str
) -> None:
    target.execute("select pgq_task.create_queue('mails')")
    consumer = make(target_dsn=target_dsn)
    send(("paid", "1"))
    consumer.run(until_empty=True)
    assert (payloads(target), payloads(conn)) == ([1], [])


def test_settings_that_cannot_be_are_errors(make: Make) -> None:
    with pytest.raises(errors.TaskQueueNotFound):
        make(target_queue="nosuch")
    for wrong in ({"payload": "xml"}, {"priority": 99999}, {"batch_size": 0}):
        with pytest.raises(ConfigError):
            make(**wrong)


def test_what_the_page_shows_works(
    conn: Connection, dsn: str, make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGQPY_DSN", dsn)
    reminders, shipping, _ = blocks(text_of("tasks-events.md"))
    names: dict[str, Any] = {"__name__": __name__}
    exec(reminders, names)
    consumer = make(names["Reminders"])
    send(("order.created", '{"id": 7}'), ("order.paid", "7"))
    consumer.run(until_empty=True)
    (task,) = ops.rows(conn, "select payload, status from pgq_task.tasks")
    assert task == {"payload": {"order": 7}, "status": "scheduled"}

    exec(shipping, names)
    conn.execute("create table orders (id int, shipped timestamptz)")
    conn.execute("insert into orders values (7)")
    conn.execute("select pgq.create_queue('orders'), pgq_task.create_queue('shipping')")
    ops.push(conn, "shipping", {"order": 7})
    names["Shipping"]().run(until_empty=True)
    assert conn.execute("select count(shipped) from orders").fetchone() == (1,)
    found = conn.execute("select ev_data from pgq.event_template where ev_type = 'order.shipped'")
    assert found.fetchall() == [("7",)]


def test_a_signal_reaches_subscribers_also_late_ones(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PGQPY_DSN", dsn)
    database = ScratchDatabase(dsn)
    signals = blocks(text_of("tasks-events.md"))[-1].replace(
        "subscriber.run()", "drain(subscriber)"
    )
    names: dict[str, Any] = {"drain": database.drain}
    exec(signals, names)
    assert capsys.readouterr().out == "paused mails\n"
    database.insert_event("signals", "resumed", "mails")
    told: list[tuple[str, str | None]] = []
    starts: dict[str, Literal["first", "now"]] = {"late": "first", "new": "now"}
    for name, start in starts.items():

        def hear(_: Any, event: Event, name: str = name) -> None:
            told.append((name, event.type))

        late = pgqpy.Consumer(dsn, queue="signals", consumer=name, start=start, handler=hear)
        late.register()
        database.drain(late)
    assert told == [("late", "paused"), ("late", "resumed")]
    database.close()


class Shipping(TaskWorker):
    """Ship an order and insert an event for all consumers: both, or neither."""

    queues = "mails"

    def process_task(self, conn: pgqpy.Connection, task: Task) -> None:
        Producer("test_queue").insert_event(conn, "shipped", str(task.payload))
        if task.payload == "bad":
            raise ValueError("bad")


def test_a_task_inserts_events_in_its_transaction(conn: Connection, dsn: str, queue: str) -> None:
    ops.push(conn, "mails", "good")
    ops.push(conn, "mails", "bad")
    Shipping(dsn, retry_policy=FixedDelay(3600)).run(until_empty=True)
    found = conn.execute("select ev_data from pgq.event_template").fetchall()
    assert found == [("good",)]
    (left,) = ops.rows(conn, "select * from pgq_task.tasks")
    assert (left["payload"], left["attempts"]) == ("bad", 1)
