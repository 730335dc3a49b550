"""RemoteConsumer: a queue's batches are applied in another database, each exactly once."""

from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString, TypeVar

import psycopg
import pytest
from psycopg.rows import dict_row

import pgqpy
from pgqpy import (
    AsyncBatch,
    AsyncRemoteConsumer,
    Batch,
    Event,
    Producer,
    RemoteConsumer,
    SerialConsumer,
    errors,
)
from pgqpy.consumer._statements import next_batch
from pgqpy.retry import DeadLetter, FixedDelay
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_client import PATIENCE, Background, Make, Send, Tick
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_ticker import eventually
from tests.integration.consumer.test_consumer import COUNT

Remote = TypeVar("Remote", bound=RemoteConsumer)


class Copier(RemoteConsumer):
    """Counts events by data, in the target."""

    consumer = "copier"
    backoff_first = 0.01

    def process_remote_event(self, target: pgqpy.Connection, event: Event) -> None:
        target.execute(COUNT, [event.data])


class SerialCopier(SerialConsumer):
    consumer = "copier"
    process_remote_event = Copier.process_remote_event


class Crash(BaseException):
    """The effect of a dying process on a batch."""


class DiesBetween(Copier):
    """The target has committed; the source does not hear of it."""

    died = False

    def process_batch(self, conn: pgqpy.Connection, batch: Batch) -> None:
        super().process_batch(conn, batch)
        if not self.died:
            self.died = True
            raise Crash


@dataclass
class Sides:
    """A queue, the database in which it has effects, and the consumer's position in both."""

    conn: Connection
    target: Connection
    target_dsn: str
    queue: str
    make: Make
    send: Send

    def made(self, kind: type[Remote], /, *batches: str) -> Remote:
        """A consumer whose position both sides know; then these batches came."""
        consumer = self.make(kind, target_dsn=self.target_dsn)
        consumer.run(until_empty=True)
        for datas in batches:
            self.send(datas)
        return consumer

    def counts(self) -> dict[str, int]:
        return dict(self.target.execute("select data, n from seen order by data").fetchall())

    def at(self, column: LiteralString = "last_tick") -> int:
        """What the queue tells of the consumer's position."""
        number: int = ops.value(self.conn, f"select {column} from pgq.get_consumer_info()")
        return number

    def newest_tick(self) -> int:
        number: int = ops.value(self.conn, "select max(tick_id) from pgq.tick")
        return number

    def move(self, tick: int) -> None:
        self.conn.execute("select pgq.register_consumer_at(%s, 'copier', %s)", [self.queue, tick])

    def move_target(self, tick: int) -> None:
        self.target.execute("select pgq_ext.set_last_tick('copier', %s, %s)", [self.queue, tick])

    def to_retry(self) -> int:
        number: int = ops.value(self.conn, "select count(*) from pgq.retry_queue")
        return number

    def restore_target(self, progress: Any, *lost: str) -> None:
        """Bring back a backup of the target, as far as it matters."""
        self.target.execute("delete from seen where data = any(%s)", [[*lost]])
        self.target.execute("truncate pgq_ext.progress_0, pgq_ext.progress_1")
        if progress is not None:
            self.target.execute(
                "insert into pgq_ext.progress_0 select (%s::pgq_ext.progress_0).*", [progress]
            )

    def progress(self) -> Any:
        return self.target.execute("select * from pgq_ext.progress").fetchall()[0][2:]


@pytest.fixture
def sides(
    conn: Connection, target: Connection, target_dsn: str, queue: str, make: Make, send: Send
) -> Sides:
    target.execute("create table seen (data text primary key, n int not null)")
    return Sides(conn, target, target_dsn, queue, make, send)


@pytest.fixture
def copier(sides: Sides) -> Copier:
    return sides.made(Copier)


@pytest.mark.smoke
def test_each_event_after_the_registration_is_applied_once(
    sides: Sides, copier: Copier, send: Send
) -> None:
    send("ab")
    send("c")
    copier.run(until_empty=True)
    copier.run(until_empty=True)
    assert sides.counts() == {"a": 1, "b": 1, "c": 1}


def test_a_batch_that_the_target_has_is_left_out_and_finished(sides: Sides) -> None:
    consumer = sides.made(DiesBetween, "ab")
    with pytest.raises(Crash):
        consumer.run_once()
    assert sides.counts() == {"a": 1, "b": 1}
    assert sides.at("current_batch") is not None
    assert consumer.run_once()
    assert sides.counts() == {"a": 1, "b": 1}
    assert sides.at("current_batch") is None


def test_a_batch_that_failed_leaves_nothing_in_the_target(sides: Sides) -> None:
    class Fails(Copier):
        failed = False

        def process_remote_event(self, target: pgqpy.Connection, event: Event) -> None:
            super().process_remote_event(target, event)
            if event.data == "b" and not self.failed:
                self.failed = True
                # A handler cannot end the target's transaction.
                target.commit()

    consumer = sides.made(Fails, "ab")
    with pytest.raises(psycopg.ProgrammingError, match="commit"):
        consumer.run_once()
    assert sides.counts() == {}
    assert ops.value(sides.target, "select count(*) from pgq_ext.completed_batch") == 0
    assert consumer.run_once()
    assert sides.counts() == {"a": 1, "b": 1}


def test_what_is_to_come_again_comes_again_although_the_process_died_before_the_source_knew(
    sides: Sides,
) -> None:
    later = datetime.now(UTC) + timedelta(days=1)

    class Fails(DiesBetween):
        retry_policy = FixedDelay(3600)

        def process_remote_event(self, target: pgqpy.Connection, event: Event) -> None:
            super().process_remote_event(target, event)
            if event.data == "x":
                raise DeadLetter("not wanted: \0 \N{SNOWMAN}")
            if event.data == "r":
                raise ValueError("not now")
            if event.data == "l":
                event.retry(later)

    consumer = sides.made(Fails, "axbrl")
    with pytest.raises(Crash):
        consumer.run_once()
    assert sides.counts() == {"a": 1, "b": 1, "l": 1}
    consumer.run(until_empty=True)
    assert sides.counts() == {"a": 1, "b": 1, "l": 1}
    waiting = sides.conn.execute(
        "select ev_data, ev_retry_after > now() + interval '23 hours' from pgq.retry_queue"
        " order by 1"
    ).fetchall()
    assert waiting == [("l", True), ("r", False)]
    letters = sides.conn.execute("select ev_data, dl_reason from pgq.dead_letter").fetchall()
    assert letters == [("x", "not wanted: \\x00 \N{SNOWMAN}")]


class PutsBack(DiesBetween):
    """Events of upper case are for the next time."""

    broken = False

    def process_remote_event(self, target: pgqpy.Connection, event: Event) -> None:
        if self.broken:
            raise ZeroDivisionError
        if event.data is not None and event.data.isupper() and not event.retry_count:
            event.retry(0)
        else:
            super().process_remote_event(target, event)


@pytest.fixture
def half_done(sides: Sides, send: Send) -> PutsBack:
    """Died when the target had a batch with retries, and the queue did not know."""
    consumer = sides.made(PutsBack, "ab")
    consumer.died = True
    consumer.run(until_empty=True)
    consumer.died = False
    send("cD")
    with pytest.raises(Crash):
        consumer.run_once()
    return consumer


def come_again(conn: Connection, tick: Tick) -> None:
    conn.execute("select pgq.maint_retry_events()")
    tick()


@pytest.mark.parametrize("source", ["pgqpy", "one tick at a time"])
def test_a_batch_whose_retries_only_the_target_knows_comes_again_once(
    half_done: PutsBack, sides: Sides, tick: Tick, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    if source != "pgqpy":
        half_done.batch_size = None
    end = sides.at("next_tick")
    sides.move(end)
    half_done.run(until_empty=True)
    assert sides.to_retry() == 1
    assert "opened again" in caplog.text
    caplog.clear()
    # Delivered is delivered, also when the consumer is moved, or the log of positions rotated.
    sides.conn.execute("select pgq.maint_retry_events()")
    half_done.run(until_empty=True)
    sides.move(end)
    ops.rotate_logs(sides.conn)
    half_done.run(until_empty=True)
    assert sides.to_retry() == 0
    # Nor while a later batch is open.
    tick()
    half_done.broken = True
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            half_done.run_once()
    half_done.broken = False
    half_done.run(until_empty=True)
    assert sides.to_retry() == 0
    assert "opened again" not in caplog.text
    assert sides.counts() == dict.fromkeys("Dabc", 1)


def test_retries_that_cannot_come_are_told_of_and_can_be_given_up(
    half_done: PutsBack, sides: Sides, send: Send, cli: Cli
) -> None:
    end = sides.at("next_tick")
    send("e")
    later = sides.newest_tick()
    sides.move(later)
    with pytest.raises(errors.UndeliveredRetries, match="forget_retries") as refused:
        half_done.run(until_empty=True)
    assert f"pgqpy consumer rewind {sides.queue} copier" in str(refused.value)
    # They are not forgotten by telling the target another tick.
    begin = ops.value(sides.target, "select prg_prev_tick from pgq_ext.progress")
    sides.move_target(later)
    with pytest.raises(errors.UndeliveredRetries):
        half_done.run(until_empty=True)
    # The queue has the batch no longer.
    sides.conn.execute("update pgq.queue set queue_horizon_tick = %s", [begin + 1])
    rewind = ("consumer", "rewind", sides.queue, "copier", "--target-dsn", sides.target_dsn)
    assert "has not come here" in cli.fails(*rewind)
    forget = "select pgq_ext.forget_retries(%s, %s)"
    for consumer, expected in (("copier", True), ("copier", False), ("unknown", False)):
        assert ops.value(sides.target, forget, consumer, sides.queue) is expected
    sides.move(end)
    sides.move_target(end)
    half_done.run(until_empty=True)
    assert sides.counts() == dict.fromkeys("abce", 1)


def test_only_the_consumers_own_batches_are_opened_again(half_done: PutsBack, sides: Sides) -> None:
    sides.conn.execute("select pgq.register_consumer_at(%s, 'other', 1)", [sides.queue])
    others = ops.next_batch(sides.conn, sides.queue, "other")
    batch, *ticks = sides.target.execute(
        "select prg_batch, prg_prev_tick, prg_prev_tick_time, prg_tick, prg_tick_time"
        " from pgq_ext.progress"
    ).fetchall()[0]
    again = "select pgq.reopen_batch(%s, 'copier', %s, %s, %s, %s, %s)"
    assert ops.value(sides.conn, again, sides.queue, batch, *ticks) is False
    sides.move(ticks[0])
    prev, prev_time, tick, tick_time = ticks
    for wrong in (
        [others, *ticks],
        [batch + 1000, *ticks],
        [batch, prev, tick_time, tick, tick_time],
        [batch, prev, prev_time, tick, prev_time],
    ):
        with pytest.raises(errors.UndeliveredRetries), errors.translate_errors():
            sides.conn.execute(again, [sides.queue, *wrong])
    assert ops.value(sides.conn, again, sides.queue, batch, *ticks) is True
    assert ops.next_batch(sides.conn, sides.queue, "copier") == batch


def test_retries_end_with_the_registration(half_done: PutsBack, sides: Sides, send: Send) -> None:
    sides.conn.execute("select pgq.unregister_consumer(%s, 'copier')", [sides.queue])
    send("e")
    ops.register(sides.conn, sides.queue, "copier")
    sides.move_target(sides.at())
    send("f")
    half_done.run(until_empty=True)
    assert sides.counts() == dict.fromkeys("abcf", 1)


def test_a_rewound_consumer_gets_its_retries_although_the_queue_has_forgotten_the_ticks(
    half_done: PutsBack, sides: Sides, send: Send, tick: Tick, cli: Cli
) -> None:
    query = "select prg_prev_tick, prg_tick from pgq_ext.progress"
    ticks = sides.target.execute(query).fetchall()[0]
    send("e")
    sides.move(sides.newest_tick())
    sides.conn.execute("delete from pgq.tick where tick_id = any(%s)", [[*ticks]])
    cli.ok("consumer", "rewind", sides.queue, "copier", "--target-dsn", sides.target_dsn)
    for _ in range(2):
        half_done.run(until_empty=True)
        come_again(sides.conn, tick)
    assert sides.counts() == dict.fromkeys("Dabce", 1)


def test_retries_are_not_passed_over_by_a_process_that_survives_the_loss_of_the_source(
    sides: Sides, connect: Connect, send: Send, tick: Tick, background: Background
) -> None:
    """The consumer lost its connection between the two commits, and was moved meanwhile."""

    class Loses(PutsBack):
        poll_interval = 0.05

        def process_batch(self, source: pgqpy.Connection, batch: Batch) -> None:
            RemoteConsumer.process_batch(self, source, batch)
            if batch.retries and not self.died:
                self.died = True
                end = sides.at("next_tick")
                pid = source.info.backend_pid
                ops.value(connect(), "select pg_terminate_backend(%s, 60000)", pid)
                sides.move(end)

    thread = background(sides.made(Loses, "aB"))
    eventually(sides.conn, "select exists (select from pgq.retry_queue)")
    come_again(sides.conn, tick)
    eventually(sides.target, "select exists (select from seen where data = 'B')")
    assert thread.is_alive()
    assert sides.counts() == {"a": 1, "B": 1}


def test_the_loss_of_the_target_is_said_and_is_no_failure_of_its_batch(
    sides: Sides, connect: Connect, background: Background, caplog: pytest.LogCaptureFixture
) -> None:
    class Loses(Copier):
        lost = False

        def process_remote_event(self, target: pgqpy.Connection, event: Event) -> None:
            if not self.lost:
                self.lost = True
                pid = target.info.backend_pid
                ops.value(connect(), "select pg_terminate_backend(%s, 60000)", pid)
            super().process_remote_event(target, event)

    background(sides.made(Loses, "a"))
    eventually(sides.target, "select exists (select from seen where data = 'a')")
    assert "consumer copier lost the target database: " in caplog.text
    assert "failed" not in caplog.text


def test_an_idle_queues_heartbeats_do_not_separate_source_and_target(
    sides: Sides, copier: Copier, send: Send
) -> None:
    for period in ("ticker_max_lag", "ticker_idle_period"):
        sides.conn.execute("select pgq.set_queue_config(%s, %s, '0')", [sides.queue, period])
    for data in "ab":
        send(data)
        for _ in range(3):
            assert ops.value(sides.conn, "select pgq.ticker(%s)", sides.queue)
            copier.run(until_empty=True)
    assert sides.counts() == {"a": 1, "b": 1}


def test_a_consumer_that_was_registered_by_hand_starts_where_it_stands(
    dsn: str, sides: Sides, send: Send
) -> None:
    ops.register(sides.conn, sides.queue, "copier")
    send("ab")
    consumer = Copier(dsn, target_dsn=sides.target_dsn, queue=sides.queue)
    assert consumer.run_once()
    assert sides.counts() == {"a": 1, "b": 1}


def test_a_second_process_of_the_same_name_applies_nothing_twice(
    sides: Sides, copier: Copier
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Slow(Copier):
        def process_remote_batch(
            self, conn: pgqpy.Connection, batch: Batch, target: pgqpy.Connection
        ) -> None:
            super().process_remote_batch(conn, batch, target)
            inside.set()
            assert go_on.wait(PATIENCE)

    failures: list[type[Exception]] = []

    def run(consumer: Copier) -> None:
        try:
            consumer.run_once()
        except pgqpy.PgqError as error:
            failures.append(type(error))

    first = threading.Thread(target=run, args=[sides.made(Slow, "ab")])
    first.start()
    assert inside.wait(PATIENCE)
    second = threading.Thread(target=run, args=[copier])
    second.start()
    waiting = "select count(*) from pg_locks where not granted and locktype = 'advisory'"
    while not ops.value(sides.target, waiting):
        assert second.is_alive()
    go_on.set()
    first.join(PATIENCE)
    second.join(PATIENCE)
    assert sides.counts() == {"a": 1, "b": 1}
    # The second one finds the batch finished.
    assert failures in ([], [errors.BatchNotFound])


@pytest.mark.parametrize("known", [True, False], ids=["older", "nothing in it"])
def test_a_target_restored_from_an_older_backup_is_noticed_and_caught_up(
    sides: Sides, copier: Copier, known: bool, send: Send
) -> None:
    send("a")
    copier.run(until_empty=True)
    backup = sides.progress()
    before = sides.at()
    send("b")
    copier.run(until_empty=True)

    sides.restore_target(backup if known else None, "b")
    send("c")
    with pytest.raises(errors.TargetBehind) as refused:
        copier.run(until_empty=True)
    if known:
        assert f"begins behind tick {sides.at()}" in str(refused.value)
        assert f"only as far as tick {before}" in str(refused.value)
    assert sides.counts() == {"a": 1}

    # As the hint says.
    assert f"pgq.register_consumer_at('{sides.queue}', 'copier', " in str(refused.value)
    sides.move(before)
    if not known:
        sides.move_target(before)
    copier.run(until_empty=True)
    assert sides.counts() == {"a": 1, "b": 1, "c": 1}


def test_the_source_may_have_forgotten_the_tick_where_a_restored_target_stands(
    sides: Sides, copier: Copier, cli: Cli
) -> None:
    """Early ticks are forgotten soon, their events are not."""

    def send(data: str) -> None:
        event = Producer(sides.queue).insert_event(sides.conn, "t", data)
        sides.conn.execute(
            "select pgq._make_ticks(array[1], array[true], array[%s], null, null)", [event]
        )

    send("a")
    copier.run(until_empty=True)
    backup = sides.progress()
    for data in "bc":
        send(data)
        copier.run(until_empty=True)
    for _ in range(4):
        ops.rotate_logs(sides.conn)
    assert (backup[2],) not in sides.conn.execute("select tick_id from pgq.tick").fetchall()

    sides.restore_target(backup, "b", "c")
    send("d")
    with pytest.raises(errors.TargetBehind, match="pgqpy consumer rewind test_queue copier"):
        copier.run(until_empty=True)
    said = cli.ok("consumer", "rewind", sides.queue, "copier", "--target-dsn", sides.target_dsn)
    assert f"to {backup[2]}, where its target stands" in said
    copier.run(until_empty=True)
    assert sides.counts() == dict.fromkeys("abcd", 1)


def test_events_can_be_left_out_on_purpose(sides: Sides, copier: Copier, send: Send) -> None:
    send("a")
    sides.move(ops.tick(sides.conn, sides.queue))
    send("b")
    with pytest.raises(errors.TargetBehind) as refused:
        copier.run(until_empty=True)
    now = sides.at()
    advice = f"select pgq_ext.set_last_tick('copier', '{sides.queue}', {now})"
    assert advice in str(refused.value)
    sides.target.execute(advice.encode())
    copier.run(until_empty=True)
    assert sides.counts() == {"b": 1}


def test_a_target_that_is_ahead_is_noticed(sides: Sides, copier: Copier, send: Send) -> None:
    """The source was restored, or, as here, the consumer moved back."""
    start = sides.at()
    for data in "ab":
        send(data)
        copier.run(until_empty=True)
    sides.move(start)
    copier.batch_size = 1
    with pytest.raises(errors.TargetAhead) as refused:
        copier.run()
    assert sides.counts() == {"a": 1, "b": 1}
    assert "HINT" in str(refused.value)
    # Apply it once more, on purpose.
    sides.move_target(start)
    copier.run(until_empty=True)
    assert sides.counts() == {"a": 2, "b": 2}


@pytest.mark.parametrize(
    ("kind", "batches"), [(Copier, "many in one"), (SerialCopier, "one")], ids=["remote", "serial"]
)
def test_a_consumer_that_was_moved_back_to_the_start_is_noticed_although_the_tick_ends_the_same(
    kind: type[RemoteConsumer], batches: str, sides: Sides, send: Send, cli: Cli
) -> None:
    if batches == "many in one":
        # Before the registration: what the target has never had.
        send("0")
    consumer = sides.made(kind)
    for data in "a" if batches == "one" else "ab":
        send(data)
        consumer.run(until_empty=True)
    before = sides.counts()
    cli.ok("consumer", "seek", sides.queue, "copier", "--start")
    for _ in range(2):
        with pytest.raises(errors.TargetAhead, match="pgqpy consumer rewind"):
            consumer.run(until_empty=True)
    assert sides.counts() == before
    # Both ways that the error names.
    cli.ok("consumer", "rewind", sides.queue, "copier", "--target-dsn", sides.target_dsn)
    send("c")
    consumer.run(until_empty=True)
    assert sides.counts() == before | {"c": 1}
    cli.ok("consumer", "seek", sides.queue, "copier", "--start")
    with pytest.raises(errors.TargetAhead) as refused:
        consumer.run(until_empty=True)
    advice = re.search(r"select pgq_ext.set_last_tick\([^)]*\)", str(refused.value))
    assert advice is not None
    sides.target.execute(advice[0].encode())
    consumer.run(until_empty=True)
    again = {"0": 1} if batches == "many in one" else {}
    assert sides.counts() == again | dict.fromkeys(before, 2) | {"c": 2}


def test_a_batch_is_done_only_if_all_that_is_known_of_it_is_the_same(target: Connection) -> None:
    def begin(*batch: int) -> bool:
        number, prev, tick = batch
        query = (
            "select done from pgq_ext.begin_batch("
            "'c', 'q', %s, %s, to_timestamp(%s), %s, to_timestamp(%s))"
        )
        return bool(ops.value(target, query, number, prev, prev, tick, tick))

    target.execute("select pgq_ext.start_batches('c', 'q', 5, to_timestamp(5), true)")
    target.execute("select pgq_ext.end_batch('c', 'q', 70, 9, to_timestamp(9), null)")
    assert begin(70, 5, 9)
    assert not begin(71, 9, 12)
    for moved in ((71, 5, 9), (70, 4, 9), (70, 6, 9), (70, 5, 8), (70, 5, 10)):
        with pytest.raises(errors.TargetAhead), errors.translate_errors():
            begin(*moved)


def test_ticks_of_another_history_are_not_taken_for_the_same(
    sides: Sides, copier: Copier, send: Send
) -> None:
    """A source that was restored gives out the same ids again, at other times."""
    send("a")
    copier.run(until_empty=True)
    sides.target.execute(
        "update pgq_ext.progress_0 set prg_tick_time = prg_tick_time - interval '1 min'"
    )
    send("b")
    with pytest.raises(errors.TargetAhead):
        copier.run(until_empty=True)
    assert sides.counts() == {"a": 1}


@pytest.mark.parametrize(
    ("kind", "ticks"), [(Copier, "as many"), (SerialCopier, "more"), (Copier, "fewer")]
)
def test_another_databases_consumer_of_the_same_name_is_noticed_and_applies_nothing(
    kind: type[RemoteConsumer], ticks: str, sides: Sides, other_dsn: str, connect: Connect
) -> None:
    other = connect(other_dsn)
    for _ in range(3):
        if ticks != "as many":
            ops.tick(other if ticks == "more" else sides.conn, sides.queue)
    first = sides.made(kind)
    second = kind(other_dsn, target_dsn=sides.target_dsn, queue=sides.queue)
    second.register()
    for source, data in ((other, "theirs"), (sides.conn, "ours")):
        ops.insert(source, sides.queue, data)
        ops.tick(source, sides.queue)
    # Before the first has done anything, and after.
    for _ in range(2):
        with pytest.raises(errors.LostPosition, match="another database's queue of this name"):
            second.run(until_empty=True)
        first.run(until_empty=True)
    assert sides.counts() == {"ours": 1}


def test_unregistering_makes_the_target_forget(sides: Sides, copier: Copier, send: Send) -> None:
    send("a")
    copier.run(until_empty=True)
    assert copier.unregister()
    assert ops.value(sides.target, "select count(*) from pgq_ext.progress") == 0
    for data in "bc":
        send(data)
        copier.run(until_empty=True)
    assert sides.counts() == {"a": 1, "c": 1}


def test_what_cannot_work_is_told_before_anything_happens(
    dsn: str, empty_dsn: str, queue: str
) -> None:
    class Nothing(RemoteConsumer):
        consumer = "nothing"

    with pytest.raises(errors.SchemaMissing, match="pgqpy migrate"):
        Copier(dsn, target_dsn=empty_dsn, queue=queue).run()
    with pytest.raises(TypeError, match="process_remote_batch or process_remote_event"):
        Nothing(dsn, target_dsn=empty_dsn, queue=queue).run()


def test_the_asyncio_twin_does_the_same(dsn: str, sides: Sides, send: Send) -> None:
    class Async(AsyncRemoteConsumer):
        consumer = "copier"

        async def process_remote_batch(
            self, conn: pgqpy.AsyncConnection, batch: AsyncBatch, target: pgqpy.AsyncConnection
        ) -> None:
            async for event in batch:
                await target.execute("insert into seen values (%s, 1)", [event.data])

    async def run() -> None:
        consumer = Async(dsn, target_dsn=sides.target_dsn, queue=sides.queue)
        await consumer.register()
        await asyncio.to_thread(send, "ab")
        await consumer.run(until_empty=True)
        await consumer.run(until_empty=True)

    asyncio.run(run())
    assert sides.counts() == {"a": 1, "b": 1}


@pytest.mark.reference
def test_a_queue_of_pgq_itself_can_be_the_source(
    pgq_reference_dsn: str, sides: Sides, connect: Connect
) -> None:
    source = connect(pgq_reference_dsn)
    source.execute("select pgq.create_queue('theirs')")
    consumer = DiesBetween(pgq_reference_dsn, target_dsn=sides.target_dsn, queue="theirs")
    consumer.batch_size = None
    consumer.run(until_empty=True)
    for data in "ab":
        source.execute("select pgq.insert_event('theirs', 't', %s)", [data])
        source.execute("select pgq.force_tick('theirs')")
        source.execute("select pgq.ticker('theirs')")
    with pytest.raises(Crash):
        consumer.run_once()
    consumer.run(until_empty=True)
    assert sides.counts() == {"a": 1, "b": 1}


def test_a_tick_that_came_while_the_batch_was_opened_is_known_with_its_snapshot(
    conn: Connection, connect: Connect, queue: str
) -> None:
    """Otherwise `pgqpy consumer rewind` could not make the tick again."""
    ops.register(conn, queue, "c")
    statement, parameters = next_batch(queue, "c", 100, None, 100, with_tick=True)
    holder, consumer = connect(autocommit=False), connect()
    consumer.row_factory = dict_row  # type: ignore[assignment]
    holder.execute("lock table pgq.position_0 in access exclusive mode")
    rows: list[Any] = []
    asking = threading.Thread(
        target=lambda: rows.extend(consumer.execute(statement, parameters).fetchall())
    )
    asking.start()
    eventually(conn, "select exists (select from pg_locks where not granted)")
    ops.insert(conn, queue, "event")
    tick = ops.tick(conn, queue)
    holder.rollback()
    asking.join(PATIENCE)
    assert rows[0]["cur_tick_id"] == tick
    assert rows[0]["tick_snapshot"] == ops.value(
        conn, "select tick_snapshot::text from pgq.tick where tick_id = %s", tick
    )
