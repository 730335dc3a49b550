"""One trace leads from the producer's transaction to the effect, wherever the work goes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from subprocess import run
from typing import Any

import pytest
import sqlalchemy as sa
from cloudevents.core.v1.event import CloudEvent
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanLimits
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode, get_current_span
from sqlalchemy.orm import DeclarativeBase, Session

import pgqpy
from pgqpy import FixedDelay, Producer, Retry, telemetry
from pgqpy.sqlalchemy import Event as MappedEvent
from pgqpy.sqlalchemy import Producer as SessionProducer
from pgqpy.tasks import Flow, Task, TaskApp, Tasks, TaskWorker, current_job
from pgqpy.telemetry import _otel
from pgqpy_consumers.events_to_tasks import EventsToTasks
from pgqpy_consumers.queue_mover import QueueMover
from pgqpy_consumers.settings import build
from tests.fixtures.fix_client import Tick
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_telemetry import Traced, is_child, links, span_id, trace_id

pytestmark = pytest.mark.any_pg

#: A worker in a process of its own, which prints its spans.
WORKER = """
import json, sys
from pgqpy.tasks import TaskApp
from tests.fixtures.fix_telemetry import Traced
from tests.integration.test_telemetry import app

traced = Traced()
app.worker(sys.argv[1]).run(until_empty=True)
for span in traced.spans:
    parent = span.parent.span_id if span.parent else None
    print(json.dumps([span.name, span.context.trace_id, span.context.span_id, parent]))
"""

app = TaskApp("jobs")


@app.task(transaction=True)
def pack(order: int) -> None:
    ship.push(current_job().conn, order)


@app.task
def ship(order: int) -> None:
    pass


class Orders(pgqpy.Consumer):
    """Pushes a job for each event."""

    queue = "moved"
    consumer = "orders"
    start = "first"
    listen = False

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        pack.push(conn, int(event.data or "0"))


def test_one_trace_leads_through_a_mover_and_a_consumer_to_the_last_job_of_a_chain(
    dsn: str,
    conn: Connection,
    queue: str,
    tick: Tick,
    target_dsn: str,
    target: Connection,
    traced: Traced,
) -> None:
    app.create_queues(target)
    config = {"queue": queue, "dsn": dsn, "target_dsn": target_dsn, "target_queue": "moved"}
    mover = QueueMover.from_config(build(QueueMover.Config, config | {"create_queue": True}))
    mover.register()
    with traced.tracer.start_as_current_span("request"), conn.transaction():
        Producer(queue).insert_event(conn, "order", "7")
    tick()
    mover.run_once()
    target.execute("select pgq.force_tick('moved'), pgq.ticker('moved')")
    Orders(target_dsn).run(until_empty=True, handle_signals=False)
    done = run(
        [sys.executable, "-c", WORKER, target_dsn], check=True, capture_output=True, text=True
    )

    sent, event = traced.named(f"send {queue}"), traced.named("process_event moved")
    assert is_child(sent, traced.named("request"))
    assert is_child(event, sent)
    assert links(traced.named(f"process_batch {queue}")) == {span_id(sent)}
    assert links(event) == {span_id(traced.named("process_batch moved"))}
    pushed = traced.named("send jobs")
    assert is_child(pushed, event)
    assert event.context is not None
    found = {name: rest for name, *rest in map(json.loads, done.stdout.splitlines())}
    assert {trace for trace, _, _ in found.values()} == {event.context.trace_id}
    parents = [found[name][2] for name in ("process_task jobs pack", "send jobs")]
    assert parents == [span_id(pushed), found["process_task jobs pack"][1]]
    assert found["process_task jobs ship"][2] == found["send jobs"][1]


def test_by_default_sends_have_no_span_and_events_one_if_they_fail(
    dsn: str, conn: Connection, queue: str, tick: Tick
) -> None:
    traced = Traced(each=False)

    class Work(Orders):
        retry_policy = FixedDelay(0, attempts=1)

        def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
            if event.data == "bad":
                raise ValueError("no")
            with traced.tracer.start_as_current_span(f"effect {event.data}"):
                if event.data == "good":
                    ship.push(conn, 1)

    try:
        app.create_queues(conn)
        consumer = Work(dsn, queue=queue)
        consumer.register()
        with traced.tracer.start_as_current_span("request"):
            Producer(queue).insert_event(conn, "order", "good")
            Producer(queue).insert_event(conn, "order", "bad")
        conn.execute("select pgq.insert_event(%s, 'order', 'without')", [queue])
        tick()
        consumer.run_once()
        app.worker(dsn).run(until_empty=True)
    finally:
        telemetry.uninstrument()
    batch, request = traced.named(f"process_batch {queue}"), traced.named("request")
    # The events before one that fails are processed again.
    *_, effect = (span for span in traced.spans if span.name == "effect good")
    assert is_child(traced.named("effect without"), batch)
    *_, failed = (span for span in traced.spans if span.name == f"process_event {queue}")
    assert is_child(failed, request)
    assert is_child(effect, request)
    assert is_child(traced.named("process_task jobs ship"), effect)
    assert links(batch) == {span_id(request)}
    assert failed.status.status_code is StatusCode.ERROR
    assert not any(name.startswith("send") for name in traced.names)
    assert failed.start_time is not None
    assert effect.end_time is not None
    assert effect.end_time <= failed.start_time


@pytest.mark.parametrize("at_once", [1, 3])
def test_each_event_sees_its_own_trace_and_what_surrounds_them_the_batch(
    dsn: str, conn: Connection, queue: str, tick: Tick, at_once: int
) -> None:
    traced = Traced(each=False)
    seen: dict[str | None, str] = {}

    class Work(pgqpy.AsyncConsumer):
        consumer = "work"
        listen = False
        concurrency = at_once

        async def process_event(self, conn: pgqpy.AsyncConnection, event: pgqpy.Event) -> None:
            await asyncio.sleep(0)
            seen[event.data] = telemetry.headers()["traceparent"].split("-")[1]

        async def process_batch(self, conn: pgqpy.AsyncConnection, batch: Any) -> None:
            await super().process_batch(conn, batch)
            get_current_span().set_attribute("mine", 1)

    async def work() -> None:
        consumer = Work(dsn, queue=queue)
        await consumer.register()
        conn.execute("select pgq.insert_event(%s, 'order', 'without')", [queue])
        for name in "abc":
            with traced.tracer.start_as_current_span(name):
                Producer(queue).insert_event(conn, "order", name)
        tick()
        await consumer.run_once()
        assert not get_current_span().is_recording()

    try:
        asyncio.run(work())
    finally:
        telemetry.uninstrument()
    batch = traced.named(f"process_batch {queue}")
    assert (batch.attributes or {})["mine"] == 1
    expected = {name: trace_id(traced.named(name)) for name in "abc"}
    assert seen == expected | {"without": trace_id(batch)}


@pytest.mark.one_database
@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"traceparent": 1}',
        '{"traceparent":"00-00000000000000000000000000000000-00f067aa0ba902b7-01"}',
        '{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b77-01"}',
        '{"traceparent": "mine", "tracestate": "a=1"}',
    ],
)
def test_what_is_no_trace_is_no_parent(
    dsn: str, conn: Connection, queue: str, tick: Tick, text: str
) -> None:
    traced = Traced(each=False)

    class Work(Orders):
        def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
            with traced.tracer.start_as_current_span("effect"):
                pass

    try:
        consumer = Work(dsn, queue=queue)
        consumer.register()
        Producer(queue).insert_event(conn, "order", "1", extra4=text)
        tick()
        consumer.run_once()
    finally:
        telemetry.uninstrument()
    effect = traced.named("effect")
    batch = traced.named(f"process_batch {queue}")
    assert effect.parent is None or is_child(effect, batch)
    assert links(batch) == set()


def test_names_are_few_and_links_bounded(
    dsn: str, conn: Connection, queue: str, tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_otel, "MOST_JOBS", 1)
    traced = Traced(each=False, limits=SpanLimits(max_links=1000))
    try:
        app.create_queues(conn)
        Tasks(conn).set_config("jobs", "keep_tenants", "1 h")
        for number, job in enumerate(("ship", "pack")):
            Tasks(conn).push(f"jobs/tenant{number}", {"task": job, "args": {"order": number}})
        consumer = Orders(dsn, queue=queue)
        consumer.register()
        for _ in range(_otel.MOST_LINKS + 2):
            with traced.tracer.start_as_current_span("request"):
                Producer(queue).insert_event(conn, "order", "1")
        tick()
        consumer.run_once()
        worker = TaskWorker(dsn, ["jobs/tenant0", "jobs/tenant1"], handler=lambda *_: None)
        worker.run(until_empty=True)
    finally:
        telemetry.uninstrument()
    assert len(links(traced.named(f"process_batch {queue}"))) == _otel.MOST_LINKS
    named = {name for name in traced.names if "jobs" in name}
    other = "handle_task jobs _OTHER"
    assert other in named
    assert named - {other} < {"handle_task jobs ship", "handle_task jobs pack"}


def test_a_trace_that_is_not_recorded_is_not_stored(conn: Connection, queue: str) -> None:
    traced = Traced(each=False, sampler=ALWAYS_OFF)
    try:
        with traced.tracer.start_as_current_span("request"):
            Producer(queue).insert_event(conn, "order", "1")
    finally:
        telemetry.uninstrument()
    assert conn.execute("select ev_extra4 from pgq.event_template").fetchall() == [(None,)]


def test_the_environment_switches_it_on_for_commands(dsn: str, conn: Connection) -> None:
    asked = """
import contextlib
from pgqpy.cli import main
from pgqpy.telemetry import _spans
with contextlib.suppress(SystemExit):
    main(["queue", "list"])
print(_spans.active and _spans.active._each)
"""
    for value, expected in (("", "None"), ("1", "False"), ("each", "True")):
        environment = os.environ | {"PGQPY_TELEMETRY": value, "PGQPY_DSN": dsn}
        done = run(
            [sys.executable, "-c", asked],
            check=True,
            capture_output=True,
            text=True,
            env=environment,
        )
        assert done.stdout.split()[-1] == expected


def test_spans_have_the_attributes_of_the_semantic_conventions(
    dsn: str, conn: Connection, queue: str, tick: Tick, traced: Traced
) -> None:
    class Once(Orders):
        def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
            raise ValueError("no") if event.data == "1" else Retry(60)

        retry_policy = FixedDelay(0, attempts=1)

    consumer = Once(dsn, queue=queue)
    consumer.register()
    Producer(queue).insert_events(conn, [("order", "1"), ("order", "2")])
    tick()
    consumer.run_once()
    sent, batch = traced.named(f"send {queue}"), traced.named(f"process_batch {queue}")
    assert (sent.kind, batch.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    common = {"messaging.system": "pgq", "messaging.destination.name": queue}
    assert sent.attributes == common | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.batch.message_count": 2,
    }
    found = dict(batch.attributes or {})
    assert found.pop("pgqpy.batch.id")
    assert found == common | {
        "messaging.operation.name": "process_batch",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "orders",
        "messaging.batch.message_count": 2,
    }
    # Both events were sent in one span.
    assert links(batch) == {span_id(sent)}
    events = [span for span in traced.spans if span.name == f"process_event {queue}"]
    failures = {(span.attributes or {}).get("error.type"): span.status for span in events}
    assert failures["ValueError"].status_code is StatusCode.ERROR
    # What is retried on purpose is no failure.
    assert failures[None].status_code is StatusCode.UNSET


def test_a_poll_makes_no_span_and_an_event_without_a_trace_none_of_its_own(
    dsn: str, conn: Connection, queue: str, tick: Tick, traced: Traced
) -> None:
    app.create_queues(conn)
    consumer = Orders(dsn, queue=queue)
    consumer.register()
    assert not consumer.run_once()
    app.worker(dsn).run(until_empty=True)
    assert traced.names == []
    conn.execute("select pgq.insert_event(%s, 'order', '1')", [queue])
    tick()
    consumer.run_once()
    assert traced.names == [f"process_batch {queue}", "send jobs"]


def test_only_an_empty_extra4_and_a_cloud_event_get_the_trace(
    conn: Connection, queue: str, traced: Traced
) -> None:
    cloud = CloudEvent({"id": "1", "source": "/shop", "type": "order"}, {"a": 1})
    producer = Producer(queue)
    theirs = cloud.get_attributes() | {"traceparent": "00-theirs"}
    producer.insert_event(conn, CloudEvent(theirs | {"id": "0"}, {"a": 1}))
    producer.insert_event(conn, "mine", "data", extra4='{"my": "own"}')
    producer.insert_event(conn, "none", "data")
    producer.insert_events(conn, [cloud, pgqpy.NewEvent("copied", "data", extra1="1")])
    producer.insert_events_returning(conn, [("array", "data", None, None, None, "text")])
    ask = "select ev_type, ev_data, ev_extra1, ev_extra4 from pgq.event_template order by ev_id"
    theirs_kept, *rows = conn.execute(ask).fetchall()
    assert json.loads(theirs_kept[3])["traceparent"] == "00-theirs"
    assert [row[:3] for row in rows] == [
        ("mine", "data", None),
        ("none", "data", None),
        ("order", '{"a":1}', None),
        ("copied", "data", "1"),
        ("array", "data", None),
    ]
    mine, none, order, copied, array = (row[3] for row in rows)
    assert (mine, array) == ('{"my": "own"}', "text")
    assert set(json.loads(none)) == set(json.loads(copied)) == {"traceparent"}
    kept = json.loads(order)
    assert kept.pop("traceparent") == json.loads(copied)["traceparent"]
    assert kept == {"specversion": "1.0", "id": "1", "source": "/shop"} | kept


def test_events_of_a_session_carry_the_trace(conn: Connection, dsn: str, traced: Traced) -> None:
    class Base(DeclarativeBase):
        pass

    class Placed(MappedEvent, Base):
        __queue__ = "orders"
        __event_type__ = "placed"

    conn.execute("select pgq.create_queue('orders')")
    engine = sa.create_engine(sa.make_url(dsn).set(drivername="postgresql+psycopg"))
    with traced.tracer.start_as_current_span("request"), Session(engine) as session:
        session.add(Placed("1"))
        SessionProducer("orders").insert_event(session, "order", "2")
        SessionProducer("orders").insert_events(session, [("order", "3")])
        session.commit()
    engine.dispose()
    rows = conn.execute("select ev_extra4 from pgq_queue.orders").fetchall()
    assert len(rows) == 3
    request = traced.named("request")
    for (text,) in rows:
        assert trace_id(request) in text


def test_each_way_of_pushing_carries_the_trace(
    dsn: str, conn: Connection, queue: str, tick: Tick, traced: Traced
) -> None:
    app.create_queues(conn)
    tasks = Tasks(conn)
    config = {"dsn": dsn, "queue": queue, "target_queue": "jobs"}
    mover = EventsToTasks.from_config(build(EventsToTasks.Config, config))
    mover.register()
    with traced.tracer.start_as_current_span("request"):
        tasks.push("jobs", 1, headers={"traceparent": "mine"})
        tasks.push("jobs", 2, headers={"own": 1})
        tasks.push_unique("jobs", 3, "key")
        tasks.push_many("jobs", [4, 5])
        pack.push_many(conn, [{"order": 6}])
        flow = Flow()
        flow.add(ship, 8).after(flow.add(pack, 7))
        flow.push(conn)
        Producer(queue).insert_event(conn, "order", "9")
    tick()
    mover.run_once()
    first, *found = sorted(tasks.list("jobs"), key=lambda task: task.id)
    assert first.headers == {"traceparent": "mine"}
    assert len(found) == 8
    assert found[0].headers is not None
    assert found[0].headers["own"] == 1
    request = traced.named("request")
    for task in found:
        assert trace_id(request) in (task.headers or {})["traceparent"]
    # What is not in a recorded span carries none.
    telemetry.uninstrument()
    tasks.push("jobs", 10)
    assert max(tasks.list("jobs"), key=lambda task: task.id).headers is None


@pytest.mark.spark
def test_a_spark_batch_is_linked_with_its_senders_and_is_the_parent_of_its_effects(
    spark: Any, dsn: str, conn: Connection, queue: str, tick: Tick, traced: Traced
) -> None:
    from pgqpy_consumers.spark import SparkConsumer

    class Count(SparkConsumer):
        consumer = "count"

        def process_batch(self, spark: Any, batch: pgqpy.Batch, df: Any) -> None:
            ship.push(self.conn, df.count())

    app.create_queues(conn)
    consumer = Count(dsn, spark=spark, queue=queue)
    consumer.register()
    Producer(queue).insert_events(conn, [("order", "1"), ("order", "2")])
    conn.execute("select pgq.insert_event(%s, 'order', '3')", [queue])
    tick()
    consumer.run_once()
    batch = traced.named(f"process_batch {queue}")
    assert links(batch) == {span_id(traced.named(f"send {queue}"))}
    assert is_child(traced.named("send jobs"), batch)
    assert [task.payload["args"]["order"] for task in Tasks(conn).list("jobs")] == [3]


def test_a_group_of_asyncio_continues_the_trace_of_each_event(
    dsn: str, conn: Connection, queue: str, tick: Tick, traced: Traced
) -> None:
    seen: dict[str, dict[str, str]] = {}

    class Group(pgqpy.AsyncGroupConsumer):
        consumer = "group"
        partitions = 1
        concurrency = 3
        listen = False

        async def process_event(self, conn: pgqpy.AsyncConnection, event: pgqpy.Event) -> None:
            await asyncio.sleep(0)
            seen[str(event.data)] = telemetry.headers()

    async def work() -> None:
        consumer = Group(dsn, queue=queue)
        await consumer.register()
        for name in "abc":
            Producer(queue).insert_event(conn, "order", name, extra1=name)
        tick()
        await consumer.run_once()

    asyncio.run(work())
    sent = [span for span in traced.spans if span.name == f"send {queue}"]
    events = [span for span in traced.spans if span.name == f"process_event {queue}"]
    assert len(events) == 3
    assert all(any(is_child(event, each) for each in sent) for event in events)
    assert links(traced.named(f"process_batch {queue}")) == {span_id(span) for span in sent}
    spans = {headers["traceparent"].split("-")[2] for headers in seen.values()}
    assert spans == {f"{span_id(event):016x}" for event in events}


def test_what_is_sent_and_processed_is_measured(
    dsn: str, conn: Connection, queue: str, tick: Tick
) -> None:
    reader = InMemoryMetricReader()
    telemetry.instrument(meter_provider=MeterProvider([reader]))
    try:
        app.create_queues(conn)
        consumer = Orders(dsn, queue=queue)
        consumer.register()
        Producer(queue).insert_events(conn, [("order", "1"), ("order", "2")])
        tick()
        consumer.run_once()
        app.worker(dsn).run(until_empty=True)
    finally:
        telemetry.uninstrument()
    data: Any = reader.get_metrics_data()
    counted: dict[tuple[str, str], int] = {}
    for resource in data.resource_metrics:
        for metric in resource.scope_metrics[0].metrics:
            for point in metric.data.data_points:
                of = metric.name, point.attributes["messaging.destination.name"]
                number = point.value if hasattr(point, "value") else point.count
                counted[of] = counted.get(of, 0) + number
    # Two jobs, each of which pushes another one.
    assert counted == {
        ("messaging.client.sent.messages", queue): 2,
        ("messaging.client.sent.messages", "jobs"): 4,
        ("messaging.client.operation.duration", queue): 1,
        ("messaging.client.operation.duration", "jobs"): 4,
        ("messaging.client.consumed.messages", queue): 2,
        ("messaging.client.consumed.messages", "jobs"): 4,
        ("messaging.process.duration", queue): 1,
        ("messaging.process.duration", "jobs"): 4,
    }


def test_a_batch_of_tasks_is_one_span_with_links(
    dsn: str, conn: Connection, traced: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    class Batches(TaskWorker):
        batch_size = 10

        def process_batch(self, conn: pgqpy.Connection, tasks: list[Task]) -> list[Any]:
            for task in tasks:
                with traced.tracer.start_as_current_span("mine", telemetry.context_of(task)):
                    pass
            return [pgqpy.DeadLetter("no") if task.payload else None for task in tasks]

    tasks = Tasks(conn)
    tasks.create_queue("batches")
    for number in range(2):
        tasks.push("batches", number)
    tasks.push("batches", 0, headers={"traceparent": "mine"})
    Batches(dsn, "batches").run(until_empty=True)
    sent = [span for span in traced.spans if span.name == "send batches"]
    batches = [span for span in traced.spans if span.name == "process_batch batches"]
    # That of the last is no trace, so its span is not linked.
    assert {link for batch in batches for link in links(batch)} == {*map(span_id, sent[:2])}
    counts: list[Any] = [
        (batch.attributes or {})["messaging.batch.message_count"] for batch in batches
    ]
    assert sum(counts) == 3
    mine = [span for span in traced.spans if span.name == "mine"]
    assert sum(any(is_child(each, parent) for parent in sent) for each in mine) == 2
    (line,) = (each for each in caplog.records if "no" in each.getMessage())
    assert line.__dict__["trace_id"] == trace_id(sent[1])
