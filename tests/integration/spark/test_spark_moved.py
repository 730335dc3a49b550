"""Consumers in Spark that change the node they read: nothing is lost, nothing comes twice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pgqpy
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cascade import AddNode, Node
from tests.fixtures.spark_ops import load, run_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def nodes(add_node: AddNode) -> tuple[Node, Node]:
    """A root, and a branch that copies when it is told to."""
    root = add_node("root")
    ops.tick(root.conn, "q")
    branch = add_node("branch", root)
    branch.catch_up()
    return root, branch


def test_a_spark_consumer_goes_on_at_its_tick_on_another_node(
    spark: SparkSession, nodes: tuple[Node, Node]
) -> None:
    from pgqpy_consumers.spark import SparkConsumer

    root, branch = nodes
    seen: list[list[str]] = []

    class Seen(SparkConsumer):
        queue = "q"
        consumer = "seen"
        event_types = ("test",)

        def process_batch(self, spark: SparkSession, batch: pgqpy.Batch, df: DataFrame) -> None:
            rows = sorted(row.ev_data for row in df.collect())
            if self is before and "b" in rows:
                raise RuntimeError("not yet")
            seen.append(rows)

    before, after = Seen(root.dsn, spark=spark), Seen(branch.dsn, spark=spark)
    before.register()
    ops.insert_ticked(root.conn, "q", "a")
    before.run(until_empty=True)
    ops.insert_ticked(root.conn, "q", "b")
    with pytest.raises(RuntimeError, match="not yet"):
        before.run(until_empty=True)
    tick = ops.value(root.conn, "select last_tick from pgq.get_consumer_info('q', 'seen')")
    ops.insert_ticked(root.conn, "q", "c")
    branch.catch_up()
    after.register(at_tick=tick)
    after.run(until_empty=True)
    assert [row for rows in seen for row in rows] == ["a", "b", "c"]


def test_a_stream_goes_on_with_its_checkpoint_at_another_node(
    spark: SparkSession, nodes: tuple[Node, Node], tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    root, branch = nodes
    seen: dict[int, list[str]] = {}

    def run(node: Node, error: str | None = None) -> None:
        """What there is; the checkpoint gets a micro-batch that fails with the error."""

        def keep(df: DataFrame, number: int) -> None:
            if error is not None:
                raise RuntimeError(error)
            seen[number] = sorted(row.ev_data for row in df.collect())

        options = {"dsn": node.dsn, "queue": "q", "consumer": "stream"}
        events = load(spark.readStream, **options, where="ev_type = 'test'")
        run_once(events.writeStream.foreachBatch(keep), tmp_path / "checkpoint")

    run(root)
    ops.insert_ticked(root.conn, "q", "a")
    run(root)
    ops.insert_ticked(root.conn, "q", "b")
    with pytest.raises(StreamingQueryException, match="not yet"):
        run(root, "not yet")
    ops.insert_ticked(root.conn, "q", "c")
    with pytest.raises(StreamingQueryException, match="node 'branch' of queue 'q' has no tick"):
        run(branch)
    branch.catch_up()
    run(branch)
    assert [rows for rows in seen.values() if rows] == [["a"], ["b"], ["c"]]

    # A tick of that number in another history, as that of an old root, is another one.
    for log in "pgq.tick_0", "pgq.tick_1":
        root.conn.execute(f"update {log} set tick_time = tick_time + interval '1 s'".encode())
    with pytest.raises(StreamingQueryException, match="is of an earlier queue"):
        run(root)
