"""Times are instants: whatever zones and formats database and Spark session are set to."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from psycopg import sql

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.spark_ops import ids, load, plan, read, run_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    import pgqpy
    from pgqpy_consumers.spark import SparkConsumer

pytestmark = pytest.mark.spark

# The default of sessions from then on.
SETTINGS = {
    "TimeZone": "America/New_York",
    "DateStyle": "German, DMY",
    "IntervalStyle": "sql_standard",
    "bytea_output": "escape",
    "extra_float_digits": "0",
    "client_encoding": "LATIN1",
}

# In Berlin 02:00 to 03:00 is missing on the first of these days, and is there twice on the other.
MARCH = ["2026-03-29T00:59:59.999999Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"]
OCTOBER = ["2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T01:30:00Z"]
# And in New York an hour of these.
NEW_YORK = ["2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z", "2027-03-14T07:00:00Z"]
TIMES = MARCH + OCTOBER + NEW_YORK

SCHEMA = "ev_id bigint, ev_time timestamp, at timestamp, wall timestamp_ntz, day date, price string"
ODD_TEXT = "1 € — ż"


@pytest.fixture
def odd_settings(conn: Connection) -> None:
    """Sessions of the database have `SETTINGS` from now on."""
    database = sql.Identifier(conn.info.dbname)
    for name, value in SETTINGS.items():
        conn.execute(
            sql.SQL("alter database {} set {} = {}").format(
                database, sql.Identifier(name.lower()), sql.Literal(value)
            )
        )


@pytest.fixture(params=["Europe/Berlin", "America/New_York"])
def zoned(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The session in another time zone."""
    usual = spark.conf.get("spark.sql.session.timeZone")
    assert usual is not None
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield spark
    spark.conf.set("spark.sql.session.timeZone", usual)


@pytest.fixture
def history(odd_settings: None, connect: Connect, queue: str) -> list[int]:
    """An event and then a tick at each of `TIMES`, produced with `SETTINGS`; the ids."""
    conn = connect(client_encoding="UTF8")
    assert ops.value(conn, "show datestyle") == SETTINGS["DateStyle"]
    conn.execute(
        "create table sale (id int primary key, at timestamptz, wall timestamp, day date,"
        " price text)"
    )
    conn.execute("select pgq.capture_table('sale', %s)", [queue])
    ids = []
    for number, time in enumerate(TIMES):
        conn.execute(
            "insert into sale values (%s, %s::timestamptz, '2026-03-29 02:30', '2026-10-25', %s)",
            [number, time, ODD_TEXT],
        )
        ids.append(ops.value(conn, "select max(ev_id) from pgq.event_template"))
        conn.execute("update pgq.event_template set ev_time = %s where ev_id = %s", [time, ids[-1]])
        tick = ops.tick(conn, queue)
        conn.execute("update pgq.tick set tick_time = %s where tick_id = %s", [time, tick])
    conn.execute("update pgq.tick set tick_time = '2026-01-01Z' where tick_id = 1")
    return ids


def test_instants_are_the_same_in_every_zone(
    zoned: SparkSession, dsn: str, queue: str, history: list[int]
) -> None:
    changes = load(zoned.read, SCHEMA, dsn=dsn, queue=queue, payload="row").orderBy("ev_id")
    texts = changes.selectExpr(
        "unix_micros(ev_time)", "unix_micros(at)", "string(wall)", "string(day)", "price"
    ).collect()
    micros = [round(datetime.fromisoformat(time).timestamp() * 1_000_000) for time in TIMES]
    assert [tuple(row) for row in texts] == [
        (instant, instant, "2026-03-29 02:30:00", "2026-10-25", ODD_TEXT) for instant in micros
    ]
    plain = (
        load(zoned.read, dsn=dsn, queue=queue)
        .orderBy("ev_id")
        .selectExpr("unix_micros(ev_time) as t")
    )
    assert [row.t for row in plain.collect()] == micros


def test_ranges_of_time_are_between_instants(
    zoned: SparkSession, dsn: str, queue: str, history: list[int]
) -> None:
    def between(start: str, end: str) -> list[int]:
        return ids(load(zoned.read, dsn=dsn, queue=queue, startTime=start, endTime=end))

    # The hour that is missing in Berlin, and the one that is there twice, by its two names.
    assert between("2026-03-29T00:59:59.999999Z", "2026-03-29T01:30:00Z") == history[1:3]
    assert between("2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00") == history[4:6]
    assert between("2026-11-01T01:30:00-04:00", "2026-11-01T01:30:00-05:00") == history[7:8]
    where = "ev_time >= '2026-10-25 02:30+02' and ev_time < '2026-10-25 02:30+01'"
    assert ids(load(zoned.read, dsn=dsn, queue=queue, where=where)) == history[3:5]


@pytest.mark.parametrize(
    ("time", "skipped"),
    [
        ("2026-03-29T01:30:00Z", 3),
        ("2026-03-29T03:30:00+02:00", 3),
        ("2026-10-25T02:30:00+02:00", 4),
        ("2026-10-25T02:30:00+01:00", 6),
        ("2026-11-01T01:30:00-05:00", 8),
    ],
)
def test_a_stream_starts_at_an_instant(
    dsn: str, queue: str, history: list[int], time: str, skipped: int
) -> None:
    from pgqpy_consumers.spark._options import StreamOptions
    from pgqpy_consumers.spark._reader import event_schema
    from pgqpy_consumers.spark._stream_reader import PgqStreamReader

    given = {"dsn": dsn, "queue": queue, "consumer": "c", "startingPosition": f"time:{time}"}
    options = StreamOptions.parse(given)
    stream = PgqStreamReader(options, event_schema(options))
    try:
        found = read(stream, *plan(stream))
    finally:
        stream.stop()
    assert sorted(row["ev_id"] for row in found) == history[skipped:]


def test_a_consumer_and_a_sink_work_with_odd_settings(
    spark: SparkSession, dsn: str, conn: Connection, queue: str, odd_settings: None
) -> None:
    from pgqpy_consumers.spark import SparkConsumer

    seen: list[str] = []

    class Collecting(SparkConsumer):
        consumer = "spark"

        def process_batch(self, spark: SparkSession, batch: pgqpy.Batch, df: DataFrame) -> None:
            assert batch.tick_time.tzinfo is not None
            seen.extend(row.ev_data for row in df.collect())

    consumer: SparkConsumer = Collecting(dsn, queue=queue, spark=spark)
    consumer.register()
    # More than travels in a message, so that it is copied.
    rows = spark.range(3_000).selectExpr(
        "'t' as ev_type", f"'{ODD_TEXT} ' || repeat('x', 100) as ev_data"
    )
    rows.write.format("pgq").mode("append").options(dsn=dsn, queue=queue).save()
    ops.tick(conn, queue)
    assert consumer.run_once()
    assert seen == [f"{ODD_TEXT} {'x' * 100}"] * 3_000


def test_infinite_times_are_null_in_a_stream(
    spark: SparkSession, dsn: str, conn: Connection, queue: str, tmp_path: Path
) -> None:
    ops.register(conn, queue, "c")
    table = ops.value(conn, "select pgq.current_event_table(%s)", queue)
    times = ["infinity", "-infinity", "2026-03-29T01:30:00Z", "0044-03-15 BC", "20000-01-01"]
    copy = f"copy {table} (ev_time, ev_type, ev_data) from stdin".encode()
    with conn.cursor() as cursor, cursor.copy(copy) as rows:
        for time in times:
            rows.write_row((time, "t", f'{{"at": "{time}"}}'))
    ops.tick(conn, queue)

    seen: list[tuple[str | None, ...]] = []

    def collect(df: DataFrame, _: int) -> None:
        texts = df.orderBy("ev_id").selectExpr("string(ev_time)", "string(at)")
        seen.extend(tuple(row) for row in texts.collect())

    options = {"dsn": dsn, "queue": queue, "consumer": "c", "payload": "json"}
    events = load(spark.readStream, "ev_id bigint, ev_time timestamp, at timestamp", **options)
    run_once(events.writeStream.foreachBatch(collect), tmp_path)
    expected = [None, None, "2026-03-29 01:30:00", None, None]
    assert seen == [(text, text) for text in expected]
