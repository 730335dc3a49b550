"""TrackedConsumer: effects that cannot be rolled back happen once, event by event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

import pgqpy
from pgqpy import AsyncTrackedConsumer, Batch, Event, Producer, SerialConsumer, TrackedConsumer
from pgqpy.embedded import Server
from pgqpy.errors import SchemaMissing, TargetAhead
from pgqpy.retry import FixedDelay
from pgqpy.schema import schema_sql
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_client import Tick
from tests.fixtures.fix_db import Connect, Connection, create_database, drop_database

Send = Callable[[str], None]


@pytest.fixture
def send(conn: Connection, queue: str, tick: Tick) -> Send:
    """``send("abc")``: three events in a batch."""

    def send_now(datas: str) -> None:
        for data in datas:
            Producer(queue).insert_event(conn, "t", data)
        tick()

    return send_now


class Crash(BaseException):
    """The effect of a dying process on an event."""


class Mailer(TrackedConsumer):
    """Sends mails, which cannot be undone; dies after the given events."""

    consumer = "mailer"
    backoff_first = 0.01

    def __init__(self, dsn: str, dies_after: str = "", **options: Any) -> None:
        super().__init__(dsn, **options)
        self.sent: list[str] = []
        self.dies_after = set(dies_after)

    def process_tracked_event(self, target: pgqpy.Connection, event: Event) -> None:
        assert event.data is not None
        self.sent.append(event.data)
        if event.data in self.dies_after:
            self.dies_after.remove(event.data)
            raise Crash


@pytest.fixture(params=["same database", "another"])
def options(request: pytest.FixtureRequest, queue: str) -> dict[str, str]:
    if request.param == "another":
        return {"queue": queue, "target_dsn": request.getfixturevalue("target_dsn")}
    return {"queue": queue}


@pytest.mark.smoke
def test_events_that_are_done_are_not_done_again_after_a_crash(
    dsn: str, options: dict[str, str], send: Send
) -> None:
    mailer = Mailer(dsn, "c", **options)
    mailer.run(until_empty=True)
    send("abcd")
    with pytest.raises(Crash):
        mailer.run_once()
    mailer.run(until_empty=True)
    # Only c had happened without being remembered.
    assert "".join(mailer.sent) == "abccd"
    send("e")
    mailer.run(until_empty=True)
    assert "".join(mailer.sent) == "abccde"


def test_an_event_that_fails_holds_up_no_other_and_is_not_done(
    dsn: str, queue: str, conn: Connection, tick: Tick, send: Send
) -> None:
    class Fails(Mailer):
        retry_policy = FixedDelay(0)

        def process_tracked_event(self, target: pgqpy.Connection, event: Event) -> None:
            super().process_tracked_event(target, event)
            if event.data == "b" and event.retry_count < 2:
                raise ValueError("not now")

    mailer = Fails(dsn, queue=queue)
    mailer.run(until_empty=True)
    send("abc")
    for _ in range(3):
        mailer.run(until_empty=True)
        ops.value(conn, "select pgq.maint_retry_events()")
        tick()
    assert "".join(mailer.sent) == "abcbb"


def test_an_event_that_was_put_back_before_a_crash_is_not_lost(
    dsn: str, queue: str, conn: Connection, tick: Tick, send: Send
) -> None:
    """The retry of an event becomes known when the batch is finished, and not before."""

    class PutsBack(Mailer):
        def process_tracked_event(self, target: pgqpy.Connection, event: Event) -> None:
            if event.data == "a" and not event.retry_count:
                event.retry(0)
                return
            super().process_tracked_event(target, event)

    mailer = PutsBack(dsn, "b", queue=queue)
    mailer.run(until_empty=True)
    send("abc")
    with pytest.raises(Crash):
        mailer.run_once()
    mailer.run(until_empty=True)
    ops.value(conn, "select pgq.maint_retry_events()")
    tick()
    mailer.run(until_empty=True)
    assert "".join(mailer.sent) == "bbca"


def test_both_an_event_and_its_retry_are_processed_if_one_batch_has_them(
    dsn: str, queue: str, conn: Connection, tick: Tick, send: Send
) -> None:
    """A consumer that was moved back has such batches. Both have the same id."""
    mailer = Mailer(dsn, queue=queue)
    mailer.run(until_empty=True)
    start = ops.value(conn, "select last_tick from pgq.get_consumer_info()")
    send("a")
    batch = ops.next_batch(conn, queue, "mailer")
    ops.value(conn, "select pgq.event_retry(%s, 1, 0)", batch)
    ops.finish(conn, batch)
    ops.value(conn, "select pgq.maint_retry_events()")
    tick()
    conn.execute("select pgq.register_consumer_at(%s, 'mailer', %s)", [queue, start])
    mailer.batch_size = 1_000_000
    assert mailer.run_once()
    assert mailer.sent == ["a", "a"]


def test_stop_ends_after_the_event_at_hand_and_the_rest_comes_later(
    dsn: str, queue: str, send: Send
) -> None:
    class Stops(Mailer):
        def process_tracked_event(self, target: pgqpy.Connection, event: Event) -> None:
            super().process_tracked_event(target, event)
            if event.data == "b":
                self.stop()

    mailer = Stops(dsn, queue=queue)
    mailer.run(until_empty=True)
    send("abcd")
    mailer.run()
    assert mailer.sent == ["a", "b"]
    mailer.run(until_empty=True)
    assert mailer.sent == ["a", "b", "c", "d"]


def test_what_is_written_in_the_target_commits_with_the_event(
    dsn: str, target_dsn: str, target: Connection, queue: str, send: Send
) -> None:
    target.execute("create table note (data text)")

    class Notes(Mailer):
        def process_tracked_event(self, target: pgqpy.Connection, event: Event) -> None:
            target.execute("insert into note values (%s)", [event.data])
            super().process_tracked_event(target, event)

    mailer = Notes(dsn, "b", queue=queue, target_dsn=target_dsn)
    mailer.run(until_empty=True)
    send("abc")
    with pytest.raises(Crash):
        mailer.run_once()
    assert target.execute("select data from note").fetchall() == [("a",)]
    mailer.run(until_empty=True)
    assert target.execute("select data from note").fetchall() == [("a",), ("b",), ("c",)]


def test_large_batches_are_streamed(
    dsn: str, queue: str, conn: Connection, tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqpy.consumer.tracked._READ_AHEAD", 10)
    mailer = Mailer(dsn, queue=queue)
    mailer.run(until_empty=True)
    with conn.transaction():
        Producer(queue).insert_events(conn, [("t", str(number)) for number in range(300)])
    tick()
    mailer.run(until_empty=True)
    assert mailer.sent == [str(number) for number in range(300)]


def test_the_asyncio_twin_does_the_same(dsn: str, queue: str, send: Send) -> None:
    sent = []

    class Async(AsyncTrackedConsumer):
        consumer = "mailer"

        async def process_tracked_event(self, target: pgqpy.AsyncConnection, event: Event) -> None:
            sent.append(event.data)

    async def run() -> None:
        consumer = Async(dsn, queue=queue)
        await consumer.run(until_empty=True)
        await asyncio.to_thread(send, "ab")
        await consumer.run(until_empty=True)

    asyncio.run(run())
    assert sent == ["a", "b"]


def test_a_serial_consumer_leaves_nothing_for_later(
    dsn: str, target_dsn: str, target: Connection, queue: str, send: Send
) -> None:
    target.execute("create table note (data text)")

    class Serial(SerialConsumer):
        consumer = "serial"
        puts_back = True

        def process_remote_batch(
            self, conn: pgqpy.Connection, batch: Batch, target: pgqpy.Connection
        ) -> None:
            for event in batch:
                target.execute("insert into note values (%s)", [event.data])
                if self.puts_back:
                    event.retry(60)

    serial = Serial(dsn, queue=queue, target_dsn=target_dsn)
    serial.run(until_empty=True)
    send("ab")
    with pytest.raises(pgqpy.PgqError, match="keeps the order"):
        serial.run_once()
    serial.puts_back = False
    serial.run(until_empty=True)
    assert target.execute("select data from note").fetchall() == [("a",), ("b",)]


@pytest.fixture
def restore(server: Server, dsn: str, connect: Connect) -> Iterator[Callable[[], str]]:
    """``restore()``: the queue's database as files have it now, sequences and all; its DSN."""
    copies = []

    def copy() -> str:
        with connect(server.dsn) as admin:
            name = conninfo_to_dict(dsn)["dbname"]
            kill = (
                "select pg_terminate_backend(pid, 60000) from pg_stat_activity where datname = %s"
            )
            admin.execute(kill, [name])
        copies.append(create_database(server, str(name)))
        return server.dsn_of(copies[-1])

    yield copy
    for name in copies:
        drop_database(server, name)


def send_to(conn: Connection, queue: str, datas: str) -> None:
    for data in datas:
        Producer(queue).insert_event(conn, "t", data)
    ops.tick(conn, queue)


@pytest.mark.parametrize("killed", [False, True], ids=["finished", "killed"])
def test_new_events_with_the_ids_of_old_ones_are_done_after_the_source_was_restored(
    dsn: str,
    target_dsn: str,
    queue: str,
    connect: Connect,
    restore: Callable[[], str],
    killed: bool,
) -> None:
    Mailer(dsn, queue=queue, target_dsn=target_dsn).run(until_empty=True)
    restored = restore()
    send_to(connect(), queue, "abc")
    mailer = Mailer(dsn, "c" if killed else "", queue=queue, target_dsn=target_dsn)
    if killed:
        with pytest.raises(Crash):
            mailer.run_once()
    else:
        mailer.run(until_empty=True)
    assert mailer.sent == ["a", "b", "c"]

    send_to(connect(restored), queue, "xyz")
    again = Mailer(restored, "y", queue=queue, target_dsn=target_dsn)
    with pytest.raises(Crash):
        again.run_once()
    again.run(until_empty=True)
    assert "".join(again.sent) == "xyyz"


def test_events_that_may_have_been_done_before_the_source_was_restored_are_not_done_again_unasked(
    dsn: str,
    target_dsn: str,
    target: Connection,
    queue: str,
    connect: Connect,
    restore: Callable[[], str],
) -> None:
    mailer = Mailer(dsn, queue=queue, target_dsn=target_dsn)
    mailer.run(until_empty=True)
    send_to(connect(), queue, "a")
    restored = restore()
    mailer.run(until_empty=True)
    send_to(connect(), queue, "b")
    mailer.run(until_empty=True)

    again = Mailer(restored, queue=queue, target_dsn=target_dsn)
    again.retry_policy = FixedDelay(0)
    for _ in range(2):
        with pytest.raises(TargetAhead, match="restored from an older backup") as refused:
            again.run(until_empty=True)
    assert again.sent == []
    # As the hint says.
    forget = f"select pgq_ext.forget_consumer('mailer', '{queue}')"
    assert forget in str(refused.value)
    target.execute(forget.encode())
    again.run(until_empty=True)
    assert again.sent == ["a"]


def test_events_that_are_done_are_known_although_the_open_batch_was_dropped(
    dsn: str, options: dict[str, str], conn: Connection, queue: str, send: Send
) -> None:
    """True for a larger and a smaller next batch."""
    mailer = Mailer(dsn, "cg", **options)
    mailer.batch_size = 1_000_000
    mailer.run(until_empty=True)
    start = ops.value(conn, "select last_tick from pgq.get_consumer_info()")
    send("abcd")
    with pytest.raises(Crash):
        mailer.run_once()
    send("ef")
    send("gh")
    conn.execute("select pgq.register_consumer_at(%s, 'mailer', %s)", [queue, start])
    with pytest.raises(Crash):
        mailer.run_once()
    assert "".join(mailer.sent) == "abc" + "cdefg"
    conn.execute("select pgq.register_consumer_at(%s, 'mailer', %s)", [queue, start])
    mailer.batch_size = 1
    mailer.run(until_empty=True)
    assert "".join(mailer.sent) == "abc" + "cdefg" + "gh"


def test_a_consumer_that_was_moved_back_repeats_nothing_unasked(
    dsn: str,
    target_dsn: str,
    queue: str,
    conn: Connection,
    send: Send,
    cli: Cli,
) -> None:
    mailer = Mailer(dsn, queue=queue, target_dsn=target_dsn)
    mailer.run(until_empty=True)
    start = ops.value(conn, "select last_tick from pgq.get_consumer_info()")
    send("a")
    mailer.run(until_empty=True)
    send("b")
    mailer.run(until_empty=True)
    conn.execute("select pgq.register_consumer_at(%s, 'mailer', %s)", [queue, start])
    with pytest.raises(TargetAhead, match=f"pgqpy consumer rewind {queue} mailer"):
        mailer.run(until_empty=True)
    cli.ok("consumer", "rewind", queue, "mailer", "--target-dsn", target_dsn)
    send("c")
    mailer.run(until_empty=True)
    assert mailer.sent == ["a", "b", "c"]


def test_another_databases_consumer_of_the_same_name_is_noticed(
    dsn: str, target_dsn: str, queue: str, send: Send, empty_dsn: str, connect: Connect
) -> None:
    with connect(empty_dsn) as other:
        other.execute(schema_sql().encode())
        other.execute("select pgq.create_queue(%s)", [queue])
    first = Mailer(dsn, queue=queue, target_dsn=target_dsn)
    second = Mailer(empty_dsn, queue=queue, target_dsn=target_dsn)
    for each in (first, second):
        each.run(until_empty=True)
    send("a")
    first.run(until_empty=True)
    send_to(connect(empty_dsn), queue, "x")
    with pytest.raises(TargetAhead, match="another database's queue of this name"):
        second.run(until_empty=True)
    assert (first.sent, second.sent) == (["a"], [])


def test_what_is_not_an_events_fault_is_not_for_the_retry_policy(
    dsn: str, target_dsn: str, target: Connection, queue: str, conn: Connection, send: Send
) -> None:
    class Careful(Mailer):
        retry_policy = FixedDelay(0)

    mailer = Careful(dsn, queue=queue, target_dsn=target_dsn)
    mailer.run(until_empty=True)
    send("a")
    target.execute("drop function pgq_ext.begin_event")
    with pytest.raises(SchemaMissing):
        mailer.run_once()
    assert ops.value(conn, "select current_batch from pgq.get_consumer_info()") is not None
    assert ops.value(conn, "select count(*) from pgq.retry_queue") == 0


def test_a_class_must_say_what_to_do(dsn: str, queue: str) -> None:
    class Nothing(TrackedConsumer):
        consumer = "nothing"

    with pytest.raises(TypeError, match="process_tracked_event"):
        Nothing(dsn, queue=queue).run()
    with pytest.raises(TypeError, match="target_dsn"):
        SerialConsumer(dsn, queue=queue, consumer="nothing", target_dsn="")
