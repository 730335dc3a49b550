"""Captured rows are decoded to the table's values, in each of the formats."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, DecimalType, StringType, StructType

from pgqpy.errors import InvalidParameter
from pgqpy_consumers.spark._options import EventOptions
from pgqpy_consumers.spark._tables import table_schema
from pgqpy_consumers.spark.payload import Decoder, MalformedPayload
from tests.fixtures import queue_ops as ops
from tests.fixtures import spark_ops
from tests.fixtures.fix_db import Connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ["row_json", "jsontriga", "logutriga"]

# (type, its type in Spark, a value in SQL, the value in Spark)
COLUMNS = {
    "b": ("bool", "boolean", "false", False),
    "i2": ("int2", "smallint", "-1", -1),
    "i4": ("int4", "int", "2147483647", 2**31 - 1),
    "i8": ("int8", "bigint", "-9223372036854775808", -(2**63)),
    "n": ("numeric(12,3)", "decimal(12,3)", "-1.500", Decimal("-1.500")),
    "nn": ("numeric", "decimal(38,18)", "1/3.0", Decimal("0.333333333333333333")),
    "nan": ("numeric(5,2)", "decimal(5,2)", "'NaN'", None),
    "long": ("numeric(50,2)", "string", "1.10", "1.10"),
    "r": ("float4", "float", "0.5", 0.5),
    "f": ("float8", "double", "'-infinity'", float("-inf")),
    "t": ("text", "string",
          "e'q\"\\\\/\\n\\x01\\x7f é 🛫 ~-_.!*()&=+%?'",
          'q"\\/\n\x01\x7f é 🛫 ~-_.!*()&=+%?'),
    "c": ("char(3)", "string", "'a'", "a  "),
    "d": ("date", "date", "'2024-02-29'", date(2024, 2, 29)),
    "bc": ("date", "date", "'0044-03-15 BC'", None),
    "ts": ("timestamp(3)", "timestamp_ntz", "'2024-03-31 02:30:00.125'",
           datetime(2024, 3, 31, 2, 30, 0, 125_000)),  # noqa: DTZ001
    "tz": ("timestamptz", "timestamp", "'2024-10-27 00:30:00+00'",
           datetime(2024, 10, 27, 0, 30, tzinfo=UTC)),
    "old": ("timestamptz", "timestamp", "'1800-01-01 00:00:00+00'",
            datetime(1800, 1, 1, tzinfo=UTC)),
    "never": ("timestamptz", "timestamp", "'infinity'", None),
    "by": ("bytea", "binary", "'\\xdead005c'", b"\xde\xad\0\\"),
    "j": ("jsonb", "string", """'{"a": [1.50, "x"]}'""", '{"a": [1.50, "x"]}'),
    "u": ("uuid", "string", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
          "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "en": ("mood", "string", "'so \"so\"'", 'so "so"'),
    "dm": ("price", "decimal(7,2)", "3", Decimal("3.00")),
    "ar": ("int[]", "array<int>", "'{1,NULL,3}'", [1, None, 3]),
    "ta": ("text[]", "array<string>", """array['a b', 'c"d\\', null, 'NULL', '']""",
           ["a b", 'c"d\\', None, "NULL", ""]),
    "pa": ("price[]", "array<decimal(7,2)>", "'{1.5}'", [Decimal("1.50")]),
    "da": ("timestamptz[]", "array<timestamp>", "array['2024-06-01 12:00+02'::timestamptz]",
           [datetime(2024, 6, 1, 10, tzinfo=UTC)]),
    "W k=&": ("text", "string", "''", ""),
    "none": ("int", "int", "null", None),
}  # fmt: skip

TYPES = """
    create type mood as enum ('so "so"');
    create domain amount as numeric(7,2);
    create domain price as amount check (value > 0);
"""


@pytest.fixture
def odd(conn: Connection) -> str:
    """A table with a column for each of `COLUMNS`."""
    conn.execute(TYPES)
    columns = ", ".join(f'"{name}" {column[0]}' for name, column in COLUMNS.items())
    conn.execute(f"create table odd (id int primary key, gone int, {columns})")
    conn.execute("alter table odd drop column gone")
    return "public.odd"


def decoded(conn: Connection, schema: StructType, **options: str) -> list[dict[str, Any]]:
    """The events that there are, as executors decode them."""
    given = {"queue": "q", "payload": "row"} | options
    decoder = Decoder.for_options(EventOptions.parse(given), schema)
    rows = conn.execute(
        f"select {', '.join(decoder.columns)} from pgq.event_template order by ev_id"
    ).fetchall()
    events = pa.record_batch(
        [pa.array(values) for values in zip(*rows, strict=True)], list(decoder.columns)
    )
    found: list[dict[str, Any]] = decoder.decode(events).to_pylist()
    return found


def test_a_tables_schema_is_derived_from_its_columns(conn: Connection, dsn: str, odd: str) -> None:
    schema = table_schema(conn, odd)
    assert [f"{f.name} {f.dataType.simpleString()}" for f in schema] == [
        "ev_id bigint", "ev_time timestamp", "ev_operation string", "ev_table string",
        "ev_key array<string>", "id int", *(f"{name} {c[1]}" for name, c in COLUMNS.items()),
    ]  # fmt: skip
    assert table_schema(dsn, odd) == schema


def test_a_table_that_is_not_there_or_has_an_events_column_is_refused(conn: Connection) -> None:
    with pytest.raises(InvalidParameter, match=r"no table public\.nothing"):
        table_schema(conn, "public.nothing")
    conn.execute("create table clash (ev_id int)")
    with pytest.raises(InvalidParameter, match="has a column ev_id, which events have"):
        table_schema(conn, "clash")


def test_numerics_whose_scale_is_odd_have_a_type_that_holds_them(conn: Connection) -> None:
    if conn.info.server_version < 150000:
        pytest.skip("scales below 0 and above the precision came with PostgreSQL 15")
    conn.execute(
        "create table n (a numeric(5,-2), b numeric(3,5), c numeric(38,38), d numeric(39))"
    )
    types = [column.dataType for column in table_schema(conn, "n").fields[5:]]
    assert types == [DecimalType(7, 0), DecimalType(5, 5), DecimalType(38, 38), StringType()]


SETTINGS = [
    "",
    "set timezone = 'Europe/Berlin'; set bytea_output = 'escape'; set intervalstyle = 'iso_8601'",
]


@pytest.mark.parametrize("settings", SETTINGS, ids=["default settings", "other settings"])
@pytest.mark.parametrize("form", FORMATS)
def test_every_format_of_a_capture_gives_the_values_of_the_table(
    conn: Connection, queue: str, odd: str, form: str, settings: str
) -> None:
    if settings:
        conn.execute(settings)
    conn.execute("select pgq.capture_table(%s, %s, format => %s)", [odd, queue, form])
    values = ", ".join(column[2] for column in COLUMNS.values())
    # Above what is read payload by payload.
    conn.execute(f"insert into odd select n, {values} from generate_series(1, 300) n")
    conn.execute("update odd set t = 'new' where id = 1; delete from odd where id = 1")
    conn.execute("truncate odd")

    rows = decoded(conn, table_schema(conn, odd))
    expected = {name: column[3] for name, column in COLUMNS.items()}
    for number, row in enumerate(rows[:300], 1):
        assert {name: row[name] for name in expected} == expected
        assert (row["id"], row["ev_operation"], row["ev_key"], row["ev_table"]) == (
            *(number, "INSERT", ["id"]),
            "public.odd",
        )
    updated, deleted, truncated = rows[300:]
    assert (updated["ev_operation"], updated["t"]) == ("UPDATE", "new")
    assert (deleted["ev_operation"], deleted["id"], deleted["t"]) == ("DELETE", 1, "new")
    assert truncated["ev_operation"] == "TRUNCATE"
    assert {truncated[name] for name in ["id", *COLUMNS]} == {None}


@pytest.mark.parametrize("form", FORMATS)
def test_a_column_that_was_renamed_or_came_later_is_not_taken_for_null(
    conn: Connection, queue: str, form: str
) -> None:
    conn.execute("create table t (id int primary key, name text)")
    conn.execute("select pgq.capture_table('t', %s, format => %s)", [queue, form])
    before = table_schema(conn, "t")
    conn.execute("insert into t values (1, 'first'), (2, null); truncate t")
    assert [row["name"] for row in decoded(conn, before)] == ["first", None, None]

    conn.execute("alter table t rename name to title; alter table t add note text")
    conn.execute("insert into t values (3, 'third', null)")
    after = table_schema(conn, "t")
    with pytest.raises(MalformedPayload, match="it has no column name"):
        decoded(conn, before)
    with pytest.raises(MalformedPayload, match="it has no column title"):
        decoded(conn, after)
    rows = decoded(conn, after, optional="title, note")
    assert [row["title"] for row in rows] == [None, None, None, "third"]
    assert [row["name"] for row in decoded(conn, before, malformed="drop")] == ["first", None, None]


# in Spark


def load(
    spark: SparkSession, dsn: str, queue: str, schema: StructType, **options: str
) -> DataFrame:
    given = {"dsn": dsn, "queue": queue, "payload": "row"} | options
    return spark_ops.load(spark.read, schema, **given)


def contents(df: DataFrame) -> list[tuple[int, str, str | None]]:
    return sorted((row["a"], row["b c"], row["v"]) for row in df.collect())


@pytest.mark.spark
def test_the_latest_rows_are_those_of_the_table(
    spark: SparkSession, conn: Connection, dsn: str, queue: str
) -> None:
    from pgqpy_consumers.spark._tables import latest_rows

    conn.execute('create table t (a int, "b c" bytea, v text, primary key (a, "b c"))')
    conn.execute("create table other (a int primary key, v text)")
    for table in ("t", "other"):
        conn.execute("select pgq.capture_table(%s, %s)", [table, queue])
    conn.execute("insert into t values (1, '1', 'before the truncate'); truncate t")
    conn.execute("insert into t select n, n::text::bytea, 'first' from generate_series(1, 50) n")
    conn.execute("update t set v = 'second' where a % 2 = 0; delete from t where a % 5 = 0")
    conn.execute("update t set a = a + 1, v = 'moved' where a between 10 and 20")
    conn.execute("insert into t values (5, '5', null); insert into other values (1, 'x'), (7, 'y')")
    conn.execute("truncate other; insert into other values (7, 'z')")
    ops.tick(conn, queue)

    df = load(spark, dsn, queue, table_schema(conn, "t"), optional="b c")
    latest = latest_rows(df)
    assert latest.schema == df.schema
    held = conn.execute('select a, "b c", v from t order by a').fetchall()
    assert contents(latest.where("ev_table = 'public.t'")) == held
    assert [(r.a, r.v) for r in latest.where("ev_table = 'public.other'").collect()] == [(7, "z")]
    only = df.where("ev_table = 'public.t'")
    assert contents(latest_rows(only, keys=["a", "b c"])) == held


def folded(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((row.ev_operation, row.ev_table, row.a, row.v) for row in df.collect())


@pytest.mark.spark
@pytest.mark.parametrize("keys", [None, ["a"]], ids=["keys of the events", "keys given"])
def test_the_latest_changes_are_what_a_copy_has_to_be_told(
    spark: SparkSession, conn: Connection, dsn: str, queue: str, keys: list[str] | None
) -> None:
    from pgqpy_consumers.spark import latest_changes

    for table in ("t", "emptied"):
        conn.execute(f"create table {table} (a int primary key, v text)")
        conn.execute("select pgq.capture_table(%s, %s)", [table, queue])
    conn.execute("insert into t select n, 'first' from generate_series(1, 4) n")
    copied = ops.tick(conn, queue)
    conn.execute("delete from t where a = 2; update t set a = 33 where a = 3")
    conn.execute("update t set v = 'second' where a = 1; insert into emptied values (1)")
    conn.execute("delete from t where a = 4; insert into t values (4, 'again')")
    conn.execute("truncate emptied; insert into emptied values (5, 'between'); truncate emptied")
    conn.execute("insert into emptied values (7, 'z'); delete from emptied where a = 7")
    conn.execute("insert into emptied values (8, 'y')")
    last = ops.tick(conn, queue)

    reading = {"startTick": str(copied), "endTick": str(last)}
    df = load(spark, dsn, queue, table_schema(conn, "t"), **reading)
    changes = latest_changes(df, keys)
    assert changes.schema == df.schema
    t, emptied = (changes.where(f"ev_table = 'public.{name}'") for name in ("t", "emptied"))
    assert folded(t) == [
        ("DELETE", "public.t", 2, "first"),
        ("DELETE", "public.t", 3, "first"),
        ("INSERT", "public.t", 4, "again"),
        ("INSERT", "public.t", 33, "first"),
        ("UPDATE", "public.t", 1, "second"),
    ]
    assert folded(emptied) == [
        ("DELETE", "public.emptied", 7, "z"),
        ("INSERT", "public.emptied", 8, "y"),
        ("TRUNCATE", "public.emptied", None, None),
    ]


@pytest.mark.spark
def test_a_retried_change_does_not_undo_a_later_one(
    spark: SparkSession, conn: Connection, dsn: str, queue: str
) -> None:
    from pgqpy_consumers.spark import latest_changes

    conn.execute("create table t (a int primary key, v text)")
    conn.execute("select pgq.capture_table('t', %s)", [queue])
    ops.tick(conn, queue)
    ops.register(conn, queue, "copy")
    conn.execute("insert into t values (1, 'old'), (2, 'old')")
    ops.tick(conn, queue)
    batch = ops.next_batch(conn, queue, "copy")
    for event in ops.events(conn, batch):
        conn.execute("select pgq.event_retry(%s, %s, 0)", [batch, event[0]])
    conn.execute("select pgq.finish_batch(%s)", [batch])
    conn.execute("update t set v = 'new' where a = 1; delete from t where a = 2")
    conn.execute("select pgq.maint_retry_events()")
    ops.tick(conn, queue)

    df = load(spark, dsn, queue, table_schema(conn, "t"), consumer="copy")
    assert df.count() == 4
    assert folded(latest_changes(df)) == [
        ("DELETE", "public.t", 2, "old"),
        ("UPDATE", "public.t", 1, "new"),
    ]


@pytest.mark.spark
def test_latest_changes_are_of_changes_only(
    spark: SparkSession, conn: Connection, dsn: str, queue: str
) -> None:
    from pgqpy_consumers.spark import latest_changes

    ops.insert(conn, queue, '{"a":1}')
    ops.tick(conn, queue)
    schema = StructType().add("ev_id", "long").add("a", "integer")
    with pytest.raises(ValueError, match="latest_changes needs columns ev_operation, ev_table"):
        latest_changes(load(spark, dsn, queue, schema), keys=["a"])
    schema.add("ev_operation", "string").add("ev_table", "string")
    with pytest.raises(Exception, match=r"event \d+ is no change of a table"):
        latest_changes(load(spark, dsn, queue, schema), keys=["a"]).collect()


@pytest.mark.spark
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_events_are_decoded_wherever_they_come_from(
    spark: SparkSession, conn: Connection, dsn: str, queue: str, zone: str
) -> None:
    from pgqpy_consumers.spark import decode_payload

    conn.execute("create table t (a int primary key, at timestamptz)")
    conn.execute("select pgq.capture_table('t', %s)", [queue])
    conn.execute("insert into t values (1, '2026-03-29T01:30:00Z')")
    ops.tick(conn, queue)
    schema = table_schema(conn, "t")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        events = spark.read.format("pgq").options(dsn=dsn, queue=queue).load()
        decoded = decode_payload(events, schema, "row")
        assert decoded.schema == schema
        assert decoded.collect() == load(spark, dsn, queue, schema).collect()
        named = decode_payload(events, "at timestamp, ev_type string, a int", payload="json")
        ((at,),) = named.selectExpr("unix_timestamp(at)").collect()
        assert at == datetime(2026, 3, 29, 1, 30, tzinfo=UTC).timestamp()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    with pytest.raises(ValueError, match="one of json, urlencoded, row"):
        decode_payload(events, schema, "xml")


@pytest.mark.spark
def test_latest_rows_fails_where_it_would_have_to_guess(
    spark: SparkSession, conn: Connection, dsn: str, queue: str
) -> None:
    from pgqpy_consumers.spark._tables import latest_rows

    ops.insert(conn, queue, '{"id":1,"v":"old"}')
    ops.insert(conn, queue, '{"id":1,"v":"new"}')
    ops.insert(conn, queue, "not json")
    ops.tick(conn, queue)
    schema = (
        StructType().add("ev_id", "long").add("ev_key", ArrayType(StringType()))
        .add("id", "integer").add("v", "string").add("ev_malformed", "string")
    )  # fmt: skip
    df = load(spark, dsn, queue, schema, payload="json", malformed="column")
    good = df.where("ev_malformed is null")
    assert [row.v for row in latest_rows(good, keys=["id"]).collect()] == ["new"]
    with pytest.raises(Exception, match="is malformed; filter such events out first"):
        latest_rows(df, keys=["id"]).collect()
    with pytest.raises(Exception, match=r"is no column; say which are: keys="):
        latest_rows(good).collect()
    with pytest.raises(ValueError, match="needs columns number"):
        latest_rows(df, keys=["number"])
    failing = load(spark, dsn, queue, schema, payload="json", malformed="fail")
    with pytest.raises(Exception, match=r"payload of event \d+ is malformed: .*position 0"):
        failing.collect()
