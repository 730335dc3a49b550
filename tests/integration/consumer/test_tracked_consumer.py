"""TrackedConsumer: effects that cannot be rolled back happen once, event by event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from psycopg.conninfo import conninfo_to_dict

import pgqpy
from pgqpy import (
    Admin,
    AsyncTrackedConsumer,
    Batch,
    Event,
    Producer,
    SerialConsumer,
    TrackedConsumer,
)
from pgqpy.embedded import Server
from pgqpy.errors import SchemaMissing, TargetAhead
from pgqpy.retry import FixedDelay
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_client import Make, Send, Tick
from tests.fixtures.fix_db import Connect, Connection, create_database, drop_database

Tracked = TypeVar("Tracked", bound=TrackedConsumer)


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


def started(make: Make, kind: type[Tracked], **options: Any) -> Tracked:
    """A consumer whose position the target knows."""
    consumer = make(kind, **options)
    consumer.run(until_empty=True)
    return consumer


@pytest.fixture(params=["same database", "another"])
def options(request: pytest.FixtureRequest) -> dict[str, str]:
    another = request.param == "another"
    return {"target_dsn": request.getfixturevalue("target_dsn")} if another else {}


def position(conn: Connection) -> int:
    number: int = ops.value(conn, "select last_tick from pgq.get_consumer_info()")
    return number


@pytest.mark.smoke
def test_events_that_are_done_are_not_done_again_after_a_crash(
    make: Make, options: dict[str, str], send: Send
) -> None:
    mailer = started(make, Mailer, dies_after="c", **options)
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
    make: Make, conn: Connection, tick: Tick, send: Send
) -> None:
    class Fails(Mailer):
        retry_policy = FixedDelay(0)

        def process_tracked_event(self, target: pgqpy.Connection, event: Event) -> None:
            super().process_tracked_event(target, event)
            if event.data == "b" and event.retry_count < 2:
                raise ValueError("not now")

    mailer = started(make, Fails)
    send("abc")
    for _ in range(3):
        mailer.run(until_empty=True)
        ops.value(conn, "select pgq.maint_retry_events()")
        tick()
    assert "".join(mailer.sent) == "abcbb"


def test_an_event_that_was_put_back_before_a_crash_is_not_lost(
    make: Make, conn: Connection, tick: Tick, send: Send
) -> None:
    """The retry of an event becomes known when the batch is finished, and not before."""

    class PutsBack(Mailer):
        def process_tracked_event(self, target: pgqpy.Connection, event: Event) -> None:
            if event.data == "a" and not event.retry_count:
                event.retry(0)
                return
            super().process_tracked_event(target, event)

    mailer = started(make, PutsBack, dies_after="b")
    send("abc")
    with pytest.raises(Crash):
        mailer.run_once()
    mailer.run(until_empty=True)
    ops.value(conn, "select pgq.maint_retry_events()")
    tick()
    mailer.run(until_empty=True)
    assert "".join(mailer.sent) == "bbca"


def test_both_an_event_and_its_retry_are_processed_if_one_batch_has_them(
    make: Make, queue: str, conn: Connection, tick: Tick, send: Send
) -> None:
    """A consumer that was moved back has such batches. Both have the same id."""
    mailer = started(make, Mailer)
    start = position(conn)
    send("a")
    batch = ops.next_batch(conn, queue, "mailer")
    ops.value(conn, "select pgq.event_retry(%s, 1, 0)", batch)
    ops.finish(conn, batch)
    ops.value(conn, "select pgq.maint_retry_events()")
    tick()
    Admin(conn).register_consumer_at(queue, "mailer", start)
    mailer.batch_size = 1_000_000
    assert mailer.run_once()
    assert mailer.sent == ["a", "a"]


def test_stop_ends_after_the_event_at_hand_and_the_rest_comes_later(make: Make, send: Send) -> None:
    class Stops(Mailer):
        def process_tracked_event(self, target: pgqpy.Connection, event: Event) -> None:
            super().process_tracked_event(target, event)
            if event.data == "b":
                self.stop()

    mailer = started(make, Stops)
    send("abcd")
    mailer.run()
    assert mailer.sent == ["a", "b"]
    mailer.run(until_empty=True)
    assert mailer.sent == ["a", "b", "c", "d"]


def test_what_is_written_in_the_target_commits_with_the_event(
    make: Make, target_dsn: str, target: Connection, send: Send
) -> None:
    target.execute("create table note (data text)")

    class Notes(Mailer):
        def process_tracked_event(self, target: pgqpy.Connection, event: Event) -> None:
            target.execute("insert into note values (%s)", [event.data])
            super().process_tracked_event(target, event)

    mailer = started(make, Notes, dies_after="b", target_dsn=target_dsn)
    send("abc")
    with pytest.raises(Crash):
        mailer.run_once()
    assert target.execute("select data from note").fetchall() == [("a",)]
    mailer.run(until_empty=True)
    assert target.execute("select data from note").fetchall() == [("a",), ("b",), ("c",)]


def test_large_batches_are_streamed(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqpy.consumer.tracked._READ_AHEAD", 10)
    mailer = started(make, Mailer)
    send(map(str, range(300)))
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
    make: Make, target_dsn: str, target: Connection, send: Send
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

    serial = make(Serial, target_dsn=target_dsn)
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
    make: Make,
    target_dsn: str,
    queue: str,
    connect: Connect,
    restore: Callable[[], str],
    killed: bool,
) -> None:
    mailer = started(make, Mailer, dies_after="c" if killed else "", target_dsn=target_dsn)
    restored = restore()
    send_to(connect(), queue, "abc")
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
    make: Make,
    target_dsn: str,
    target: Connection,
    queue: str,
    connect: Connect,
    restore: Callable[[], str],
) -> None:
    mailer = started(make, Mailer, target_dsn=target_dsn)
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
    make: Make, target_dsn: str, conn: Connection, queue: str, send: Send
) -> None:
    """True for a larger and a smaller next batch."""
    mailer = started(make, Mailer, dies_after="cg", target_dsn=target_dsn)
    mailer.batch_size = 1_000_000
    start = position(conn)
    send("abcd")
    with pytest.raises(Crash):
        mailer.run_once()
    send("ef")
    send("gh")
    Admin(conn).register_consumer_at(queue, "mailer", start)
    with pytest.raises(Crash):
        mailer.run_once()
    assert "".join(mailer.sent) == "abc" + "cdefg"
    Admin(conn).register_consumer_at(queue, "mailer", start)
    mailer.batch_size = 1
    mailer.run(until_empty=True)
    assert "".join(mailer.sent) == "abc" + "cdefg" + "gh"


def test_a_consumer_that_was_moved_back_repeats_nothing_unasked(
    make: Make, target_dsn: str, conn: Connection, queue: str, send: Send, cli: Cli
) -> None:
    mailer = started(make, Mailer, target_dsn=target_dsn)
    start = position(conn)
    for data in "ab":
        send(data)
        mailer.run(until_empty=True)
    Admin(conn).register_consumer_at(queue, "mailer", start)
    with pytest.raises(TargetAhead, match=f"pgqpy consumer rewind {queue} mailer"):
        mailer.run(until_empty=True)
    cli.ok("consumer", "rewind", queue, "mailer", "--target-dsn", target_dsn)
    send("c")
    mailer.run(until_empty=True)
    assert mailer.sent == ["a", "b", "c"]


def test_another_databases_consumer_of_the_same_name_is_noticed(
    make: Make, target_dsn: str, queue: str, send: Send, other_dsn: str, connect: Connect
) -> None:
    first = started(make, Mailer, target_dsn=target_dsn)
    second = Mailer(other_dsn, queue=queue, target_dsn=target_dsn)
    second.run(until_empty=True)
    send("a")
    first.run(until_empty=True)
    send_to(connect(other_dsn), queue, "x")
    with pytest.raises(TargetAhead, match="another database's queue of this name"):
        second.run(until_empty=True)
    assert (first.sent, second.sent) == (["a"], [])


def test_what_is_not_an_events_fault_is_not_for_the_retry_policy(
    make: Make, target_dsn: str, target: Connection, conn: Connection, send: Send
) -> None:
    class Careful(Mailer):
        retry_policy = FixedDelay(0)

    mailer = started(make, Careful, target_dsn=target_dsn)
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
