"""Options that Spark adds are not reported as the user's mistakes, in any way to use them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.spark_ops import run_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NEW = "select 'new' as ev_type, 'b' as ev_data"


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Iterator[SparkSession]:
    """The session, with a database of its own in the catalog."""
    spark.sql(f"create database pgq_test location '{tmp_path.as_uri()}/catalog'")
    spark.sql("use pgq_test")
    yield spark
    spark.sql("use default")
    spark.sql("drop database pgq_test cascade")


@pytest.fixture
def options(conn: Connection, dsn: str, queue: str) -> dict[str, str]:
    """Options for the queue, which has one event."""
    ops.insert(conn, queue, "a")
    ops.tick(conn, queue)
    return {"dsn": dsn, "queue": queue}


def clause(options: dict[str, str]) -> str:
    return ", ".join(f"{name} '{value}'" for name, value in options.items())


def read(spark: SparkSession, query: str) -> list[str]:
    return [row.ev_data for row in spark.sql(query).collect()]


MADE = {
    "plainly": "create table t using pgq options ({options})",
    "with all that a table may have": "create table t using pgq options ({options})"
    " comment 'events' location '/tmp/x' tblproperties ('columns' = '3', 'x' = 'y')",
    "as a view with columns": "create temporary view t (ev_data string)"
    " using pgq options ({options})",
}


@pytest.mark.parametrize("made", MADE)
def test_a_table_of_the_catalog_is_read(
    catalog: SparkSession, conn: Connection, options: dict[str, str], made: str
) -> None:
    catalog.sql(MADE[made].format(options=clause(options)))
    try:
        assert read(catalog, "select * from t") == ["a"]
        conn.execute("select pgq.insert_event(%s, 'x', 'b')", [options["queue"]])
        ops.tick(conn, options["queue"])
        if "view" not in made:
            assert sorted(read(catalog, "select upper(ev_data) as ev_data from t")) == ["A", "B"]
            assert read(catalog, "select ev_data from t with (where = \"ev_type = 'x'\")") == ["b"]
            catalog.sql("create table copies using parquet as select * from t")
            assert sorted(read(catalog, "select * from copies")) == ["a", "b"]
    finally:
        catalog.catalog.dropTempView("t")


def test_a_table_of_createtable_is_read_and_streamed_from(
    catalog: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    create: Any = catalog.catalog.createTable
    assert create("t", source="pgq", description="x", **options).count() == 1
    create("s", source="pgq", consumer="c", startingPosition="earliest", **options)
    seen: list[str] = []
    writer = catalog.readStream.table("s").writeStream.queryName("a name")
    run_once(
        writer.foreachBatch(lambda df, _: seen.extend(row.ev_data for row in df.collect())),
        tmp_path / "checkpoint",
    )
    assert seen == ["a"]


def test_a_table_of_tasks_is_read(catalog: SparkSession, conn: Connection, dsn: str) -> None:
    from pgqpy_consumers.spark import PgqTaskDataSource

    catalog.dataSource.register(PgqTaskDataSource)
    conn.execute("select pgq_task.create_queue('mails')")
    task_ops.push(conn, "mails", {"n": 1})
    catalog.sql(f"create table t using pgq_tasks options (dsn '{dsn}', queue 'mails')")
    assert [row.payload for row in catalog.sql("select payload from t").collect()] == ['{"n": 1}']


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("create table t using pgq options ({options}, numPartition 3)",
         r"no option 'numpartition' for reading(?s:.*)Is it numPartitions\?"),
        ("create table t using pgq options ({options}, consumer 'c', startingPositon 'latest')",
         r"no option 'startingpositon' for streaming(?s:.*)Is it startingPosition\?"),
        ("create table t using pgq options ({options}, payload 'json')", "payload needs .schema"),
        ("create table t using pgq options ({options}, password 'x')", "have a password"),
        ("create table t using pgq options (queue 'q', dsn 'postgresql://u:sesame@h/db')",
         "have a password"),
        ("create table t (ev_id bigint) using pgq options ({options}); select * from t",
         "needs option queue(?s:.*)without a list of columns"),
        ("create table t (ev_type string, ev_data string) using pgq; insert into t " + NEW,
         "writing to a queue needs option queue(?s:.*)to no writer"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(
    catalog: SparkSession, options: dict[str, str], statement: str, error: str
) -> None:
    *before, last = statement.format(options=clause(options)).split("; ")
    for one in before:
        catalog.sql(one)
    with pytest.raises(Exception, match=error) as caught:
        catalog.sql(last).collect()
    assert "sesame" not in str(caught.value)


def test_a_dataframe_is_written_in_all_ways(
    catalog: SparkSession, conn: Connection, options: dict[str, str]
) -> None:
    def sent() -> int:
        count: int = ops.value(
            conn, "select count(*) from pgq.event_template where ev_type = 'new'"
        )
        return count

    df = catalog.sql(NEW)
    df.write.format("pgq").mode("append").options(**options).save()
    assert sent() == 1
    df.write.format("pgq").mode("append").options(**options).saveAsTable("saved")
    assert sent() == 2
    df.writeTo("made").using("pgq").options(**options).create()
    assert sent() == 3
    df.writeTo("made").options(**options).append()
    assert sent() == 4
    df.write.format("pgq").mode("append").options(**options).insertInto("made")
    assert sent() == 5
    with pytest.raises(Exception, match=r"no option 'quueue' for writing(?s:.*)Is it queue\?"):
        df.write.format("pgq").mode("append").options(**options, quueue="x").save()


def test_a_query_with_a_name_is_written_to_a_table(
    catalog: SparkSession, conn: Connection, options: dict[str, str], tmp_path: Path
) -> None:
    conn.execute("select pgq.create_queue('target')")
    conn.execute("select pgq.force_tick('target'), pgq.ticker('target')")
    ops.register(conn, "target", "reader")
    events = catalog.readStream.format("pgq").options(
        consumer="c", startingPosition="earliest", **options
    )
    writer: Any = (
        events.load()
        .select("ev_type", "ev_data")
        .writeStream.format("pgq")
        .queryName("to target")
        .outputMode("append")
        .trigger(availableNow=True)
        .options(**options | {"queue": "target"}, writer="w")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    writer.toTable("made").awaitTermination()
    assert ops.deliver(conn, "target", "reader") == ["a"]
