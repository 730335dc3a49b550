"""With readDsn the slices are read on a standby, which has replayed them; never too few rows."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from pgqpy import Admin
from pgqpy.errors import NotReplayed
from pgqpy_consumers.spark import _events
from pgqpy_consumers.spark import _ranges as ranges
from pgqpy_consumers.spark._events import Slice
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_standby import HotPair

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    frame = spark.read.format("pgq").options(**options).load()
    counts: list[int] = []
    counting = threading.Thread(target=lambda: counts.append(frame.count()))
    counting.start()
    asked = "select count(*) from pg_stat_activity where application_name = 'pgqpy spark read'"
    wait_until(lambda: ops.value(hot_pair.there, asked))
    assert counts == []
    hot_pair.resume()
    counting.join()
    assert counts == [100]

    stream = spark.readStream.format("pgq").options(**options, consumer="stream").load()
    path = str(tmp_path / "checkpoint")
    query = stream.writeStream.format("memory").queryName("standby_events")
    query.option("checkpointLocation", path).trigger(availableNow=True).start().awaitTermination()
    assert spark.table("standby_events").count() == 100


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
    assert sum(batch.num_rows for batch in source.read(Slice(None, None))) == 1
    with psycopg.connect(dsn, autocommit=True) as other:
        Admin(other).create_queue("r")
        with pytest.raises(ranges.ForeignOffset, match="another queue"):
            ranges.range_source(hot_pair.conn, "r", start, end, standby=other)
