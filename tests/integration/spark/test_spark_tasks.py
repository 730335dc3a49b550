"""Tasks as a DataFrame: all columns, in one snapshot, or in ranges of ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import ArrayType, MapType, StringType, StructType

from pgqpy.errors import TaskQueueNotFound
from pgqpy_consumers.spark._options import InvalidOption
from pgqpy_consumers.spark.payload import MalformedPayload
from pgqpy_consumers.spark.tasks import TASK_SCHEMA, PgqTaskDataSource
from tests.fixtures import task_ops as ops
from tests.fixtures.fix_db import Connection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def mails(conn: Connection) -> str:
    for queue in ("mails", "others"):
        conn.execute("select pgq_task.create_queue(%s)", [queue])
        for number in range(10):
            ops.push(conn, queue, {"n": number, "to": f"ann's {number}"})
    ops.claim(conn, "mails", claimant="worker 7", number=3, lease="1 day")
    conn.execute("select pgq_task.stop(id) from pgq_task.tasks where payload @> '{\"n\": 9}'")
    return "mails"


def read(dsn: str, **options: str) -> list[list[dict[str, Any]]]:
    """The rows that each executor would read."""
    reader = PgqTaskDataSource({"dsn": dsn, **options}).reader(TASK_SCHEMA)
    return [
        [row for batch in reader.read(part) for row in batch.to_pylist()]  # type: ignore[union-attr]
        for part in reader.partitions()
    ]


def test_all_tasks_of_the_queue_are_rows_as_pgq_task_tasks_has_them(
    conn: Connection, dsn: str, mails: str
) -> None:
    (found,) = read(dsn, queue=mails)
    expected = ops.rows(
        conn,
        "select id, version, queue, priority, status, nullif(at, 'infinity') as at, claimant,"
        " attempts, last_attempt, created, payload::text, headers::text, error, unique_key,"
        " order_key from pgq_task.tasks where queue = %s order by id",
        mails,
    )
    assert sorted(found, key=lambda row: row["id"]) == expected
    assert {row["status"] for row in found} == {"claimed", "available", "stopped"}


def test_ranges_of_ids_have_each_task_once(dsn: str, mails: str) -> None:
    parts = read(dsn, queue=mails, numPartitions="3")
    assert len(parts) == 3
    assert sorted(row["id"] for part in parts for row in part) == list(range(1, 11))


def test_only_what_is_wanted_is_fetched(dsn: str, mails: str) -> None:
    (found,) = read(dsn, queue=mails, where="status = 'claimed' and claimant = 'worker 7'")
    assert len(found) == 3


@pytest.mark.parametrize(
    "where",
    [
        "true) union all select id from pgq_task.tasks where (true",
        "id in (select id from pgq_task.tasks)",
        "true); drop table x; --",
        "true /* or",
        "E'\\' || ' ) or (true' = '",
    ],
)
def test_where_is_a_condition_and_no_more(dsn: str, mails: str, where: str) -> None:
    with pytest.raises(InvalidOption, match="where is no condition over tasks"):
        read(dsn, queue=mails, where=where)


def test_where_may_ask_what_is_in_json(dsn: str, mails: str) -> None:
    asked = (
        "payload::jsonb @> '{\"n\": 3}' or"
        " (payload::jsonb ->> 'to' = 'ann''s 4' and headers is null)"
    )
    (found,) = read(dsn, queue=mails, where=asked)
    assert len(found) == 2


def test_what_makes_no_sense_is_an_error(dsn: str, mails: str) -> None:
    with pytest.raises(TaskQueueNotFound):
        read(dsn, queue="nosuch")
    with pytest.raises(InvalidOption, match="colour"):
        read(dsn, queue=mails, colour="red")
    with pytest.raises(InvalidOption, match="numPartitions"):
        read(dsn, queue=mails, numPartitions="0")


def typed(dsn: str, schema: StructType, **options: str) -> list[dict[str, Any]]:
    reader = PgqTaskDataSource({"dsn": dsn, **options}).reader(schema)
    return [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()  # type: ignore[union-attr]
    ]


def test_payloads_and_headers_are_structs_if_the_schema_says_so(conn: Connection, dsn: str) -> None:
    conn.execute("select pgq_task.create_queue('typed')")
    ops.push(conn, "typed", {"n": 7, "at": "2026-05-01T10:00:00Z", "lines": [{"item": "pen"}]})
    ops.push(conn, "typed", {"other": 1}, headers={"sender": "shop"})
    ops.push(conn, "typed", None)
    line = StructType().add("item", "string")
    payload = StructType().add("n", "integer").add("at", "timestamp").add("lines", ArrayType(line))
    headers = StructType().add("sender", "string")
    schema = StructType().add("payload", payload).add("headers", headers).add("id", "long")
    rows = typed(dsn, schema, queue="typed")
    first, second, third = sorted(rows, key=lambda row: row["id"])
    assert (first["payload"]["n"], first["payload"]["at"].hour) == (7, 10)
    assert first["payload"]["lines"] == [{"item": "pen"}]
    assert (first["headers"], second["headers"]) == (None, {"sender": "shop"})
    assert second["payload"] == {"n": None, "at": None, "lines": None}
    assert (third["payload"], third["id"]) == (None, 3)
    other = StructType().add("payload", StructType().add("other", "integer"))
    found = typed(dsn, other, queue="typed", where="headers is not null")
    assert found == [{"payload": {"other": 1}}]


NUMBER = StructType().add("payload", StructType().add("n", "integer"))


def test_a_payload_that_does_not_fit_is_an_error_that_names_the_task_or_null(
    conn: Connection, dsn: str, mails: str
) -> None:
    for payload in ({"n": "many"}, [1], "n"):
        task = ops.push(conn, mails, payload)
        with pytest.raises(MalformedPayload, match=f"payload of task {task} does not fit") as info:
            typed(dsn, NUMBER, queue=mails, where=f"id = {task}")
        assert "malformed" in str(info.value.hint)
    rows = typed(dsn, NUMBER, queue=mails, malformed="null")
    assert [row["payload"] for row in rows].count(None) == 3
    assert len(rows) == 13


def test_a_schema_that_tasks_do_not_have_is_refused(dsn: str, mails: str) -> None:
    maps = StructType().add("a", MapType(StringType(), StringType()))
    for name, type_ in (
        ("n", "integer"),
        ("payload", "integer"),
        ("status", "integer"),
        ("payload", maps),
    ):
        with pytest.raises(InvalidOption):
            typed(dsn, StructType().add(name, type_), queue=mails)


def test_spark_reads_them_with_typed_payloads(spark: SparkSession, dsn: str, mails: str) -> None:
    from pyspark.sql import functions as sf

    spark.dataSource.register(PgqTaskDataSource)
    reader = spark.read.format("pgq_tasks").option("dsn", dsn).option("queue", mails)
    df = reader.load().withColumn("mail", sf.from_json("payload", "n int, to string"))
    assert df.agg(sf.sum("mail.n")).collect() == [(45,)]
    assert df.where("status = 'claimed'").count() == 3
    few = reader.schema("id bigint, payload struct<n int>").load()
    assert few.columns == ["id", "payload"]
    assert few.agg(sf.sum("payload.n")).collect() == [(45,)]
    assert few.count() == 10
