"""One bad event in a batch costs that event, and the effects of the others happen exactly once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

import pgqpy
from pgqpy import (
    Admin,
    Batch,
    BatchStats,
    Consumer,
    DeadLetter,
    Event,
    ExponentialBackoff,
    FixedDelay,
    Producer,
    Retry,
    RetryPolicy,
)
from pgqpy.embedded import Server
from tests.fixtures.fix_client import Tick
from tests.fixtures.fix_db import Connect, Connection, drop_database
from tests.fixtures.fix_ticker import with_schema

pytestmark = pytest.mark.any_pg

Put = Callable[..., None]


class Picky(Consumer):
    """Writes each event's data down, and then fails for those that begin with "bad"."""

    consumer = "picky"
    retry_policy: RetryPolicy | None = FixedDelay(0, attempts=1)
    listen = False
    queue = "test_queue"

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.calls: list[str] = []
        self.stats: list[BatchStats] = []
        self.failed: list[tuple[str | None, Exception, float | timedelta | None]] = []

    def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
        assert event.data is not None
        self.calls.append(event.data)
        conn.execute("insert into seen (data) values (%s)", [event.data])
        if event.data.startswith("bad"):
            self.fail(conn, event)

    def fail(self, conn: pgqpy.Connection, event: Event) -> None:
        raise ValueError(f"no good: {event.data}")

    def on_batch(self, stats: BatchStats) -> None:
        self.stats.append(stats)

    def on_event_failed(self, event: Event, error: Exception, delay: timedelta | None) -> None:
        self.failed.append((event.data, error, delay))


@pytest.fixture(autouse=True)
def seen(conn: Connection, queue: str) -> None:
    conn.execute("create table seen (nr serial, data text not null)")
    Admin(conn).register_consumer(queue, "picky")


@pytest.fixture
def put(conn: Connection, queue: str, tick: Tick) -> Put:
    """``put("a", "bad")``: events of one transaction, which become a batch."""

    def put_now(*data: str) -> None:
        Producer(queue).insert_events(conn, [("t", each) for each in data])
        tick()

    return put_now


def written(conn: Connection) -> list[str]:
    """The written effects, in order."""
    return [data for (data,) in conn.execute("select data from seen order by nr")]


def dead(conn: Connection) -> dict[str, str]:
    """Data and reason of each dead letter, in the order in which they were given up."""
    letters = conn.execute("select ev_data, dl_reason from pgq.dead_letter order by dl_id")
    return dict(letters.fetchall())


def test_one_bad_event_is_a_dead_letter(dsn: str, conn: Connection, put: Put) -> None:
    data = [f"good {n}" for n in range(600)]
    data.insert(400, "bad one")
    put(*data)
    consumer = Picky(dsn)
    assert consumer.run_once()
    data.remove("bad one")
    assert written(conn) == data
    assert dead(conn) == {"bad one": "ValueError: no good: bad one"}
    (stats,) = consumer.stats
    assert (stats.events, stats.retried, stats.dead_letters) == (601, 0, 1)
    ((failed, error, delay),) = consumer.failed
    assert (failed, type(error), delay) == ("bad one", ValueError, None)
    assert not consumer.run_once()


@pytest.mark.parametrize("bad_of_ten", [1, 5, 10])
def test_many_bad_events_cost_no_more_than_a_few_runs_of_each(
    dsn: str, conn: Connection, put: Put, bad_of_ten: int
) -> None:
    data = [f"{'bad' if n * 7 % 10 < bad_of_ten else 'good'} {n}" for n in range(400)]
    put(*data)
    consumer = Picky(dsn)
    consumer.run_once()
    assert written(conn) == [each for each in data if each.startswith("good")]
    assert list(dead(conn)) == [each for each in data if each.startswith("bad")]
    assert len(consumer.calls) <= 3 * len(data)


def test_without_a_bad_event_there_is_no_savepoint(dsn: str, conn: Connection, put: Put) -> None:
    """Each event's transaction id is the batch's own."""

    class Plain(Picky):
        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            conn.execute("insert into seen (data) select pg_current_xact_id()")

    put("a", "b", "c")
    assert Plain(dsn).run_once()
    rows = conn.execute("select data, xmin::text from seen").fetchall()
    assert len(rows) == 3
    assert {own for _, own in rows} == {data for data, _ in rows}
    assert len({data for data, _ in rows}) == 1


def test_without_a_policy_the_batch_comes_again(dsn: str, conn: Connection, put: Put) -> None:
    class Strict(Picky):
        retry_policy = None

    put("a", "bad", "b")
    consumer = Strict(dsn)
    for _ in range(2):
        with pytest.raises(ValueError, match="no good"):
            consumer.run_once()
    assert consumer.calls == ["a", "bad"] * 2
    assert written(conn) == []
    assert dead(conn) == {}


class Deliberate(Picky):
    retry_policy = None

    def fail(self, conn: pgqpy.Connection, event: Event) -> None:
        if event.data == "bad later" and event.retry == 0:
            raise Retry(delay=0)
        if event.data == "bad for good":
            try:
                raise ZeroDivisionError("cause")
            except ZeroDivisionError as error:
                raise DeadLetter("cannot be divided") from error


def again(conn: Connection, put: Put) -> None:
    """What was put back comes in the next batch."""
    Admin(conn).maint_retry_events()
    put()


def test_an_event_is_put_back_or_given_up_on_purpose_also_without_a_policy(
    dsn: str, conn: Connection, put: Put
) -> None:
    put("a", "bad later", "bad for good", "b")
    consumer = Deliberate(dsn)
    consumer.run_once()
    assert written(conn) == ["a", "b"]
    assert dead(conn) == {"bad for good": "cannot be divided"}
    (traceback,) = conn.execute("select dl_traceback from pgq.dead_letter").fetchone() or ()
    assert "ZeroDivisionError: cause" in traceback
    assert [(data, delay) for data, _, delay in consumer.failed] == [
        ("bad later", timedelta()),
        ("bad for good", None),
    ]
    again(conn, put)
    consumer.run_once()
    assert written(conn) == ["a", "b", "bad later"]


def test_process_batch_gives_events_up(dsn: str, conn: Connection, put: Put) -> None:
    class Whole(Picky):
        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            for event in batch:
                conn.execute("insert into seen (data) values (%s)", [event.data])
                if event.data == "bad":
                    event.retry(60)
                    event.dead_letter("looked at by hand")

    put("a", "bad")
    consumer = Whole(dsn)
    consumer.run_once()
    assert written(conn) == ["a", "bad"]
    assert dead(conn) == {"bad": "looked at by hand"}
    assert (consumer.stats[0].retried, consumer.stats[0].dead_letters) == (0, 1)


def test_writes_around_the_events_are_made_once(dsn: str, conn: Connection, put: Put) -> None:
    class Around(Picky):
        def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
            conn.execute("insert into seen (data) values ('begin')")
            super().process_batch(conn, batch)
            conn.execute("insert into seen (data) values ('end')")

    put("a", "bad", "b")
    Around(dsn).run_once()
    assert written(conn) == ["begin", "a", "b", "end"]


def test_a_bad_event_that_fails_before_anything_is_written_makes_no_event_run_twice(
    dsn: str, conn: Connection, put: Put
) -> None:
    class Elsewhere(Picky):
        """Its effects are not in this database."""

        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            assert event.data is not None
            self.calls.append(event.data)
            if event.data.startswith("bad"):
                raise ValueError

    data = ["a", "bad 1", "b", "bad 2", "c"]
    put(*data)
    consumer = Elsewhere(dsn)
    consumer.run_once()
    assert consumer.calls == data
    assert dead(conn) == {"bad 1": "ValueError", "bad 2": "ValueError"}


class Careless(Picky):
    def fail(self, conn: pgqpy.Connection, event: Event) -> None:
        with suppress(psycopg.Error):
            conn.execute("select 1 / 0")


def test_a_failed_statement_that_was_ignored_is_the_fault_of_its_event(
    dsn: str, conn: Connection, put: Put
) -> None:
    for data in (["a", "b", "bad", "c", "d"], ["e", "bad"]):
        conn.execute("truncate seen; delete from pgq.dead_letter")
        put(*data)
        Careless(dsn).run_once()
        assert written(conn) == [each for each in data if each != "bad"]
        ((bad, reason),) = dead(conn).items()
        assert bad == "bad"
        assert "a statement failed" in reason


@pytest.mark.parametrize("kind", [Consumer, pgqpy.TrackedConsumer])
@pytest.mark.parametrize("outcome", [Retry(60), DeadLetter("so")])
def test_an_outcome_that_is_returned_is_an_error(
    dsn: str, put: Put, kind: type[Consumer], outcome: Exception
) -> None:
    """Workers of tasks take it; for a consumer the event would be done."""
    consumer = kind(dsn, queue="test_queue", consumer="picky", handler=lambda *_: outcome)
    put("a")
    for _ in range(2):
        with pytest.raises(TypeError, match=f"a {type(outcome).__name__} was returned; in a cons"):
            consumer.run_once()


@pytest.mark.parametrize("bad", [0, 40, 99])
def test_finding_the_handler_that_ignored_a_failed_statement_costs_a_few_runs_of_each(
    dsn: str, conn: Connection, put: Put, bad: int
) -> None:
    """No handler raised, so halves are tried."""

    class Counting(Careless):
        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            if conn.info.transaction_status == TransactionStatus.INERROR:
                self.calls.append(event.data or "")
            else:
                super().process_event(conn, event)

    data = [f"{'bad' if n == bad else 'good'} {n}" for n in range(100)]
    put(*data)
    consumer = Counting(dsn)
    consumer.run_once()
    assert written(conn) == [each for each in data if each.startswith("good")]
    assert list(dead(conn)) == [f"bad {bad}"]
    assert len(consumer.calls) <= 5 * len(data)


NO_EVENTS_FAULT = [
    psycopg.errors.SerializationFailure("concurrent update"),
    psycopg.errors.DeadlockDetected("deadlock"),
    psycopg.errors.LockNotAvailable("lock timeout"),
    psycopg.errors.DiskFull("no space"),
    psycopg.OperationalError("another database is away"),
    pgqpy.errors.ConnectionFailed("the same"),
    ConnectionError("told by the class"),
]


def test_what_is_no_events_fault_makes_the_batch_come_again(
    dsn: str, conn: Connection, put: Put, subtests: pytest.Subtests
) -> None:
    class Once(Picky):
        outages = (ConnectionError,)
        error: Exception | None = None

        def fail(self, conn: pgqpy.Connection, event: Event) -> None:
            error, self.error = self.error, None
            if error is not None:
                raise error

    for error in NO_EVENTS_FAULT:
        with subtests.test(type(error).__name__):
            conn.execute("truncate seen")
            put("a", "bad", "b")
            consumer = Once(dsn)
            consumer.error = error
            with pytest.raises(type(error)):
                consumer.run_once()
            assert written(conn) == []
            assert consumer.run_once()
            assert written(conn) == ["a", "bad", "b"]
            assert dead(conn) == {}
            assert consumer.failed == []


def test_a_serialization_failure_in_the_second_run_makes_the_batch_come_again(
    dsn: str, conn: Connection, connect: Connect, put: Put
) -> None:
    class Updating(Picky):
        isolation_level = pgqpy.IsolationLevel.REPEATABLE_READ
        overtaken = False

        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            super().process_event(conn, event)
            if len(self.calls) > 3 and not self.overtaken:
                self.overtaken = True
                other.execute("update counter set n = n + 1")
            conn.execute("update counter set n = n + 1")

    other = connect()
    conn.execute("create table counter as select 0 as n")
    put("a", "b", "bad", "c")
    consumer = Updating(dsn)
    with pytest.raises(psycopg.errors.SerializationFailure):
        consumer.run_once()
    assert consumer.overtaken
    assert written(conn) == []
    consumer.run_once()
    assert written(conn) == ["a", "b", "c"]
    assert conn.execute("select n from counter").fetchone() == (4,)


def test_losing_the_session_is_not_the_events_fault(dsn: str, conn: Connection, put: Put) -> None:
    class Cut(Picky):
        cut = False

        def fail(self, conn: pgqpy.Connection, event: Event) -> None:
            if not self.cut:
                self.cut = True
                outside.execute("select pg_terminate_backend(%s, 10000)", [conn.info.backend_pid])
                try:
                    conn.execute("select 1")
                except psycopg.Error:
                    raise LookupError("an error that does not say what has happened") from None

    outside = conn
    put("a", "bad", "b")
    consumer = Cut(dsn)
    with pytest.raises(LookupError):
        consumer.run_once()
    consumer.run_once()
    assert written(conn) == ["a", "bad", "b"]
    assert dead(conn) == {}


def test_retries_noted_before_a_second_run_are_gone(dsn: str, conn: Connection, put: Put) -> None:
    class Noting(Picky):
        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            if self.calls.count(event.data or "") == 0:
                event.retry(0)
            super().process_event(conn, event)

    put(*(f"good {n}" for n in range(600)), "bad")
    consumer = Noting(dsn)
    consumer.run_once()
    (stats,) = consumer.stats
    assert (stats.retried, stats.dead_letters) == (0, 1)
    assert Admin(conn).maint_retry_events() == 0


def test_the_last_attempt_makes_a_dead_letter(dsn: str, conn: Connection, put: Put) -> None:
    asked: list[tuple[int, str]] = []

    class Trying(Picky):
        def retry_policy(self, attempt: int, error: Exception) -> float | None:
            asked.append((attempt, str(error)))
            return 0 if attempt < 3 else None

    put("a", "bad")
    consumer = Trying(dsn)
    for _ in range(4):
        consumer.run(until_empty=True)
        again(conn, put)
    assert asked == [(attempt, "no good: bad") for attempt in (1, 2, 3)]
    assert [delay for _, _, delay in consumer.failed] == [timedelta(), timedelta(), None]
    assert conn.execute("select dl_attempts, ev_retry from pgq.dead_letter").fetchall() == [(3, 2)]


def test_a_dead_letter_has_the_whole_event_and_says_why_where_and_when(
    dsn: str, conn: Connection, put: Put
) -> None:
    event = ("a type", "bad data", "1", "2", None, "4")
    Producer("test_queue").insert_events(conn, [event])
    put()
    consumer = Picky(dsn)
    consumer.run_once()
    (row,) = conn.execute(
        "select ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4, dl_queue,"
        " dl_consumer, dl_batch, dl_attempts, dl_reason, dl_traceback,"
        " now() - dl_time < '1 hour', ev_time <= dl_time, ev_id, ev_txid"
        " from pgq.dead_letter"
    )
    assert row[:6] == event
    assert row[6:11] == (
        "test_queue",
        "picky",
        consumer.stats[0].batch_id,
        1,
        "ValueError: no good: bad data",
    )
    assert 'in fail\n    raise ValueError(f"no good: {event.data}")' in row[11]
    assert row[12:14] == (True, True)
    found = conn.execute("select ev_id, ev_txid from pgq.event_template").fetchall()
    assert row[14:] in found


RUDE = "NUL \0, half a pair \ud800, an arrow → and " + "x" * 100_000


@pytest.fixture
def unlogged(caplog: pytest.LogCaptureFixture) -> None:
    """Captured output goes between processes in UTF-8, when tests run in parallel."""
    caplog.set_level(logging.CRITICAL, "pgqpy")


class Rude(Picky):
    def fail(self, conn: pgqpy.Connection, event: Event) -> None:
        raise ValueError(RUDE)


@pytest.mark.usefixtures("unlogged")
def test_any_error_text_can_be_stored(dsn: str, conn: Connection, put: Put) -> None:
    put("bad")
    Rude(dsn).run_once()
    (reason,) = dead(conn).values()
    assert reason.startswith(r"ValueError: NUL \x00, half a pair \ud800, an arrow → and xxx")
    assert len(reason) < 3000
    [(length,)] = conn.execute("select length(dl_traceback) from pgq.dead_letter").fetchall()
    assert length < 10000


@pytest.mark.slow
@pytest.mark.usefixtures("unlogged")
def test_any_error_text_fits_another_encoding(server: Server, connect: Connect) -> None:
    with connect(server.dsn) as conn:
        conn.execute("drop database if exists test_latin")
        conn.execute("create database test_latin template template0 encoding 'LATIN1' locale 'C'")
    try:
        with connect(with_schema(server.dsn_of("test_latin"))) as conn:
            conn.execute("create table seen (nr serial, data text not null)")
            admin = Admin(conn)
            admin.create_queue("test_queue")
            admin.register_consumer("test_queue", "picky")
            Producer("test_queue").insert_event(conn, "t", "bad: é")
            admin.force_tick("test_queue")
            admin.ticker("test_queue")
            Rude(conn.info.dsn).run_once()
            ((data, reason),) = dead(conn).items()
        assert data == "bad: é"
        assert reason.startswith(r"ValueError: NUL \x00, half a pair \ud800, an arrow \u2192 and x")
    finally:
        drop_database(server, "test_latin")


def test_hooks_and_logs_tell_of_each_failure(
    dsn: str, conn: Connection, put: Put, caplog: pytest.LogCaptureFixture
) -> None:
    class Twice(Picky):
        retry_policy = ExponentialBackoff(first=0, attempts=2)

    put("a", "bad")
    consumer = Twice(dsn)
    consumer.run_once()
    again(conn, put)
    consumer.run_once()
    warning, error = (r for r in caplog.records if r.levelno >= logging.WARNING)
    assert (warning.levelno, error.levelno) == (logging.WARNING, logging.ERROR)
    fields: list[dict[str, Any]] = [warning.__dict__, error.__dict__]
    assert [(f["queue"], f["consumer"], f["attempt"]) for f in fields] == [
        ("test_queue", "picky", 1),
        ("test_queue", "picky", 2),
    ]
    assert fields[0]["event_id"] == fields[1]["event_id"]
    assert error.exc_info
    assert isinstance(error.exc_info[1], ValueError)


def test_on_event_failed_can_have_the_batch_again(dsn: str, conn: Connection, put: Put) -> None:
    class Alarmed(Picky):
        def on_event_failed(self, event: Event, error: Exception, delay: timedelta | None) -> None:
            raise error

    put("a", "bad")
    with pytest.raises(ValueError, match="no good"):
        Alarmed(dsn).run_once()
    assert written(conn) == []
    assert dead(conn) == {}


def test_a_policy_that_makes_no_sense_loses_nothing(dsn: str, conn: Connection, put: Put) -> None:
    class Unbound(Picky):
        retry_policy = lambda attempt, error: 1  # type: ignore[assignment] # noqa: E731

    class Negative(Picky):
        retry_policy = staticmethod(lambda attempt, error: -1.0)

    put("a", "bad")
    with pytest.raises(TypeError, match="staticmethod"):
        Unbound(dsn).run_once()
    with pytest.raises(ValueError, match="negative"):
        Negative(dsn).run_once()
    assert written(conn) == []
    Picky(dsn).run_once()
    assert written(conn) == ["a"]
