"""With readDsn the slices are read on a standby, which has replayed them; never too few rows."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import pgqpy
from pgqpy import Admin
from pgqpy.errors import NotReplayed, PgqError
from pgqpy_consumers.spark import _events
from pgqpy_consumers.spark import _ranges as ranges
from pgqpy_consumers.spark._events import Slice
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_standby import HotPair
from tests.fixtures.spark_ops import load, run_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_range_and_a_stream_are_read_on_the_standby_once_it_has_replayed_them(
    hot_pair: HotPair, spark: SparkSession, tmp_path: Path
) -> None:
    options = {"dsn": hot_pair.primary.dsn, "queue": "q", "readDsn": hot_pair.standby.dsn}
    Admin(hot_pair.conn).create_queue("q")
    hot_pair.conn.execute("select pgq.register_consumer('q', 'stream')")
    ops.tick(hot_pair.conn, "q")
    hot_pair.catch_up()
    hot_pair.pause()
    hot_pair.conn.execute(
        "select pgq.insert_events('q', array_fill('t'::text, array[100]),"
        " array_fill('d'::text, array[100]))"
    )
    ops.tick(hot_pair.conn, "q")
    frame = load(spark.read, **options)
    counts: list[int] = []
    counting = threading.Thread(target=lambda: counts.append(frame.count()))
    counting.start()
    asked = "select count(*) from pg_stat_activity where application_name = 'pgqpy spark read'"
    wait_until(lambda: ops.value(hot_pair.there, asked))
    assert counts == []
    hot_pair.resume()
    counting.join()
    assert counts == [100]

    stream = load(spark.readStream, **options, consumer="stream")
    run_once(stream.writeStream.format("memory").queryName("standby_events"), tmp_path)
    assert spark.table("standby_events").count() == 100


def scans(hot_pair: HotPair) -> int:
    """How often tables of events were read on the primary."""
    # Those of this session are counted with a delay: its indices were built by scans.
    hot_pair.conn.execute("select pg_stat_force_next_flush()")
    read = "select sum(seq_scan + coalesce(idx_scan, 0)) from pg_stat_user_tables"
    return int(ops.value(hot_pair.conn, f"{read} where schemaname = 'pgq' and relname ~ 'event_'"))


def test_a_consumer_and_an_archive_read_on_the_standby_and_leave_the_primary_alone(
    hot_pair: HotPair, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pgqpy_consumers.spark import SparkConsumer

    primary, there = hot_pair.primary.dsn, hot_pair.standby.dsn
    found: list[int] = []

    class Count(SparkConsumer):
        queue, consumer, read_patience = "s", "count", None

        def process_batch(self, spark: SparkSession, batch: pgqpy.Batch, df: DataFrame) -> None:
            found.extend(row.ev_id for row in df.collect())

    Admin(hot_pair.conn).create_queue("s")
    counter = Count(primary, spark=spark, read_dsn=there)
    counter.register()
    hot_pair.catch_up()
    hot_pair.pause()
    before = scans(hot_pair)
    ids = [ops.insert(hot_pair.conn, "s", f"event {number}") for number in range(100)]
    ops.tick(hot_pair.conn, "s")
    counting = threading.Thread(target=counter.run_once)
    counting.start()
    asked = (
        "select count(*) from pg_stat_activity where starts_with(application_name, 'pgqpy count ')"
    )
    wait_until(lambda: ops.value(hot_pair.there, asked))
    assert found == []
    hot_pair.resume()
    counting.join()
    assert sorted(found) == ids

    monkeypatch.setenv("PGQPY_DSN", primary)
    lake = str(tmp_path / "lake")
    Cli(primary).ok("spark", "archive", "s", lake, "--once", "--read-dsn", there)
    assert sorted(row.ev_id for row in spark.read.parquet(lake).collect()) == ids
    assert scans(hot_pair) == before


def test_a_slice_that_replay_cancels_is_read_again_and_no_row_comes_twice(
    hot_pair: HotPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancel() -> None:
        asleep = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'"
        wait_until(lambda: hot_pair.ask(asleep))
        hot_pair.conn.execute("insert into cancelled values (1)")
        hot_pair.conn.execute("delete from bystander where a = (select min(a) from bystander)")
        hot_pair.conn.execute("vacuum bystander")

    Admin(hot_pair.conn).create_queue("t")
    ops.tick(hot_pair.conn, "t")
    hot_pair.conn.execute("create table bystander as select generate_series(1, 10) as a")
    hot_pair.conn.execute("create table cancelled (a int)")
    size = "x" * 10_000
    ids = [ops.insert(hot_pair.conn, "t", size) for _ in range(500)]
    ops.tick(hot_pair.conn, "t")
    start, end = ranges.earliest(hot_pair.conn, "t"), ranges.newest(hot_pair.conn, "t")
    # What is yet to be replayed could cancel the queries there.
    hot_pair.catch_up()
    source = ranges.range_source(hot_pair.conn, "t", start, end, standby=hot_pair.there)
    # The query sends most rows, and then hangs until it is cancelled often enough.
    hangs = "case when ev_id = {} and (select count(*) from cancelled) < {} then {} else true end"
    sleep = "(select true from pg_sleep(60))"
    hung = replace(source, condition=hangs.format(ids[-1], 1, sleep))
    canceller = threading.Thread(target=cancel)
    canceller.start()
    read = [id_ for batch in hung.read(Slice(None, None)) for id_ in batch["ev_id"].to_pylist()]
    canceller.join()
    assert sorted(read) == ids

    monkeypatch.setattr(_events, "_ATTEMPTS", 2)
    hopeless = replace(source, condition="ev_id / 0 = 1")
    with pytest.raises(PgqError, match=r"failed 2 times to read them; at last: .*by zero"):
        list(hopeless.read(Slice(None, None)))


def test_a_standby_that_does_not_follow_and_another_server_are_errors(
    hot_pair: HotPair, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_events, "_REPLAY", 0.05)
    Admin(hot_pair.conn).create_queue("r")
    ops.tick(hot_pair.conn, "r")
    hot_pair.catch_up()
    hot_pair.pause()
    ops.insert_ticked(hot_pair.conn, "r", "a")
    start, end = ranges.earliest(hot_pair.conn, "r"), ranges.newest(hot_pair.conn, "r")
    source = ranges.range_source(hot_pair.conn, "r", start, end, standby=hot_pair.there)
    with pytest.raises(NotReplayed, match="has not replayed them within"):
        list(source.read(Slice(None, None)))
    # Not even if nothing waits.
    with ops.refused("PQ018"):
        hot_pair.there.execute(source.query.encode())
    hot_pair.resume()
    hot_pair.catch_up()
    assert sum(batch.num_rows for batch in source.read(Slice(None, None))) == 1
    with psycopg.connect(dsn, autocommit=True) as other:
        Admin(other).create_queue("r")
        with pytest.raises(ranges.ForeignOffset, match="another queue"):
            ranges.range_source(hot_pair.conn, "r", start, end, standby=other)
