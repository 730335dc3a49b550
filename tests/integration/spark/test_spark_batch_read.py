"""A range of ticks is a DataFrame: pinned, read in parallel, and only what is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql.types import StructType

from pgqpy.errors import ConnectionFailed, PgqError, TickNotFound
from pgqpy_consumers.spark import PgqDataSource
from pgqpy_consumers.spark import _ranges as ranges
from pgqpy_consumers.spark._events import EventsGoneError, EventSource, Slice, cut
from tests.fixtures import queue_ops as ops
from tests.fixtures import spark_ops
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.spark_ops import ids, insert_many

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Load: TypeAlias = "Callable[..., DataFrame]"

WHOLE = Slice(None, None)


@pytest.fixture
def load(spark: SparkSession, dsn: str, queue: str) -> Load:
    """``load(option=value)``: a DataFrame of `queue`."""

    def load(schema: str | None = None, **options: str | int) -> DataFrame:
        return spark_ops.load(spark.read, schema, **{"dsn": dsn, "queue": queue} | options)

    return load


def read(source: EventSource, *parts: Slice) -> list[dict[str, Any]]:
    """The rows that executors would read."""
    return [row for part in parts for batch in source.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("schema", [None, "ev_id bigint not null, ev_data string"])
def test_a_range_is_the_same_at_each_action_and_read_in_parallel(
    load: Load, conn: Connection, connect: Connect, queue: str, schema: str | None
) -> None:
    late = connect(autocommit=False)
    early = insert_many(late, queue, 6_000)
    committed = insert_many(conn, queue, 6_000)
    lost = connect(autocommit=False)
    insert_many(lost, queue, 6_000)
    lost.rollback()
    late.commit()
    ops.tick(conn, queue)

    df = load(schema, numPartitions=3)
    if schema is not None:
        # Spark asks for nothing before the first action then.
        assert df.count() == 12_000
    insert_many(conn, queue, 10)
    ops.tick(conn, queue)
    assert ids(df) == sorted(early + committed)
    assert df.count() == df.filter("ev_data like 'data%'").count() == 12_000
    assert df.rdd.getNumPartitions() == 3
    assert load().count() == 12_010


def test_ranges_are_told_by_ticks_times_and_consumers(
    load: Load, conn: Connection, queue: str
) -> None:
    ops.register(conn, queue, "c")
    events, ticks, times = [], [], []
    for _ in range(4):
        events.append(ops.insert(conn, queue, "x"))
        times.append(ops.value(conn, "select clock_timestamp()").isoformat())
        ticks.append(ops.tick(conn, queue))
    assert ids(load()) == events
    assert ids(load(startTick=ticks[0], endTick=ticks[2])) == events[1:3]
    assert ids(load(startTick=ticks[3])) == []
    # The ticks around the times: nothing that came to light between them is missing.
    assert ids(load(startTime=times[1], endTime=times[2])) == events[1:3]
    assert ids(load(startTime=times[2], endTime="2100-01-01T00:00:00Z")) == events[2:]

    batch = ops.next_batch(conn, queue, "c")
    conn.execute("select pgq.event_retry(%s, %s, 0)", (batch, events[0]))
    ops.finish(conn, batch)
    conn.execute("select pgq.maint_retry_events()")
    ops.tick(conn, queue)
    position = ranges.position(conn, queue, "c")
    # Its retried event is among them, and it is where it was.
    assert ids(load(consumer="c")) == events
    assert ranges.position(conn, queue, "c") == position
    assert ids(load()) == events


def test_a_condition_is_applied_in_the_database(load: Load, conn: Connection, queue: str) -> None:
    from pyspark.errors import PySparkException

    raw = "select pgq.insert_event_raw(%s, null, %s, null, null, %s, 'd', null, null, null, null)"
    for time, kind in [
        ("2024-03-31 00:59:59.999999+00", "a"),
        ("2024-03-31 01:00:00+00", "it's"),
        ("infinity", None),
    ]:
        conn.execute(raw, (queue, time, kind))
    ops.tick(conn, queue)

    def types(where: str) -> list[str | None]:
        rows = load(where=where, columns="ev_type, ev_time").orderBy("ev_type").collect()
        return [row.ev_type for row in rows]

    assert types("ev_type = 'it''s' or ev_type is null") == [None, "it's"]
    # The hour after that second is missing in Berlin; infinity is no time in Spark.
    assert types("ev_time >= '2024-03-31 03:00 Europe/Berlin'") == ["it's"]
    assert types("ev_time is null") == [None]
    with pytest.raises(PySparkException, match="not a condition over events"):
        types("true) or (select true")


def test_only_what_is_asked_is_fetched(conn: Connection, queue: str) -> None:
    ops.insert(conn, queue, "x")
    ops.tick(conn, queue)
    source = ranges.range_source(
        conn,
        queue,
        ranges.earliest(conn, queue),
        ranges.newest(conn, queue),
        columns=("ev_type", "ev_id"),
        where="ev_type = 'test'",
    )
    assert [list(row) for row in read(source, WHOLE)] == [["ev_type", "ev_id"]]
    plan = conn.execute(f"explain {source.statement(WHOLE)}".encode()).fetchall()
    # By the scans of the tables, and not after them.
    assert "(ev_owner IS NULL) AND (ev_type = 'test'" in str(plan).replace("\\'", "'")


def test_payloads_become_columns(load: Load, conn: Connection, queue: str) -> None:
    event = ops.insert(conn, queue, '{"amount": 3, "name": "x", "more": null}')
    ops.tick(conn, queue)
    rows = load("name string, ev_id bigint, amount int", payload="json").collect()
    assert [tuple(row) for row in rows] == [("x", event, 3)]


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("column", "options", "error"),
    [
        (None, {"startTik": "1"}, "no option 'startTik' for reading a queue"),
        (None, {"queue": "no such queue"}, "queue 'no such queue' does not exist"),
        (None, {"startTick": "999"}, "tick 999 of queue 'test_queue' is not available"),
        (None, {"startTick": "2", "endTick": "1"}, "from 2 to 1 runs backwards"),
        (None, {"consumer": "unknown"}, "consumer 'unknown' is not registered"),
        (None, {"columns": "ev_id, amount"}, "option columns names 'amount'"),
        ("integer", {}, "events have no column ev_id:int"),
        ("long", {"columns": "ev_type"}, "disagree"),
        (None, {"payload": "json"}, "needs .schema"),
    ],
)
def test_what_is_wrong_is_named(
    dsn: str, conn: Connection, queue: str, column: str | None, options: Any, error: str
) -> None:
    ops.tick(conn, queue)
    source = PgqDataSource({"dsn": dsn, "queue": queue} | options)
    with pytest.raises(PgqError, match=error):
        source.reader(StructType().add("ev_id", column) if column else source.schema()).partitions()


def test_what_rotation_has_taken_is_an_error(load: Load, conn: Connection, queue: str) -> None:
    from pyspark.errors import PySparkException

    ops.rotate_whenever_asked(conn, queue)
    ops.register(conn, queue, "c")
    time = ops.value(conn, "select now()")
    ops.insert(conn, queue, "x")
    ops.tick(conn, queue)
    df, planned_late = load(), load()
    source = ranges.range_source(
        conn, queue, ranges.earliest(conn, queue), ranges.newest(conn, queue)
    )
    assert df.count() == len(read(source, WHOLE)) == 1
    ops.rotate_idle(conn, queue, "c", 3)
    with pytest.raises(PySparkException, match="tick 1 of queue 'test_queue' is not available"):
        planned_late.count()
    with pytest.raises(PySparkException, match="rotation has removed them"):
        df.count()
    with pytest.raises(EventsGoneError, match=r"ticks 1 to 2 .* rotation has removed them"):
        read(source, WHOLE)
    with pytest.raises(TickNotFound, match="later than"):
        ranges.before(conn, queue, time)


def test_a_queue_that_was_made_anew_is_another(load: Load, conn: Connection, queue: str) -> None:
    from pyspark.errors import PySparkException

    ops.insert(conn, queue, "x")
    ops.tick(conn, queue)
    df = load()
    offset = ranges.newest(conn, queue)
    source = ranges.range_source(conn, queue, ranges.earliest(conn, queue), offset)
    ranges.check(conn, queue, offset)
    conn.execute("select pgq.drop_queue(%s)", [queue])
    with pytest.raises(EventsGoneError, match="the queue was dropped"):
        read(source, WHOLE)
    conn.execute("select pgq.create_queue(%s)", [queue])
    ops.insert(conn, queue, "y")
    ops.tick(conn, queue)
    with pytest.raises(PySparkException, match="tick 2 is of an earlier queue 'test_queue'"):
        df.count()
    assert ranges.fingerprint(conn, queue) != offset.queue


def test_a_database_that_was_put_back_in_time_is_recognised(conn: Connection, queue: str) -> None:
    from dataclasses import replace

    offset = ranges.newest(conn, queue)
    with pytest.raises(ranges.ForeignOffset, match="restored to an earlier time"):
        ranges.check(conn, queue, replace(offset, tick=offset.tick + 1))
    with pytest.raises(ranges.ForeignOffset, match="restored to an earlier time"):
        ranges.check(conn, queue, replace(offset, snapshot="1:2:"))


def test_an_offset_outlives_its_tick(conn: Connection, connect: Connect, queue: str) -> None:
    open_early = connect(autocommit=False)
    insert_many(open_early, queue, 3)
    start = ranges.newest(conn, queue)
    events = insert_many(conn, queue, 5)
    ops.tick(conn, queue)
    end = ranges.newest(conn, queue)
    open_early.commit()
    ops.tick(conn, queue)
    conn.execute("delete from pgq.tick_0")
    conn.execute("delete from pgq.tick_1")

    source = ranges.range_source(conn, queue, start, end)
    parts = cut(start.seq + 1, end.seq, 4)
    assert [row["ev_id"] for row in read(source, *parts)] == events


def test_an_executor_that_cannot_connect_says_to_what(
    load: Load, dsn: str, conn: Connection, queue: str
) -> None:
    from dataclasses import replace

    from pyspark.errors import PySparkException

    ops.tick(conn, queue)
    start, end = ranges.earliest(conn, queue), ranges.newest(conn, queue)
    wrong = make_conninfo(dsn, host="127.0.0.1", port=1, password="open sesame")
    source = replace(ranges.range_source(conn, queue, start, end), conninfo=wrong)
    with pytest.raises(ConnectionFailed, match=r"cannot connect to host=127\.0\.0\.1") as failed:
        read(source, WHOLE)
    assert "pg_hba.conf" in str(failed.value)
    with pytest.raises(PySparkException, match=r"127\.0\.0\.1") as refused:
        load(dsn=wrong, password="open sesame")
    assert "sesame" not in f"{failed.value!s} {refused.value!s} {source!r}"


def test_reading_takes_the_rights_of_a_reader(
    load: Load, dsn: str, conn: Connection, queue: str
) -> None:
    ops.insert(conn, queue, "x")
    ops.tick(conn, queue)
    conn.execute("create role spark_reader login in role pgq_reader")
    try:
        assert load(dsn=make_conninfo(dsn, user="spark_reader")).count() == 1
    finally:
        conn.execute("drop role spark_reader")
