"""RemoteConsumer: a queue's batches are applied in another database, each exactly once."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

import pgqpy
from pgqpy import (
    Admin,
    AsyncBatch,
    AsyncRemoteConsumer,
    Batch,
    Event,
    Producer,
    RemoteConsumer,
    SerialConsumer,
    errors,
)
from pgqpy._wire.statements import next_batch
from pgqpy.retry import DeadLetter, FixedDelay
from pgqpy.schema import schema_sql
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_client import PATIENCE, Background, Tick
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_ticker import eventually


class Copier(RemoteConsumer):
    """Counts events by data, in the target: an effect that shows when it happens twice."""

    consumer = "copier"
    backoff_first = 0.01

    def process_remote_event(self, target: pgqpy.Connection, event: Event) -> None:
        target.execute(
            "insert into seen as s values (%s, 1) on conflict (data) do update set n = s.n + 1",
            [event.data],
        )


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


@pytest.fixture(autouse=True)
def seen(target: Connection) -> None:
    target.execute("create table seen (data text primary key, n int not null)")


@pytest.fixture
def copier(dsn: str, target_dsn: str, queue: str) -> Copier:
    consumer = Copier(dsn, target_dsn=target_dsn, queue=queue)
    consumer.run(until_empty=True)
    return consumer


Send = Callable[[str], None]


@pytest.fixture
def send(conn: Connection, queue: str, tick: Tick) -> Send:
    """``send("abc")``: three events in a batch."""

    def send_now(datas: str) -> None:
        for data in datas:
            Producer(queue).insert_event(conn, "t", data)
        tick()

    return send_now


def counts(target: Connection) -> dict[str, int]:
    return dict(target.execute("select data, n from seen order by data").fetchall())


@pytest.mark.smoke
def test_each_event_after_the_registration_is_applied_once(
    copier: Copier, send: Send, target: Connection
) -> None:
    send("ab")
    send("c")
    copier.run(until_empty=True)
    copier.run(until_empty=True)
    assert counts(target) == {"a": 1, "b": 1, "c": 1}


def test_a_batch_that_the_target_has_is_left_out_and_finished(
    dsn: str, target_dsn: str, queue: str, conn: Connection, target: Connection, send: Send
) -> None:
    consumer = DiesBetween(dsn, target_dsn=target_dsn, queue=queue)
    consumer.run(until_empty=True)
    send("ab")
    with pytest.raises(Crash):
        consumer.run_once()
    assert counts(target) == {"a": 1, "b": 1}
    assert ops.value(conn, "select current_batch from pgq.get_consumer_info()") is not None
    assert consumer.run_once()
    assert counts(target) == {"a": 1, "b": 1}
    assert ops.value(conn, "select current_batch from pgq.get_consumer_info()") is None


def test_a_batch_that_failed_leaves_nothing_in_the_target(
    dsn: str, target_dsn: str, queue: str, target: Connection, send: Send
) -> None:
    class Fails(Copier):
        failed = False

        def process_remote_event(self, target: pgqpy.Connection, event: Event) -> None:
            super().process_remote_event(target, event)
            if event.data == "b" and not self.failed:
                self.failed = True
                raise ZeroDivisionError

    consumer = Fails(dsn, target_dsn=target_dsn, queue=queue)
    consumer.run(until_empty=True)
    send("ab")
    with pytest.raises(ZeroDivisionError):
        consumer.run_once()
    assert counts(target) == {}
    assert ops.value(target, "select count(*) from pgq_ext.completed_batch") == 0
    assert consumer.run_once()
    assert counts(target) == {"a": 1, "b": 1}


def test_what_is_to_come_again_comes_again_although_the_process_died_before_the_source_knew(
    dsn: str, target_dsn: str, queue: str, conn: Connection, target: Connection, send: Send
) -> None:
    later = datetime.now(UTC) + timedelta(days=1)

    class PutsBack(DiesBetween):
        retry_policy = FixedDelay(3600)

        def process_remote_event(self, target: pgqpy.Connection, event: Event) -> None:
            super().process_remote_event(target, event)
            if event.data == "x":
                raise DeadLetter("not wanted: \0 \N{SNOWMAN}")
            if event.data == "r":
                raise ValueError("not now")
            if event.data == "l":
                event.retry(later)

    consumer = PutsBack(dsn, target_dsn=target_dsn, queue=queue)
    consumer.run(until_empty=True)
    send("axbrl")
    with pytest.raises(Crash):
        consumer.run_once()
    assert counts(target) == {"a": 1, "b": 1, "l": 1}
    consumer.run(until_empty=True)
    assert counts(target) == {"a": 1, "b": 1, "l": 1}
    waiting = conn.execute(
        "select ev_data, ev_retry_after > now() + interval '23 hours' from pgq.retry_queue"
        " order by 1"
    ).fetchall()
    assert waiting == [("l", True), ("r", False)]
    letters = conn.execute("select ev_data, dl_reason from pgq.dead_letter").fetchall()
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
def half_done(dsn: str, target_dsn: str, queue: str, send: Send) -> PutsBack:
    """Died when the target had a batch with retries, and the queue did not know."""
    consumer = PutsBack(dsn, target_dsn=target_dsn, queue=queue)
    consumer.run(until_empty=True)
    send("ab")
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
    half_done: PutsBack,
    queue: str,
    conn: Connection,
    target: Connection,
    tick: Tick,
    source: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if source != "pgqpy":
        half_done.batch_size = None
    end = ops.value(conn, "select next_tick from pgq.get_consumer_info()")
    conn.execute("select pgq.register_consumer_at(%s, 'copier', %s)", [queue, end])
    waiting = "select count(*) from pgq.retry_queue"
    half_done.run(until_empty=True)
    assert ops.value(conn, waiting) == 1
    assert "opened again" in caplog.text
    caplog.clear()
    # Delivered is delivered, also when the consumer is moved, or the log of positions rotated.
    conn.execute("select pgq.maint_retry_events()")
    half_done.run(until_empty=True)
    conn.execute("select pgq.register_consumer_at(%s, 'copier', %s)", [queue, end])
    ops.rotate_logs(conn)
    half_done.run(until_empty=True)
    assert ops.value(conn, waiting) == 0
    # Nor while a later batch is open.
    tick()
    half_done.broken = True
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            half_done.run_once()
    half_done.broken = False
    half_done.run(until_empty=True)
    assert ops.value(conn, waiting) == 0
    assert "opened again" not in caplog.text
    assert counts(target) == dict.fromkeys("Dabc", 1)


def test_retries_that_cannot_come_are_told_of_and_can_be_given_up(
    half_done: PutsBack,
    dsn: str,
    queue: str,
    conn: Connection,
    target: Connection,
    target_dsn: str,
    send: Send,
    cli: Cli,
) -> None:
    end = ops.value(conn, "select next_tick from pgq.get_consumer_info()")
    send("e")
    later = ops.value(conn, "select max(tick_id) from pgq.tick")
    conn.execute("select pgq.register_consumer_at(%s, 'copier', %s)", [queue, later])
    with pytest.raises(errors.UndeliveredRetries, match="forget_retries") as refused:
        half_done.run(until_empty=True)
    assert f"pgqpy consumer rewind {queue} copier" in str(refused.value)
    # The queue has the batch no longer.
    begin = ops.value(target, "select prg_prev_tick from pgq_ext.progress")
    conn.execute("update pgq.queue set queue_horizon_tick = %s", [begin + 1])
    said = cli.fails("consumer", "rewind", queue, "copier", "--target-dsn", target_dsn)
    assert "has not come here" in said
    assert ops.value(target, "select pgq_ext.forget_retries('copier', %s)", queue) is True
    assert ops.value(target, "select pgq_ext.forget_retries('copier', %s)", queue) is False
    assert ops.value(target, "select pgq_ext.forget_retries('unknown', %s)", queue) is False
    conn.execute("select pgq.register_consumer_at(%s, 'copier', %s)", [queue, end])
    half_done.run(until_empty=True)
    assert counts(target) == dict.fromkeys("abce", 1)


def test_only_the_consumers_own_batches_are_opened_again(
    half_done: PutsBack, queue: str, conn: Connection, target: Connection, connect: Connect
) -> None:
    conn.execute("select pgq.register_consumer_at(%s, 'other', 1)", [queue])
    others = ops.next_batch(conn, queue, "other")
    batch, *ticks = target.execute(
        "select prg_batch, prg_prev_tick, prg_prev_tick_time, prg_tick, prg_tick_time"
        " from pgq_ext.progress"
    ).fetchall()[0]
    again = "select pgq.reopen_batch(%s, 'copier', %s, %s, %s, %s, %s)"
    assert ops.value(conn, again, queue, batch, *ticks) is False
    conn.execute("select pgq.register_consumer_at(%s, 'copier', %s)", [queue, ticks[0]])
    prev, prev_time, tick, tick_time = ticks
    for wrong in (
        [others, *ticks],
        [batch + 1000, *ticks],
        [batch, prev, tick_time, tick, tick_time],
        [batch, prev, prev_time, tick, prev_time],
    ):
        with pytest.raises(errors.UndeliveredRetries), errors.translate_errors():
            conn.execute(again, [queue, *wrong])
    assert ops.value(conn, again, queue, batch, *ticks) is True
    assert ops.next_batch(conn, queue, "copier") == batch


def test_retries_are_not_forgotten_by_telling_the_target_another_tick(
    half_done: PutsBack, queue: str, conn: Connection, target: Connection, send: Send
) -> None:
    send("e")
    later = ops.value(conn, "select max(tick_id) from pgq.tick")
    conn.execute("select pgq.register_consumer_at(%s, 'copier', %s)", [queue, later])
    target.execute("select pgq_ext.set_last_tick('copier', %s, %s)", [queue, later])
    with pytest.raises(errors.UndeliveredRetries):
        half_done.run(until_empty=True)


def test_retries_end_with_the_registration(
    half_done: PutsBack, queue: str, conn: Connection, target: Connection, send: Send
) -> None:
    conn.execute("select pgq.unregister_consumer(%s, 'copier')", [queue])
    send("e")
    ops.register(conn, queue, "copier")
    newest = ops.value(conn, "select last_tick from pgq.get_consumer_info()")
    target.execute("select pgq_ext.set_last_tick('copier', %s, %s)", [queue, newest])
    send("f")
    half_done.run(until_empty=True)
    assert counts(target) == dict.fromkeys("abcf", 1)


def test_a_rewound_consumer_gets_its_retries_although_the_queue_has_forgotten_the_ticks(
    half_done: PutsBack,
    queue: str,
    conn: Connection,
    target: Connection,
    target_dsn: str,
    send: Send,
    tick: Tick,
    cli: Cli,
) -> None:
    ticks = target.execute("select prg_prev_tick, prg_tick from pgq_ext.progress").fetchall()[0]
    send("e")
    later = ops.value(conn, "select max(tick_id) from pgq.tick")
    conn.execute("select pgq.register_consumer_at(%s, 'copier', %s)", [queue, later])
    conn.execute("delete from pgq.tick where tick_id = any(%s)", [[*ticks]])
    cli.ok("consumer", "rewind", queue, "copier", "--target-dsn", target_dsn)
    for _ in range(2):
        half_done.run(until_empty=True)
        come_again(conn, tick)
    assert counts(target) == dict.fromkeys("Dabce", 1)


def test_retries_are_not_passed_over_by_a_process_that_survives_the_loss_of_the_source(
    dsn: str,
    target_dsn: str,
    queue: str,
    conn: Connection,
    connect: Connect,
    target: Connection,
    send: Send,
    tick: Tick,
    background: Background,
) -> None:
    """The consumer lost its connection between the two commits, and was moved meanwhile."""

    class Loses(PutsBack):
        def process_batch(self, source: pgqpy.Connection, batch: Batch) -> None:
            RemoteConsumer.process_batch(self, source, batch)
            if batch.retries and not self.died:
                self.died = True
                end = ops.value(conn, "select next_tick from pgq.get_consumer_info()")
                pid = source.info.backend_pid
                ops.value(connect(), "select pg_terminate_backend(%s, 60000)", pid)
                conn.execute("select pgq.register_consumer_at(%s, 'copier', %s)", [queue, end])

    consumer = Loses(dsn, target_dsn=target_dsn, queue=queue)
    consumer.poll_interval = 0.05
    consumer.register()
    send("aB")
    thread = background(consumer)
    eventually(conn, "select exists (select from pgq.retry_queue)")
    come_again(conn, tick)
    eventually(target, "select exists (select from seen where data = 'B')")
    assert thread.is_alive()
    assert counts(target) == {"a": 1, "B": 1}


def test_an_idle_queues_heartbeats_do_not_separate_source_and_target(
    copier: Copier, queue: str, conn: Connection, send: Send, target: Connection
) -> None:
    for period in ("ticker_max_lag", "ticker_idle_period"):
        conn.execute("select pgq.set_queue_config(%s, %s, '0')", [queue, period])
    for data in "ab":
        send(data)
        for _ in range(3):
            assert ops.value(conn, "select pgq.ticker(%s)", queue)
            copier.run(until_empty=True)
    assert counts(target) == {"a": 1, "b": 1}


def test_a_consumer_that_was_registered_by_hand_starts_where_it_stands(
    dsn: str, target_dsn: str, queue: str, conn: Connection, target: Connection, send: Send
) -> None:
    ops.register(conn, queue, "copier")
    send("ab")
    consumer = Copier(dsn, target_dsn=target_dsn, queue=queue)
    assert consumer.run_once()
    assert counts(target) == {"a": 1, "b": 1}


def test_a_second_process_of_the_same_name_applies_nothing_twice(
    dsn: str, target_dsn: str, queue: str, copier: Copier, target: Connection, send: Send
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Slow(Copier):
        def process_remote_batch(
            self, conn: pgqpy.Connection, batch: Batch, target: pgqpy.Connection
        ) -> None:
            super().process_remote_batch(conn, batch, target)
            inside.set()
            assert go_on.wait(PATIENCE)

    slow = Slow(dsn, target_dsn=target_dsn, queue=queue)
    send("ab")
    failures: list[Exception] = []

    def run(consumer: Copier) -> None:
        try:
            consumer.run_once()
        except pgqpy.PgqError as error:
            failures.append(error)

    first = threading.Thread(target=run, args=[slow])
    first.start()
    assert inside.wait(PATIENCE)
    second = threading.Thread(target=run, args=[copier])
    second.start()
    waiting = "select count(*) from pg_locks where not granted and locktype = 'advisory'"
    while not ops.value(target, waiting):
        assert second.is_alive()
    go_on.set()
    first.join(PATIENCE)
    second.join(PATIENCE)
    assert counts(target) == {"a": 1, "b": 1}
    # The second one finds the batch finished.
    assert [type(error) for error in failures] in ([], [errors.BatchNotFound])


@pytest.mark.parametrize("known", [True, False], ids=["older", "nothing in it"])
def test_a_target_restored_from_an_older_backup_is_noticed_and_caught_up(
    copier: Copier,
    known: bool,
    queue: str,
    conn: Connection,
    target: Connection,
    send: Send,
) -> None:
    send("a")
    copier.run(until_empty=True)
    backup = target.execute("select * from pgq_ext.progress").fetchall()
    before = ops.value(conn, "select last_tick from pgq.get_consumer_info()")
    send("b")
    copier.run(until_empty=True)

    # The backup, as far as it matters.
    target.execute("delete from seen where data = 'b'")
    target.execute("truncate pgq_ext.progress_0, pgq_ext.progress_1")
    if known:
        target.execute(
            "insert into pgq_ext.progress_0 select (%s::pgq_ext.progress_0).*", [backup[0][2:]]
        )
    send("c")
    with pytest.raises(errors.TargetBehind) as refused:
        copier.run(until_empty=True)
    now = ops.value(conn, "select last_tick from pgq.get_consumer_info()")
    if known:
        assert f"begins behind tick {now}" in str(refused.value)
        assert f"only as far as tick {before}" in str(refused.value)
    assert counts(target) == {"a": 1}

    # As the hint says.
    assert f"pgq.register_consumer_at('{queue}', 'copier', " in str(refused.value)
    conn.execute("select pgq.register_consumer_at(%s, 'copier', %s)", [queue, before])
    if not known:
        target.execute("select pgq_ext.set_last_tick('copier', %s, %s)", [queue, before])
    copier.run(until_empty=True)
    assert counts(target) == {"a": 1, "b": 1, "c": 1}


def test_the_source_may_have_forgotten_the_tick_where_a_restored_target_stands(
    copier: Copier,
    queue: str,
    conn: Connection,
    target: Connection,
    dsn: str,
    target_dsn: str,
    cli: Cli,
) -> None:
    """Early ticks are forgotten soon, their events are not."""

    def send(data: str) -> None:
        event = Producer(queue).insert_event(conn, "t", data)
        conn.execute(
            "select pgq._make_ticks(array[1], array[true], array[%s], null, null)", [event]
        )

    send("a")
    copier.run(until_empty=True)
    backup = target.execute("select * from pgq_ext.progress").fetchall()[0][2:]
    send("b")
    copier.run(until_empty=True)
    send("c")
    copier.run(until_empty=True)
    for _ in range(4):
        ops.rotate_logs(conn)
    ticks = {tick for (tick,) in conn.execute("select tick_id from pgq.tick").fetchall()}
    assert backup[2] not in ticks

    target.execute("delete from seen where data <> 'a'")
    target.execute("truncate pgq_ext.progress_0, pgq_ext.progress_1")
    target.execute("insert into pgq_ext.progress_0 select (%s::pgq_ext.progress_0).*", [backup])
    send("d")
    with pytest.raises(errors.TargetBehind, match="pgqpy consumer rewind test_queue copier"):
        copier.run(until_empty=True)
    said = cli.ok("consumer", "rewind", queue, "copier", "--target-dsn", target_dsn)
    assert f"to {backup[2]}, where its target stands" in said
    copier.run(until_empty=True)
    assert counts(target) == dict.fromkeys("abcd", 1)


def test_events_can_be_left_out_on_purpose(
    copier: Copier, queue: str, conn: Connection, target: Connection, send: Send, tick: Tick
) -> None:
    send("a")
    Admin(conn).register_consumer_at(queue, "copier", ops.tick(conn, queue))
    send("b")
    with pytest.raises(errors.TargetBehind) as refused:
        copier.run(until_empty=True)
    now = ops.value(conn, "select last_tick from pgq.get_consumer_info()")
    assert f"select pgq_ext.set_last_tick('copier', '{queue}', {now})" in str(refused.value)
    target.execute("select pgq_ext.set_last_tick('copier', %s, %s)", [queue, now])
    copier.run(until_empty=True)
    assert counts(target) == {"b": 1}


def test_a_target_that_is_ahead_is_noticed(
    copier: Copier, queue: str, conn: Connection, target: Connection, send: Send
) -> None:
    """The source was restored, or, as here, the consumer moved back."""
    start = ops.value(conn, "select last_tick from pgq.get_consumer_info()")
    send("a")
    copier.run(until_empty=True)
    send("b")
    copier.run(until_empty=True)
    Admin(conn).register_consumer_at(queue, "copier", start)
    copier.batch_size = 1
    with pytest.raises(errors.TargetAhead) as refused:
        copier.run(until_empty=True)
    assert counts(target) == {"a": 1, "b": 1}
    assert "HINT" in str(refused.value)
    # Apply it once more, on purpose.
    target.execute("select pgq_ext.set_last_tick('copier', %s, %s)", [queue, start])
    copier.run(until_empty=True)
    assert counts(target) == {"a": 2, "b": 2}


@pytest.mark.parametrize("kind", [RemoteConsumer, SerialConsumer])
@pytest.mark.parametrize("batches", ["one", "many in one"])
def test_a_consumer_that_was_moved_back_to_the_start_is_noticed_although_the_tick_ends_the_same(
    kind: type[RemoteConsumer],
    batches: str,
    dsn: str,
    target_dsn: str,
    queue: str,
    target: Connection,
    send: Send,
    cli: Cli,
) -> None:
    class Copy(kind):  # type: ignore[misc, valid-type]
        consumer = "copier"
        process_remote_event = Copier.process_remote_event

    if batches == "many in one":
        # Before the registration: what the target has never had.
        send("0")
    consumer = Copy(dsn, target_dsn=target_dsn, queue=queue)
    consumer.run(until_empty=True)
    for data in "a" if batches == "one" else "ab":
        send(data)
        consumer.run(until_empty=True)
    before = counts(target)
    cli.ok("consumer", "seek", queue, "copier", "--start")
    for _ in range(2):
        with pytest.raises(errors.TargetAhead, match="pgqpy consumer rewind"):
            consumer.run(until_empty=True)
    assert counts(target) == before
    # Both ways that the error names.
    cli.ok("consumer", "rewind", queue, "copier", "--target-dsn", target_dsn)
    send("c")
    consumer.run(until_empty=True)
    assert counts(target) == before | {"c": 1}
    cli.ok("consumer", "seek", queue, "copier", "--start")
    with pytest.raises(errors.TargetAhead) as refused:
        consumer.run(until_empty=True)
    advice = re.search(r"select pgq_ext.set_last_tick\([^)]*\)", str(refused.value))
    assert advice is not None
    target.execute(advice[0])
    consumer.run(until_empty=True)
    again = {"0": 1} if batches == "many in one" else {}
    assert counts(target) == again | dict.fromkeys(before, 2) | {"c": 2}


def test_a_batch_is_done_only_if_all_that_is_known_of_it_is_the_same(target: Connection) -> None:
    def begin(*batch: int) -> bool:
        number, prev, tick = batch
        return bool(
            ops.value(
                target,
                "select done from pgq_ext.begin_batch("
                "'c', 'q', %s, %s, to_timestamp(%s), %s, to_timestamp(%s))",
                number,
                prev,
                prev,
                tick,
                tick,
            )
        )

    target.execute("select pgq_ext.start_batches('c', 'q', 5, to_timestamp(5), true)")
    target.execute("select pgq_ext.end_batch('c', 'q', 70, 9, to_timestamp(9), null)")
    assert begin(70, 5, 9)
    assert not begin(71, 9, 12)
    for moved in ((71, 5, 9), (70, 4, 9), (70, 6, 9), (70, 5, 8), (70, 5, 10)):
        with pytest.raises(errors.TargetAhead), errors.translate_errors():
            begin(*moved)


def test_ticks_of_another_history_are_not_taken_for_the_same(
    copier: Copier, conn: Connection, target: Connection, send: Send
) -> None:
    """A source that was restored gives out the same ids again, at other times."""
    send("a")
    copier.run(until_empty=True)
    target.execute("update pgq_ext.progress_0 set prg_tick_time = prg_tick_time - interval '1 min'")
    send("b")
    with pytest.raises(errors.TargetAhead):
        copier.run(until_empty=True)
    assert counts(target) == {"a": 1}


@pytest.mark.parametrize("kind", [RemoteConsumer, SerialConsumer])
@pytest.mark.parametrize("ticks", ["as many", "more", "fewer"])
def test_another_databases_consumer_of_the_same_name_is_noticed_and_applies_nothing(
    kind: type[RemoteConsumer],
    ticks: str,
    dsn: str,
    target_dsn: str,
    empty_dsn: str,
    queue: str,
    conn: Connection,
    connect: Connect,
    target: Connection,
) -> None:
    other = connect(empty_dsn)
    other.execute(schema_sql().encode())
    other.execute("select pgq.create_queue(%s)", [queue])
    for _ in range(3):
        if ticks != "as many":
            ops.tick(other if ticks == "more" else conn, queue)

    class Copy(kind):  # type: ignore[misc, valid-type]
        consumer = "copy"
        process_remote_event = Copier.process_remote_event

    first = Copy(dsn, target_dsn=target_dsn, queue=queue)
    second = Copy(empty_dsn, target_dsn=target_dsn, queue=queue)
    first.run(until_empty=True)
    second.register()
    for source, data in ((other, "theirs"), (conn, "ours")):
        ops.insert(source, queue, data)
        ops.tick(source, queue)
    # Before the first has done anything, and after.
    for _ in range(2):
        with pytest.raises(errors.LostPosition, match="another database's queue of this name"):
            second.run(until_empty=True)
        first.run(until_empty=True)
    assert counts(target) == {"ours": 1}


def test_run_ends_with_an_error_that_waiting_does_not_mend(
    copier: Copier, queue: str, conn: Connection, target: Connection, send: Send
) -> None:
    target.execute("select pgq_ext.set_last_tick('copier', %s, 1000000)", [queue])
    send("a")
    with pytest.raises(errors.TargetAhead):
        copier.run()


def test_unregistering_makes_the_target_forget(
    copier: Copier, target: Connection, send: Send
) -> None:
    send("a")
    copier.run(until_empty=True)
    assert copier.unregister()
    assert ops.value(target, "select count(*) from pgq_ext.progress") == 0
    send("b")
    copier.run(until_empty=True)
    send("c")
    copier.run(until_empty=True)
    assert counts(target) == {"a": 1, "c": 1}


def test_a_target_without_the_schema_is_told_how_to_get_it(
    dsn: str, empty_dsn: str, queue: str
) -> None:
    consumer = Copier(dsn, target_dsn=empty_dsn, queue=queue)
    with pytest.raises(errors.SchemaMissing, match="pgqpy migrate"):
        consumer.run()


def test_a_class_must_say_what_to_do(dsn: str, target_dsn: str, queue: str) -> None:
    class Nothing(RemoteConsumer):
        consumer = "nothing"

    with pytest.raises(TypeError, match="process_remote_batch or process_remote_event"):
        Nothing(dsn, target_dsn=target_dsn, queue=queue).run()


def test_the_loss_of_either_database_is_survived(
    copier: Copier,
    dsn: str,
    target_dsn: str,
    connect: Connect,
    conn: Connection,
    target: Connection,
    send: Send,
    background: Background,
) -> None:
    kill = (
        "select count(pg_terminate_backend(pid)) from pg_stat_activity"
        " where application_name = 'pgqpy copier' and datname = current_database()"
    )

    def wait_for(data: str) -> None:
        while data not in counts(target):
            assert thread.is_alive()

    copier.poll_interval = 0.05
    thread = background(copier)
    for data, there in [("a", target), ("b", conn), ("c", target), ("d", conn)]:
        send(data)
        wait_for(data)
        while not ops.value(there, kill):
            assert thread.is_alive()
    send("e")
    wait_for("e")
    assert counts(target) == dict.fromkeys("abcde", 1)


def test_a_handler_cannot_end_the_targets_transaction(
    dsn: str, target_dsn: str, queue: str, send: Send
) -> None:
    class Commits(Copier):
        def process_remote_event(self, target: pgqpy.Connection, event: Event) -> None:
            target.commit()

    consumer = Commits(dsn, target_dsn=target_dsn, queue=queue)
    consumer.run(until_empty=True)
    send("a")
    with pytest.raises(psycopg.ProgrammingError, match="commit"):
        consumer.run_once()


def test_the_asyncio_twin_does_the_same(
    dsn: str, target_dsn: str, queue: str, target: Connection, send: Send
) -> None:
    class Async(AsyncRemoteConsumer):
        consumer = "copier"

        async def process_remote_batch(
            self, conn: pgqpy.AsyncConnection, batch: AsyncBatch, target: pgqpy.AsyncConnection
        ) -> None:
            async for event in batch:
                await target.execute("insert into seen values (%s, 1)", [event.data])

    async def run() -> None:
        consumer = Async(dsn, target_dsn=target_dsn, queue=queue)
        await consumer.run(until_empty=True)
        await asyncio.to_thread(send, "ab")
        await consumer.run(until_empty=True)
        await consumer.run(until_empty=True)

    asyncio.run(run())
    assert counts(target) == {"a": 1, "b": 1}


@pytest.mark.reference
def test_a_queue_of_pgq_itself_can_be_the_source(
    pgq_reference_dsn: str, target_dsn: str, target: Connection, connect: Connect
) -> None:
    source = connect(pgq_reference_dsn)
    source.execute("select pgq.create_queue('theirs')")
    consumer = DiesBetween(pgq_reference_dsn, target_dsn=target_dsn, queue="theirs")
    consumer.batch_size = None
    consumer.run(until_empty=True)
    for data in "ab":
        source.execute("select pgq.insert_event('theirs', 't', %s)", [data])
        source.execute("select pgq.force_tick('theirs')")
        source.execute("select pgq.ticker('theirs')")
    with pytest.raises(Crash):
        consumer.run_once()
    consumer.run(until_empty=True)
    assert counts(target) == {"a": 1, "b": 1}


def test_a_tick_that_came_while_the_batch_was_opened_is_known_with_its_snapshot(
    conn: Connection, connect: Connect, queue: str
) -> None:
    """Otherwise `pgqpy consumer rewind` could not make the tick again."""
    ops.register(conn, queue, "c")
    statement, parameters = next_batch(queue, "c", 100, None, None, with_tick=True)
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
