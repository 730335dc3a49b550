"""Structured Streaming from a queue: offsets are ticks, and the consumer follows the checkpoint.

Most tests call the reader as Spark does, one method after the other; the last ones are Spark's.
"""

from __future__ import annotations

import os
import pickle
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest
from psycopg.conninfo import make_conninfo

from pgqpy.errors import ConsumerInUse, InvalidParameter, TickNotFound
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_example import SPARK_PATIENCE
from tests.fixtures.fix_ticker import PATIENCE, eventually
from tests.fixtures.spark_ops import Place, load, plan, read, run_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pgqpy_consumers.spark._stream_reader import PgqStreamReader

pytestmark = pytest.mark.spark

Call: TypeAlias = Callable[[], object]
CONSUMER = "stream"


@dataclass(frozen=True)
class Source:
    """A queue, and readers of its stream."""

    conn: Connection
    dsn: str
    queue: str
    made: list[PgqStreamReader] = field(default_factory=list)

    def reader(self, **options: str) -> PgqStreamReader:
        """What a run of a query has on its driver."""
        from pgqpy_consumers.spark._options import StreamOptions
        from pgqpy_consumers.spark._reader import event_schema
        from pgqpy_consumers.spark._stream_reader import PgqStreamReader

        given = {"dsn": self.dsn, "queue": self.queue, "consumer": CONSUMER} | options
        parsed = StreamOptions.parse(given)
        self.made.append(PgqStreamReader(parsed, event_schema(parsed)))
        return self.made[-1]

    def produce(self, *data: str) -> int:
        """Events, and a tick behind them; returns its id."""
        return ops.insert_ticked(self.conn, self.queue, *data)

    def planned(self, data: str, **options: str) -> tuple[PgqStreamReader, Place, Place]:
        """A run, and where its first micro-batch with an event starts and ends."""
        stream = self.reader(**options)
        start, _ = plan(stream)
        self.produce(data)
        return stream, *plan(stream, start)

    def position(self) -> int | None:
        """Where the consumer stands."""
        tick: int | None = ops.value(
            self.conn,
            "select last_tick from pgq.get_consumer_info(%s, %s)",
            self.queue,
            CONSUMER,
        )
        return tick


@pytest.fixture
def source(conn: Connection, dsn: str, queue: str) -> Iterator[Source]:
    made = Source(conn, dsn, queue)
    yield made
    for one in made.made:
        one.stop()


def payloads(reader: PgqStreamReader, start: Place, end: Place) -> list[str]:
    """The events of a micro-batch."""
    return sorted(row["ev_data"] for row in read(reader, start, end))


def test_micro_batches_hold_each_event_once_in_the_order_of_commits(
    source: Source, connect: Callable[..., Connection]
) -> None:
    stream = source.reader()
    late = connect(autocommit=False)
    ops.insert(late, source.queue, "late")
    start, end = plan(stream)
    assert (start, payloads(stream, start, end)) == (end, [])

    source.produce("a", "b")
    start, end = plan(stream, start)
    assert payloads(stream, start, end) == ["a", "b"]
    late.commit()
    source.produce("c")
    start, end = plan(stream, end)
    assert payloads(stream, start, end) == ["c", "late"]
    assert plan(stream, end) == (end, end)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("consumer", ["second", "third"]),
        ("earliest", ["first", "second", "third"]),
        ("latest", []),
        ("tick:{}", ["third"]),
        ("time:{}", ["third"]),
        ("time:2000-01-01T00:00:00Z", ["first", "second", "third"]),
    ],
)
def test_a_new_query_starts_where_it_is_told(
    source: Source, told: str, expected: list[str]
) -> None:
    first = source.produce("first")
    second = source.produce("second")
    source.produce("third")
    source.conn.execute(
        "select pgq.register_consumer_at(%s, %s, %s)", [source.queue, CONSUMER, first]
    )
    time = ops.value(source.conn, "select tick_time from pgq.tick where tick_id = %s", second)
    place = time.isoformat() if told.startswith("time") else second

    stream = source.reader(startingPosition=told.format(place))
    start, end = plan(stream)
    assert payloads(stream, start, end) == expected
    # It is protected from there on, also where the consumer was further.
    assert source.position() == start["tick"]


def test_a_consumer_that_is_not_there_is_registered(source: Source) -> None:
    newest = source.produce("before")
    start, end = plan(source.reader())
    assert (start["tick"], end["tick"]) == (newest, newest)
    assert source.position() == newest


def test_the_first_micro_batch_is_the_same_after_a_restart(source: Source) -> None:
    killed = source.reader(startingPosition="latest")
    start = killed.initialOffset()
    source.produce("planned")
    assert killed.initialOffset() == start
    _, end = plan(killed, start)
    killed.stop()
    source.produce("later")

    restarted = source.reader(startingPosition="latest")
    start = restarted.initialOffset()
    assert start["tick"] > end["tick"]
    assert payloads(restarted, start, end) == ["planned"]
    start, end = plan(restarted, end)
    assert payloads(restarted, start, end) == ["later"]


def test_an_empty_first_micro_batch_stays_empty_after_a_restart(source: Source) -> None:
    killed = source.reader(startingPosition="latest")
    _, end = plan(killed)
    killed.stop()
    source.produce("later")
    restarted = source.reader(startingPosition="latest")
    assert payloads(restarted, restarted.initialOffset(), end) == []
    start, end = plan(restarted, end)
    assert payloads(restarted, start, end) == ["later"]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, [["a", "b", "c", "d", "e", "f"]]),
        ({"maxTicksPerTrigger": "1"}, [["a"], ["b", "c", "d"], ["e"], ["f"]]),
        ({"maxTicksPerTrigger": "2"}, [["a", "b", "c", "d"], ["e", "f"]]),
        # One tick may be more than that; never less than one.
        ({"maxEventsPerTrigger": "2"}, [["a"], ["b", "c", "d"], ["e", "f"]]),
        ({"maxEventsPerTrigger": "4"}, [["a", "b", "c", "d"], ["e", "f"]]),
        ({"maxEventsPerTrigger": "4", "maxTicksPerTrigger": "1"},
         [["a"], ["b", "c", "d"], ["e"], ["f"]]),
    ],
)  # fmt: skip
def test_limits_end_micro_batches_at_ticks(
    source: Source, limits: dict[str, str], expected: list[list[str]]
) -> None:
    source.produce("before")
    stream = source.reader(**limits)
    start, end = plan(stream)
    # Forced ticks would count for thousands of events.
    source.conn.execute("select pgq.set_queue_config(%s, 'ticker_max_count', '1')", [source.queue])
    for part in ["a", "bcd", "e", "f"]:
        for data in part:
            ops.insert(source.conn, source.queue, data)
        assert ops.value(source.conn, "select pgq.ticker(%s)", source.queue)
    seen = []
    while (batch := plan(stream, end)) != (end, end):
        start, end = batch
        seen.append(payloads(stream, start, end))
    assert seen == expected


def test_a_condition_is_applied_in_the_database(source: Source) -> None:
    stream = source.reader(where="ev_data like 'a%' or ev_data is null", columns="ev_data")
    start, end = plan(stream)
    source.produce("abc", "b", "a")
    start, end = plan(stream, end)
    assert payloads(stream, start, end) == ["a", "abc"]
    # Events that it leaves out are done, too.
    source.produce("b")
    start, end = plan(stream, end)
    assert payloads(stream, start, end) == []
    plan(stream, end)
    assert source.position() == end["tick"]

    wrong = source.reader(where="true) or (select true", consumer="wrong")
    source.produce("a")
    with pytest.raises(InvalidParameter, match="not a condition over events"):
        wrong.partitions(*plan(wrong, end))


def test_what_comes_after_the_start_is_not_available_now(source: Source) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    ops.register(source.conn, source.queue, CONSUMER)
    source.produce("a")
    source.produce("b")
    stream = source.reader(maxTicksPerTrigger="1")
    stream.prepareForTriggerAvailableNow()
    source.produce("too late")
    start, end = plan(stream)
    assert payloads(stream, start, end) == ["a"]
    # Spark may overrule the options, but not the moment of the start.
    end = stream.latestOffset(start, ReadAllAvailable())
    assert payloads(stream, start, end) == ["a", "b"]
    assert stream.reportLatestOffset() == {key: end[key] for key in start}
    assert plan(stream, end) == (end, end)


def test_the_consumer_follows_what_is_committed_and_an_idle_stream_too(source: Source) -> None:
    stream = source.reader()
    start, end = plan(stream)
    source.produce("a")
    start, end = plan(stream, end)
    assert source.position() == start["tick"] < end["tick"]
    assert plan(stream, end) == (end, end)
    assert source.position() == end["tick"]
    assert ops.value(source.conn, "select pending_events from pgq.get_consumer_info()") == 0


def test_rotation_keeps_what_an_uncommitted_micro_batch_may_read_again(source: Source) -> None:
    ops.rotate_whenever_asked(source.conn, source.queue)
    stream, start, end = source.planned("a")
    for _ in range(5):
        ops.tick(source.conn, source.queue)
        ops.rotate(source.conn, source.queue)
    for _ in range(2):
        assert payloads(stream, start, end) == ["a"]
    # And it goes on when the stream does.
    before = ops.rotations(source.conn, source.queue)
    for _ in range(4):
        start, end = plan(stream, end)
        ops.tick(source.conn, source.queue)
        ops.rotate(source.conn, source.queue)
    assert ops.rotations(source.conn, source.queue) > before


def test_ticks_that_the_log_forgets_are_not_needed(source: Source) -> None:
    stream = source.reader()
    start, _ = plan(stream)
    source.produce("a")
    _, middle = plan(stream, start)
    source.produce("b")
    source.conn.execute("update pgq.tick_0 set tick_early = tick_id = %s", [middle["tick"]])
    ops.rotate_logs(source.conn)
    gone = "select count(*) from pgq.tick where tick_id = %s"
    assert ops.value(source.conn, gone, middle["tick"]) == 0

    assert payloads(stream, start, middle) == ["a"]
    _, end = plan(stream, middle)
    assert source.position() == start["tick"]
    assert payloads(stream, middle, end) == ["b"]


def lose(source: Source) -> int:
    """Rotate all events away, since no consumer is registered; returns the last tick."""
    source.conn.execute("select pgq.unregister_consumer(%s, %s)", [source.queue, CONSUMER])
    ops.rotate_whenever_asked(source.conn, source.queue)
    for _ in range(4):
        tick = ops.tick(source.conn, source.queue)
        assert ops.rotate(source.conn, source.queue)
    return tick


def test_what_rotation_took_is_an_error_that_names_the_option(source: Source) -> None:
    stream, start, end = source.planned("lost")
    lose(source)
    calls: list[Call] = [lambda: stream.partitions(start, end), lambda: plan(stream, start)]
    for call in calls:
        with pytest.raises(TickNotFound, match=r"(?s)rotation has removed.*failOnDataLoss"):
            call()


def test_with_fail_on_data_loss_off_a_stream_goes_on_with_what_there_is(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    stream, start, end = source.planned("lost", failOnDataLoss="false")
    lose(source)
    source.produce("kept")

    assert payloads(stream, start, end) == []
    start, end = plan(stream, end)
    assert payloads(stream, start, end) == ["kept"]
    assert "rotation has removed events" in caplog.text
    plan(stream, end)
    assert source.position() == end["tick"]


def test_a_queue_made_anew_is_refused(source: Source) -> None:
    from pgqpy_consumers.spark._ranges import ForeignOffset

    stream, start, end = source.planned("a")
    assert plan(stream, end) == (end, end)
    source.conn.execute("select pgq.drop_queue(%s, true)", [source.queue])
    source.conn.execute("select pgq.create_queue(%s)", [source.queue])
    for _ in range(5):
        source.produce("b")
    calls: list[Call] = [lambda: stream.partitions(start, end), lambda: plan(stream, end)]
    for call in calls:
        with pytest.raises(ForeignOffset, match=r"(?s)made\s+anew.*new checkpoint"):
            call()


def test_a_database_set_back_in_time_is_refused(source: Source) -> None:
    from pgqpy_consumers.spark._ranges import ForeignOffset

    stream, start, end = source.planned("a")
    # The state after a restore to an earlier time: the tick is not there yet,
    ahead = end | {"tick": end["tick"] + 10}
    # or was made once more.
    other = end | {"snapshot": "1:1:"}
    for place in [ahead, other]:
        with pytest.raises(ForeignOffset, match="another history"):
            plan(stream, place)
        with pytest.raises(ForeignOffset, match="another history"):
            stream.partitions(start, place)


def test_two_queries_with_one_consumer_are_refused(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqpy_consumers.spark._driver_session.PATIENCE", 0.05)
    first, second = source.reader(), source.reader()
    _, end = plan(first)
    remedy = r"(?s)another query streams.*session \d+ since 20.*pg_terminate_backend\(\d+\)"
    calls: list[Call] = [second.initialOffset, lambda: plan(second, end)]
    for call in calls:
        with pytest.raises(ConsumerInUse, match=remedy):
            call()
    plan(source.reader(consumer="another"))
    # The server may take a moment to end the session.
    monkeypatch.undo()
    first.stop()
    plan(second, end)


def test_a_driver_whose_network_was_cut_ends_its_old_session(source: Source) -> None:
    stream = source.reader()
    start, _ = plan(stream)
    lost = stream._session._conn
    assert lost is not None
    # The server's end stays open, so the server notices nothing by itself; this one is cut.
    open_end = os.dup(lost.fileno())
    try:
        cut, other = socket.socketpair()
        other.close()
        os.dup2(cut.fileno(), lost.fileno())
        assert plan(stream, start)[0] == start
    finally:
        os.close(open_end)
        cut.close()
    gone = "select not exists (select from pg_stat_activity where pid = %s)"
    eventually(source.conn, gone, lost.info.backend_pid)


def test_the_server_notices_a_driver_that_is_gone_before_the_next_one_gives_up(
    source: Source,
) -> None:
    from pgqpy_consumers.spark import _driver_session

    # Settings of the connection are those of TCP, which the test's has not: what is asked for.
    asked = dict(re.findall(r"\('(tcp_\w+)', '(\d+)s?'\)", _driver_session._SETTINGS))
    known = "select count(*) from pg_settings where name = any(%s)"
    assert ops.value(source.conn, known, list(asked)) == len(asked) == 4
    keepalives = [int(asked[f"tcp_keepalives_{name}"]) for name in ("idle", "interval", "count")]
    idle, interval, count = keepalives
    assert idle + interval * count <= _driver_session.NOTICED < _driver_session.PATIENCE
    assert int(asked["tcp_user_timeout"]) <= _driver_session.NOTICED


def test_a_driver_that_died_a_moment_ago_is_waited_for(source: Source) -> None:
    dead, next_run = source.reader(), source.reader()
    _, end = plan(dead)
    waiting = threading.Thread(target=plan, args=(next_run, end))
    waiting.start()
    eventually(
        source.conn, "select count(*) from pg_locks where locktype = 'advisory' and not granted"
    )
    dead.stop()
    waiting.join(PATIENCE)
    assert plan(next_run, end) == (end, end)


def test_a_consumer_that_was_moved_on_is_refused(source: Source) -> None:
    stream = source.reader()
    _, end = plan(stream)
    newest = source.produce("a")
    source.conn.execute(
        "select pgq.register_consumer_at(%s, %s, %s)", [source.queue, CONSUMER, newest]
    )
    with pytest.raises(ConsumerInUse, match=r"(?s)stands at tick \d+ already.*register_consumer"):
        plan(stream, end)
    # The hint says: a checkpoint may be an old one on purpose.
    source.conn.execute(
        "select pgq.register_consumer_at(%s, %s, %s)", [source.queue, CONSUMER, end["tick"]]
    )
    start, end = plan(stream, end)
    assert payloads(stream, start, end) == ["a"]


@pytest.mark.parametrize("told", ["consumer", "earliest"])
def test_a_consumer_with_an_open_batch_is_refused(source: Source, told: str) -> None:
    source.produce("earlier")
    ops.register(source.conn, source.queue, CONSUMER)
    source.produce("a")
    batch = ops.next_batch(source.conn, source.queue, CONSUMER)
    with pytest.raises(ConsumerInUse, match=rf"(?s)has batch {batch}.*finish_batch\({batch}\)"):
        plan(source.reader(startingPosition=told))
    assert ops.payloads(source.conn, batch) == ["a"]


def test_a_lost_session_is_made_again(source: Source) -> None:
    stream = source.reader()
    start, _ = plan(stream)
    source.produce("a")
    kill = (
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
        " where application_name = 'pgqpy stream stream'"
    )
    assert source.conn.execute(kill.encode()).fetchall() == [(True,)]
    start, end = plan(stream, start)
    assert source.conn.execute(kill.encode()).fetchall() == [(True,)]
    assert payloads(stream, start, end) == ["a"]


def test_the_role_of_readers_is_enough(source: Source) -> None:
    source.conn.execute("create role streaming_reader login in role pgq_reader")
    try:
        stream = source.reader(
            dsn=make_conninfo(source.dsn, user="streaming_reader"), maxEventsPerTrigger="10"
        )
        start, _ = plan(stream)
        source.produce("a")
        start, end = plan(stream, start)
        assert payloads(stream, start, end) == ["a"]
        plan(stream, end)
        assert source.position() == end["tick"]
    finally:
        source.conn.execute("drop role streaming_reader")


def test_no_session_and_no_visible_password_goes_to_executors(source: Source) -> None:
    stream, start, end = source.planned("a", dsn=make_conninfo(source.dsn, password="open sesame"))
    partitions = stream.partitions(start, end)
    assert "sesame" not in repr(partitions) + repr(start) + repr(end) + repr(vars(stream))
    copy = pickle.loads(pickle.dumps(stream))
    sessions = (
        "select count(*) = 1 from pg_stat_activity where application_name = 'pgqpy stream stream'"
    )
    assert [batch.num_rows for batch in copy.read(partitions[0])] == [1]
    eventually(source.conn, sessions)


# --- in Spark


def test_available_now_takes_up_where_the_last_run_ended(
    spark: SparkSession, dsn: str, conn: Connection, queue: str, tmp_path: Path
) -> None:
    batches: list[list[str]] = []

    def run(**options: str) -> None:
        events = load(spark.readStream, dsn=dsn, queue=queue, consumer=CONSUMER, **options)
        writer = events.writeStream.foreachBatch(
            lambda df, _: batches.append(sorted(row.ev_data for row in df.collect()))
        )
        run_once(writer, tmp_path)

    ops.register(conn, queue, CONSUMER)
    for part in ["ab", "c", "d"]:
        ops.insert_ticked(conn, queue, *part)
    run(maxTicksPerTrigger="2")
    assert batches == [["a", "b", "c"], ["d"]]
    newest = ops.insert_ticked(conn, queue, "e")
    run()
    assert batches[2:] == [["e"]]
    # It stopped after it had asked whether there is more.
    position = "select last_tick from pgq.get_consumer_info(%s, %s)"
    assert ops.value(conn, position, queue, CONSUMER) == newest


def test_a_running_query_brings_events_and_lets_the_consumer_follow(
    spark: SparkSession, dsn: str, conn: Connection, queue: str, tmp_path: Path
) -> None:
    ops.register(conn, queue, CONSUMER)
    newest = ops.insert_ticked(conn, queue, *(str(number) for number in range(1000)))
    query = (
        load(spark.readStream, dsn=dsn, queue=queue, consumer=CONSUMER, numPartitions=2)
        .groupBy("ev_type")
        .count()
        .writeStream.format("memory")
        .queryName("counts")
        .outputMode("complete")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        where = "select last_tick = %s from pgq.get_consumer_info(%s, %s)"
        eventually(conn, where, newest, queue, CONSUMER, patience=SPARK_PATIENCE)
        newest = ops.insert_ticked(conn, queue, "1", "2")
        eventually(conn, where, newest, queue, CONSUMER, patience=SPARK_PATIENCE)
        assert spark.table("counts").collect() == [("test", 1002)]
        assert query.lastProgress is not None
    finally:
        query.stop()
