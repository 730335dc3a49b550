"""A consumer whose batches fail: the database and the log tell why, and successes write nothing."""

# One function is every consumer's method here.
# mypy: disable-error-code="misc, assignment"

from __future__ import annotations

import asyncio
import logging
from typing import Any

import psycopg
import pytest

import pgqpy
from pgqpy import (
    AsyncConsumer,
    Consumer,
    CoopConsumer,
    FixedDelay,
    GroupConsumer,
    Producer,
    RemoteConsumer,
    SerialConsumer,
    TrackedConsumer,
)
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_client import Background, Tick
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_ticker import eventually

NOTED = """
select queue_name, consumer_name, batch_id, event_id, error, attempts,
       last_attempt >= failing_since, traceback
  from pgq.failing_consumer
"""


def fails(*arguments: Any) -> None:
    """Process an event or batch: raises an error while the consumer is broken."""
    if Fails.broken:
        # A new one: each raise adds to the traceback of the same one.
        raise type(Fails.broken)(*Fails.broken.args)


class Fails:
    """The common failure of all consumers of this module."""

    broken: BaseException | None = None
    consumer = "picky"
    backoff_first = 0.01
    poll_interval = 0.05
    retry_policy = None


@pytest.fixture(autouse=True)
def broken() -> Exception:
    Fails.broken = ZeroDivisionError("no \0 such \N{SNOWMAN} thing")
    return Fails.broken


class Plain(Fails, Consumer):
    process_event = fails


class InPieces(Fails, Consumer):
    """Fails in the savepoint of its second run."""

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        conn.execute("select 1")
        if Fails.broken and event.data == "1":
            raise pgqpy.Retry(0)
        if Fails.broken and event.data == "0":
            return
        fails()


class ByPolicy(Fails, Consumer):
    """The hook wants the batch again."""

    retry_policy = FixedDelay(0)
    process_event = fails
    on_event_failed = fails


class Coop(Fails, CoopConsumer):
    worker_name = "worker"
    process_event = fails


class Group(Fails, GroupConsumer):
    partitions = 1
    key = "ev_type"
    process_event = fails


class Remote(Fails, RemoteConsumer):
    process_remote_event = fails


class Serial(Fails, SerialConsumer):
    process_remote_event = fails


class Tracked(Fails, TrackedConsumer):
    process_tracked_event = fails


class Whole(Fails, Consumer):
    """The failing event is not known."""

    process_batch = fails


Kinds = [Plain, InPieces, ByPolicy, Coop, Group, Remote, Serial, Tracked, Whole]


def made(kind: Any, dsn: str) -> Any:
    target = {"target_dsn": dsn} if issubclass(kind, (Remote, Serial)) else {}
    consumer = kind(dsn, queue="test_queue", **target)
    consumer.run(until_empty=True)
    return consumer


@pytest.mark.parametrize("kind", Kinds, ids=lambda kind: kind.__name__)
def test_a_failing_consumer_is_seen_with_its_error_until_the_batch_is_done(
    kind: Any,
    dsn: str,
    queue: str,
    conn: Connection,
    tick: Tick,
    background: Background,
    cli: Cli,
    caplog: pytest.LogCaptureFixture,
) -> None:
    consumer = made(kind, dsn)
    if kind is Coop:
        # Its run has ended, and the consumer is registered without it.
        consumer.register()
    events = [Producer(queue).insert_event(conn, "t", str(n)) for n in range(3)]
    tick()
    caplog.set_level(logging.ERROR, "pgqpy")
    thread = background(consumer)
    eventually(conn, "select attempts >= 3 from pgq.failing_consumer")
    [(noted, name, batch, event, error, _, in_order, where)] = conn.execute(NOTED).fetchall()
    assert noted == queue
    assert name == {Coop: "picky.worker", Group: "picky#0"}.get(kind, "picky")
    assert event == {Whole: None, InPieces: events[2]}.get(kind, events[0])
    assert error == "ZeroDivisionError: no \\x00 such \N{SNOWMAN} thing"
    assert in_order
    assert where.startswith("Traceback (most recent call last):\n")
    assert "in fails\n    raise type(Fails.broken)" in where
    assert where.endswith(error)
    at = "" if kind is Whole else f" at event {event}"
    line = f"batch {batch} of consumer picky on queue {queue} failed{at} and was rolled back"
    assert line in caplog.text
    [shown] = [
        each for each in cli.json("status")["queues"][0]["consumers"] if each["consumer"] == name
    ]
    assert shown["state"] == "failing"
    assert (shown["failing"]["error"], shown["failing"]["traceback"]) == (error, where)
    assert f"fails in batch {batch}{at}, " in cli.ok("status").replace("\n  ", " ")
    Fails.broken = None
    eventually(conn, "select not exists (select from pgq.failing_consumer)")
    assert thread.is_alive()


@pytest.mark.parametrize("kind", Kinds, ids=lambda kind: kind.__name__)
def test_a_cancellation_that_a_handler_raises_is_its_failure(
    kind: Any, dsn: str, queue: str, conn: Connection, tick: Tick
) -> None:
    consumer = made(kind, dsn)
    for number in range(3):
        ops.insert(conn, queue, str(number))
    tick()
    Fails.broken = asyncio.CancelledError("by a task that it has waited for")
    with pytest.raises(RuntimeError, match="cancelled by something inside it"):
        consumer.run_once()
    Fails.broken = None
    assert consumer.run_once()


@pytest.mark.parametrize("kind", [Plain, Remote], ids=lambda kind: kind.__name__)
def test_a_stop_iteration_is_the_failure_of_its_event(
    kind: Any, dsn: str, queue: str, conn: Connection, tick: Tick
) -> None:
    consumer = made(kind, dsn)
    event = Producer(queue).insert_event(conn, "t", "0")
    tick()
    Fails.broken = StopIteration()
    with pytest.raises(RuntimeError, match="StopIteration"):
        consumer.run_once()
    [(_, _, _, failed, error, *_, where)] = conn.execute(NOTED).fetchall()
    assert (failed, error) == (event, "RuntimeError: coroutine raised StopIteration")
    assert "in fails\n    raise type(Fails.broken)" in where
    Fails.broken = None
    assert consumer.run_once()


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_cancellation_that_an_event_raises_is_for_its_policy(
    dsn: str, queue: str, conn: Connection, tick: Tick, concurrency: int
) -> None:
    class Policy(AsyncConsumer):
        consumer = "picky"
        retry_policy = FixedDelay(0, attempts=1)

        async def process_event(self, conn: pgqpy.AsyncConnection, event: pgqpy.Event) -> None:
            if event.data == "1":
                raise asyncio.CancelledError

    consumer = Policy(dsn, queue=queue)
    consumer.concurrency = concurrency
    asyncio.run(consumer.run(until_empty=True))
    for number in range(3):
        ops.insert(conn, queue, str(number))
    tick()
    asyncio.run(consumer.run(until_empty=True))
    assert conn.execute("select ev_data from pgq.dead_letter").fetchall() == [("1",)]


def test_asyncio_with_several_events_at_once_names_the_one_that_raised(
    dsn: str, queue: str, conn: Connection, tick: Tick
) -> None:
    class Several(AsyncConsumer):
        consumer = "picky"
        concurrency = 4

        async def process_event(self, conn: pgqpy.AsyncConnection, event: pgqpy.Event) -> None:
            if event.data == "2":
                fails()
            await asyncio.Event().wait()

    consumer = Several(dsn, queue=queue)
    asyncio.run(consumer.run(until_empty=True))
    events = [Producer(queue).insert_event(conn, "t", str(n)) for n in range(3)]
    tick()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(consumer.run_once())
    assert [row[3] for row in conn.execute(NOTED)] == [events[2]]


def test_a_run_that_ends_with_the_error_leaves_it_too_and_a_new_batch_begins_at_one(
    dsn: str, queue: str, conn: Connection, tick: Tick
) -> None:
    consumer = made(Plain, dsn)
    # What succeeds writes nothing.
    broken, Fails.broken = Fails.broken, None
    ops.insert(conn, queue, "0")
    tick()
    consumer.run(until_empty=True)
    assert ops.value(conn, "select pg_relation_size('pgq.consumer_failure')") == 0
    Fails.broken = broken
    for number in (1, 2):
        ops.insert(conn, queue, str(number))
        tick()
        for attempt in (1, 2):
            with pytest.raises(ZeroDivisionError):
                consumer.run_once()
            assert [row[5] for row in conn.execute(NOTED)] == [attempt]
        Fails.broken = None
        assert consumer.run_once()
        assert conn.execute(NOTED).fetchall() == []
        Fails.broken = broken


def test_a_batch_that_costs_the_connection_is_noted_over_the_next_one(
    dsn: str, queue: str, conn: Connection, connect: Connect, tick: Tick, background: Background
) -> None:
    killer = connect()

    class Killed(Consumer):
        consumer = "picky"
        reconnect_cap = 0.05

        def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
            ops.value(killer, "select pg_terminate_backend(%s, 60000)", conn.info.backend_pid)
            conn.execute("select 1")

    consumer = Killed(dsn, queue=queue)
    consumer.register()
    event = Producer(queue).insert_event(conn, "t", "x")
    tick()
    background(consumer)
    eventually(conn, "select attempts >= 2 from pgq.failing_consumer")
    [row] = conn.execute(NOTED).fetchall()
    assert row[3] == event
    assert "terminat" in row[4]


def test_a_moved_or_unregistered_consumer_is_not_failing(
    dsn: str, queue: str, conn: Connection, tick: Tick
) -> None:
    consumer = made(Plain, dsn)
    ops.insert(conn, queue, "x")
    tick()
    with pytest.raises(ZeroDivisionError):
        consumer.run_once()
    newest = ops.value(conn, "select max(tick_id) from pgq.tick")
    conn.execute("select pgq.register_consumer_at(%s, 'picky', %s)", [queue, newest])
    assert conn.execute(NOTED).fetchall() == []
    consumer.unregister()
    assert ops.value(conn, "select count(*) from pgq.consumer_failure") == 0


def test_only_readers_note_and_only_of_open_batches_and_little(
    conn: Connection, queue: str, connect: Connect, dsn: str
) -> None:
    ops.register(conn, queue, "picky")
    ops.insert(conn, queue, "x")
    ops.tick(conn, queue)
    batch = ops.next_batch(conn, queue, "picky")
    for role in ("pgq_writer", "pgq_reader"):
        conn.execute(f"set role {role}".encode())
        if role == "pgq_writer":
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute("select pgq.note_failure(%s, 'no')", [batch])
        else:
            for number in (batch, batch + 1, -1, None):
                conn.execute("select pgq.note_failure(%s, repeat('x', 1000000), 7)", [number])
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute("delete from pgq.consumer_failure")
    conn.execute("reset role")
    noted = conn.execute("select cf_batch, length(cf_error) from pgq.consumer_failure").fetchall()
    assert noted == [(batch, 10_000)]
    assert [row[7] for row in conn.execute(NOTED)] == [None]
    # A later batch of the same consumer, that the first note is not about.
    conn.execute("select pgq.finish_batch(%s)", [batch])
    conn.execute("select pgq.note_failure(%s, 'late')", [batch])
    assert conn.execute(NOTED).fetchall() == []
