"""All shards of a logical queue are one DataFrame and one stream.

Most tests call the reader as Spark does, one method after the other; the last ones are Spark's.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from socket import gethostname
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql.types import StructType

import pgqpy
from pgqpy.embedded import Server
from pgqpy.errors import ConnectionFailed, InvalidConsumer, InvalidShardMap, PgqError
from pgqpy.models import Start
from pgqpy.shards import HASHES
from pgqpy.shards._share import LOCK
from pgqpy_consumers.spark import PgqDataSource
from pgqpy_consumers.spark._events import EVENT_SCHEMA
from pgqpy_consumers.spark._options import InvalidOption, StreamOptions
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import PATIENCE, wait_until
from tests.fixtures.fix_db import Connect, Connection, create_database, drop_database
from tests.fixtures.fix_example import SPARK_PATIENCE
from tests.fixtures.spark_ops import Place, plan, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pgqpy_consumers.spark._shards_stream import ShardsStreamReader

pytestmark = pytest.mark.spark

QUEUE = "orders"
CONSUMER = "stream"


class Shards:
    """Databases with a part of the queue, and the file of their map."""

    def __init__(self, path: Path, connect: Connect) -> None:
        self.path = path
        self.dsns: dict[str, str] = {}
        self.versions: dict[str, int] = {}
        self._connect = connect

    def add(self, name: str, dsn: str) -> Connection:
        """A shard, which is not in the map yet."""
        self.dsns[name] = dsn
        conn = self[name]
        conn.execute("select pgq.create_queue(%s)", [QUEUE])
        return conn

    def __getitem__(self, name: str) -> Connection:
        return self._connect(self.dsns[name])

    def map(self, *names: str, **after: Mapping[str, int]) -> None:
        """Write the map: the first of these has the keys, the others are to be drained."""
        lines = [f"queue = {json.dumps(QUEUE)}"]
        for number, name in enumerate(names):
            hashes = [] if number else [0, HASHES]
            lines += [
                f"[shards.{name}]",
                f"dsn = {json.dumps(self.dsns[name])}",
                f"hashes = {hashes}",
                f"version = {self.versions.get(name, 1)}",
                *(f"after = {{ {b} = {tick} }}" for b, tick in after.get(name, {}).items()),
            ]
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(lines))
        new.replace(self.path)

    def produce(self, name: str, *data: str) -> int:
        """Events of a shard, and a tick after them."""
        return ops.insert_ticked(self[name], QUEUE, *data)

    def position(self, name: str) -> int | None:
        """Where the consumer stands."""
        tick: int | None = ops.value(
            self[name], "select last_tick from pgq.get_consumer_info(%s, %s)", QUEUE, CONSUMER
        )
        return tick


@pytest.fixture
def shards(server: Server, connect: Connect, tmp_path: Path) -> Iterator[Shards]:
    """Shards a, b and c, of which a and b are in the map."""
    made = Shards(tmp_path / "shards.toml", connect)
    names = [create_database(server) for _ in "abc"]
    for shard, name in zip("abc", names, strict=True):
        made.add(shard, server.dsn_of(name))
    made.map("a", "b")
    yield made
    for name in names:
        drop_database(server, name)


MakeReader: TypeAlias = "Callable[..., ShardsStreamReader]"


@pytest.fixture
def reader(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeReader]:
    """``reader(onShardDown="wait")``: what a run of a query has on its driver."""
    from pgqpy_consumers.spark._reader import event_schema
    from pgqpy_consumers.spark._shards_stream import ShardsStreamReader

    # On a busy machine a shard that is there is not down.
    monkeypatch.setattr("pgqpy_consumers.spark._shards_stream.GRACE", PATIENCE)
    made = []

    def make(**options: str) -> ShardsStreamReader:
        given = {"shards": str(shards.path), "queue": QUEUE, "consumer": CONSUMER} | options
        parsed = StreamOptions.parse(given)
        made.append(ShardsStreamReader(parsed, event_schema(parsed)))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def next_batch(reader: ShardsStreamReader, end: Place) -> tuple[Place, Place]:
    """The next micro-batch, when there is one."""
    return wait_until(lambda: [b for b in [plan(reader, end)] if b != (end, end)])[0]  # type: ignore[no-any-return]


def rest(reader: ShardsStreamReader, end: Place) -> list[list[str]]:
    """The events of all micro-batches that are to come, of which there are few."""
    seen = []
    while (batch := plan(reader, end)) != (end, end):
        start, end = batch
        seen.append(payloads(reader, start, end))
        assert len(seen) < 10, "it does not end"
    return seen


def payloads(reader: ShardsStreamReader, start: Place, end: Place) -> list[str]:
    """The events of a micro-batch with their shards."""
    return sorted(f"{row['shard']}:{row['ev_data']}" for row in read(reader, start, end))


def test_a_micro_batch_has_a_range_of_each_shard_and_moves_all_consumers(
    reader: MakeReader, shards: Shards
) -> None:
    stream = reader()
    start, end = plan(stream)
    assert start == end
    shards.produce("a", "1")
    shards.produce("b", "2", "3")
    start, end = plan(stream, start)
    assert payloads(stream, start, end) == ["a:1", "b:2", "b:3"]
    newest = shards.produce("b", "4")
    start, end = plan(stream, end)
    assert payloads(stream, start, end) == ["b:4"]
    assert plan(stream, end) == (end, end)
    assert shards.position("b") == newest
    assert shards.position("a") == end["shards"]["a"]["tick"]


def test_the_end_of_a_micro_batch_says_what_it_holds_after_a_restart(
    reader: MakeReader, shards: Shards
) -> None:
    killed = reader(startingPosition="latest")
    start = killed.initialOffset()
    shards.produce("a", "planned")
    _, first = plan(killed, start)
    killed.stop()
    shards.produce("a", "later")
    shards.produce("b", "later")
    restarted = reader(startingPosition="latest")
    assert payloads(restarted, restarted.initialOffset(), first) == ["a:planned"]
    start, end = plan(restarted, first)
    assert payloads(restarted, start, end) == ["a:later", "b:later"]


def test_a_limit_of_events_is_shared_by_need(reader: MakeReader, shards: Shards) -> None:
    for shard in "ab":
        shards.produce(shard, "before")
    stream = reader(maxEventsPerTrigger="6")
    _, end = plan(stream)
    for shard in "ab":
        # Forced ticks would count for thousands of events.
        shards[shard].execute("select pgq.set_queue_config(%s, 'ticker_max_count', '1')", [QUEUE])
    for shard, number in [("a", 1), ("b", 8)]:
        for each in range(number):
            ops.insert(shards[shard], QUEUE, str(each))
            assert ops.value(shards[shard], "select pgq.ticker(%s)", QUEUE)
    assert [len(each) for each in rest(stream, end)] == [6, 3]


def test_a_shard_that_joins_begins_at_its_consumer_or_start_and_one_that_leaves_is_drained(
    reader: MakeReader, shards: Shards
) -> None:
    shards.produce("c", "before")
    stream = reader(startingPosition="latest")
    _, end = plan(stream)
    shards.produce("b", "rest")
    shards.map("a", "c")
    start, end = plan(stream, end)
    assert payloads(stream, start, end) == ["b:rest", "c:before"]
    start, end = plan(stream, end)
    assert sorted(end["shards"]) == ["a", "c"]
    assert payloads(stream, start, end) == []
    shards.produce("b", "again")
    shards.map("a", "b", "c")
    start, end = plan(stream, end)
    assert payloads(stream, start, end) == ["b:again"]
    # A map that cannot be read changes nothing.
    shards.path.write_text("[shards")
    assert plan(stream, end) == (end, end)


def test_a_shard_that_left_between_two_runs_must_come_back_or_be_given_up(
    reader: MakeReader, shards: Shards
) -> None:
    stream = reader()
    start, _ = plan(stream)
    shards.produce("b", "rest")
    start, end = plan(stream, start)
    stream.stop()
    shards.map("a", "c")
    for call in (lambda: plan(reader(), end), lambda: reader().partitions(start, end)):
        with pytest.raises(InvalidShardMap, match=r"(?s)position in shard 'b'.*forgetShards, b"):
            call()
    stream = reader(forgetShards="b")
    assert payloads(stream, start, end) == []
    start, end = plan(stream, end)
    assert sorted(end["shards"]) == ["a", "c"]


def test_events_that_moved_wait_for_the_ticks_before_them(
    reader: MakeReader, shards: Shards
) -> None:
    stream = reader(maxTicksPerTrigger="1")
    _, end = plan(stream)
    shards.produce("b", "old 1")
    shards.produce("b", "old 2")
    tick = shards.produce("b", "old 3")
    # It has got keys of b, and the map does not say so yet.
    shards["a"].execute("select pgq.set_shard(%s, 'a', 2, true)", [QUEUE])
    shards.produce("a", "new 1")
    start, end = plan(stream, end)
    assert payloads(stream, start, end) == ["b:old 1"]
    # Nor does it count as drained if it leaves the map.
    shards.map("b")
    start, end = plan(stream, end)
    assert payloads(stream, start, end) == ["b:old 2"]
    assert "a" in end["shards"]
    shards.versions["a"] = 2
    shards.map("b", "a", a={"b": tick})
    assert rest(stream, end) == [["b:old 3"], ["a:new 1"]]


def test_a_database_that_is_another_shard_is_refused(reader: MakeReader, shards: Shards) -> None:
    stream = reader()
    _, end = plan(stream)
    shards["b"].execute("select pgq.set_shard(%s, 'c', 1, true)", [QUEUE])
    shards.produce("b", "1")
    with pytest.raises(InvalidShardMap, match="shard 'b': this database is that of shard 'c'"):
        plan(stream, end)


def test_a_shard_is_read_where_the_map_has_it_now(reader: MakeReader, shards: Shards) -> None:
    stream = reader()
    _, end = plan(stream)
    shards.dsns["b"] = make_conninfo(shards.dsns["b"], connect_timeout=7)
    shards.map("a", "b")
    shards.produce("b", "1")
    start, end = plan(stream, end)
    assert payloads(stream, start, end) == ["b:1"]
    for partition in stream.partitions(start, end):
        assert "connect_timeout=7" in partition.source.conninfo  # type: ignore[attr-defined]


def test_a_stream_of_one_database_goes_on_as_one_of_shards(
    reader: MakeReader, shards: Shards
) -> None:
    from pgqpy_consumers.spark._ranges import ForeignOffset
    from pgqpy_consumers.spark._reader import event_schema
    from pgqpy_consumers.spark._stream_reader import PgqStreamReader

    options = {"dsn": shards.dsns["b"], "queue": QUEUE, "consumer": CONSUMER}
    parsed = StreamOptions.parse(options)
    alone = PgqStreamReader(parsed, event_schema(parsed))
    start = alone.initialOffset()
    shards.produce("b", "planned")
    end = alone.latestOffset(start, alone.getDefaultReadLimit())
    alone.stop()
    shards.produce("b", "b")
    shards.produce("a", "a")
    stream = reader()
    assert payloads(stream, start, end) == ["b:planned"]
    start, end = plan(stream, end)
    assert payloads(stream, start, end) == ["a:a", "b:b"]
    stream.stop()
    with pytest.raises(ForeignOffset, match="stream over shards"):
        alone.latestOffset(end, alone.getDefaultReadLimit())
    alone.stop()
    with pytest.raises(ForeignOffset, match="none of the shards"):
        plan(reader(), start | {"queue": "other"})


# --- a shard that is down


@pytest.fixture
def mortal_shard(shards: Shards, start_mortal: Callable[[], Server]) -> Server:
    """The server of shard c, for a test to kill; c is in the map."""
    mortal = start_mortal()
    shards.add("c", mortal.dsn)
    shards.map("a", "c")
    return mortal


def test_the_others_go_on_without_a_shard_that_is_down_and_nothing_of_it_is_skipped(
    reader: MakeReader, shards: Shards, mortal_shard: Server, caplog: pytest.LogCaptureFixture
) -> None:
    mortal_shard.kill()
    early = reader(onShardDown="wait")
    with pytest.raises(ConnectionFailed, match="shard 'c'"):
        plan(early)
    early.stop()
    mortal_shard.restart()
    stream = reader(onShardDown="wait")
    _, end = plan(stream)
    shards.produce("c", "0")
    start, end = plan(stream, end)
    assert payloads(stream, start, end) == ["c:0"]
    shards.produce("c", "1")
    mortal_shard.kill()
    shards.produce("a", "2")
    start, end = plan(stream, end)
    assert payloads(stream, start, end) == ["a:2"]
    assert "going on without shard 'c'" in caplog.text
    stream.stop()

    # Also a run that begins while it is down.
    stream = reader(onShardDown="wait")
    shards.produce("a", "3")
    start, end = plan(stream, end)
    assert payloads(stream, start, end) == ["a:3"]
    # Also if it leaves the map meanwhile.
    shards.map("a")
    shards.produce("a", "4")
    start, end = plan(stream, end)
    assert payloads(stream, start, end) == ["a:4"]
    mortal_shard.restart()
    shards.produce("c", "5")
    start, end = next_batch(stream, end)
    assert payloads(stream, start, end) == ["c:1", "c:5"]


def test_a_shard_that_does_not_answer_is_as_one_that_is_down(
    reader: MakeReader, shards: Shards, mortal_shard: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = reader(onShardDown="wait")
    _, end = plan(stream)
    shards.produce("c", "1")
    start, end = plan(stream, end)
    stream.stop()
    shards.produce("a", "2")
    monkeypatch.setattr("pgqpy_consumers.spark._shards_stream.GRACE", 0.1)

    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        stack.callback(os.kill, mortal_shard.pid, signal.SIGCONT)
        # What is planned already waits for it, also behind a call that it has not answered.
        stream = reader(onShardDown="wait")
        os.kill(mortal_shard.pid, signal.SIGSTOP)
        pool.submit(stream.prepareForTriggerAvailableNow).result()
        repeated = pool.submit(payloads, stream, start, end)
        wait_until(repeated.running)
        os.kill(mortal_shard.pid, signal.SIGCONT)
        assert repeated.result() == ["c:1"]
        # The others go on.
        stream.stop()
        stream = reader(onShardDown="wait")
        conn = shards["c"]
        with conn.transaction():
            conn.execute("lock table pgq.queue")
            assert payloads(stream, *pool.submit(next_batch, stream, end).result()) == ["a:2"]


def test_a_planned_micro_batch_waits_for_its_shard(
    reader: MakeReader, shards: Shards, mortal_shard: Server, caplog: pytest.LogCaptureFixture
) -> None:
    stream = reader(onShardDown="wait")
    start, _ = plan(stream)
    shards.produce("a", "1")
    shards.produce("c", "2")
    start, end = plan(stream, start)
    partitions = stream.partitions(start, end)
    mortal_shard.kill()

    def read() -> list[int]:
        return [rows.num_rows for each in partitions for rows in stream.read(each)]

    with ThreadPoolExecutor(2) as pool:
        planned = pool.submit(payloads, stream, start, end)
        reading = pool.submit(read)
        # An executor waits, and so does the driver.
        wait_until(lambda: reading.done() or f"{gethostname()} cannot connect" in caplog.text)
        gave_up = planned.done()
        mortal_shard.restart()
        assert not gave_up
        assert planned.result() == ["a:1", "c:2"]
        assert reading.result() == [1, 1]


def test_what_comes_after_the_start_is_not_available_now(
    reader: MakeReader, shards: Shards, mortal_shard: Server
) -> None:
    stream = reader()
    _, end = plan(stream)
    stream.stop()
    shards.produce("a", "1")
    shards.produce("c", "1")
    mortal_shard.kill()
    stream = reader(onShardDown="wait")
    stream.prepareForTriggerAvailableNow()
    mortal_shard.restart()
    for shard in "abc":
        shards.produce(shard, "too late")
    shards.map("a", "b", "c")
    start, end = plan(stream, end)
    assert payloads(stream, start, end) == ["a:1"]
    for _ in range(5):
        assert plan(stream, end) == (end, end)


def test_by_default_a_shard_that_is_down_is_an_error(
    reader: MakeReader,
    shards: Shards,
    mortal_shard: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pgqpy_consumers.spark._driver_session.RECONNECT", 0.0)
    stream = reader()
    start, _ = plan(stream)
    mortal_shard.kill()
    with pytest.raises(ConnectionFailed, match="shard 'c'"):
        plan(stream, start)


# --- errors of a reader


def test_a_shard_that_left_since_the_dataframe_was_made_is_named(shards: Shards) -> None:
    source = PgqDataSource({"shards": str(shards.path), "queue": QUEUE})
    reader = source.reader(source.schema())
    shards.map("a")
    with pytest.raises(InvalidShardMap, match="shard 'b' has left the map"):
        reader.partitions()


def test_what_is_wrong_is_named(shards: Shards) -> None:
    for options, error in (
        ({"startTick": "1"}, "options shards and startTick exclude each other"),
        ({"dsn": "host=x"}, "options shards and dsn exclude each other"),
        ({"consumer": "c", "onShardDown": "wait"}, "with a consumer"),
        ({"queue": "other"}, "the shard map is of queue 'orders'"),
        ({"shards": "/no/such.toml"}, "cannot read /no/such.toml"),
        ({"columns": "shard"}, "names only shard"),
        ({"payload": "json"}, "needs .schema"),
        ({"consumer": "c"}, "shard '[ab]': consumer 'c' is not registered"),
    ):
        source = PgqDataSource({"shards": str(shards.path), "queue": QUEUE} | options)
        with pytest.raises(PgqError, match=error):
            source.reader(source.schema())
    # A stream hears of its map before it starts.
    with pytest.raises(InvalidShardMap, match="cannot read /no/such"):
        PgqDataSource({"shards": "/no/such.toml", "queue": QUEUE, "consumer": "c"}).schema()
    for payload in ({}, {"payload": "json"}):
        source = PgqDataSource({"shards": str(shards.path), "queue": QUEUE} | payload)
        with pytest.raises(InvalidOption, match=r"column shard.*int"):
            source.reader(StructType().add("shard", "integer").add("n", "integer"))


def test_the_contract_is_that_of_the_first_shard_that_can_be_reached(shards: Shards) -> None:
    def columns(ev_type: str) -> list[str]:
        options = {"shards": str(shards.path), "queue": QUEUE, "consumer": "c"}
        return PgqDataSource(options | {"contract": ev_type}).schema().names

    for ev_type, member in (("paid", "no"), ("sent", "shard")):
        contract = {"type": "object", "properties": {member: {"type": "integer"}}}
        statement = "select pgq.set_contract(%s, %s, %s, 'none')"
        shards["b"].execute(statement, [QUEUE, ev_type, json.dumps(contract)])
    shards.dsns["a"] = make_conninfo(shards.dsns["a"], host="127.0.0.1", port=1)
    shards.map("a", "b")
    assert columns("paid")[-2:] == ["no", "shard"]
    with pytest.raises(InvalidOption, match="a member shard"):
        columns("sent")
    shards.map("a")
    with pytest.raises(ConnectionFailed):
        columns("paid")


# --- the loops of a consumer


class Delivering(pgqpy.Consumer):
    queue = QUEUE
    consumer = CONSUMER
    start = "first"
    deliver: Callable[[pgqpy.Connection, pgqpy.Batch], None]

    def process_batch(self, conn: pgqpy.Connection, batch: pgqpy.Batch) -> None:
        self.deliver(conn, batch)


def test_loops_end_when_their_call_is_interrupted_or_the_process_told_to_stop(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pgqpy_consumers.spark._shards_consumer import Batches, Conns, Deliver, ShardLoops

    monkeypatch.setattr("pgqpy_consumers.spark._shards_consumer.GATHER", 0.0)
    calls: list[list[str]] = []
    conns = {name: shards[name] for name in "ab"}

    def opened(name: str) -> object:
        return ops.value(
            conns[name], "select current_batch from pgq.get_consumer_info(%s, %s)", QUEUE, CONSUMER
        )

    def make(_: str, dsn: str, deliver: Deliver) -> Delivering:
        made = Delivering(dsn)
        made.deliver = deliver
        return made

    def process(conns: Conns, batches: Batches) -> None:
        calls.append([*batches])
        if len(calls) == 1:
            # Another loop waits, or will.
            for name in "ab":
                wait_until(partial(opened, name))
            raise KeyboardInterrupt
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)

    for name in "ab":
        shards.produce(name, "1")
    loops = ShardLoops(str(shards.path), make, process)
    with pytest.raises(KeyboardInterrupt):
        loops.run()
    assert len(calls) == 1
    loops.run()
    assert len(calls) > 1


def test_loops_end_when_an_interruption_comes_while_a_batch_waits_for_others(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pgqpy_consumers.spark import _shards_consumer as module

    times = iter([monotonic()])

    def interrupted() -> float:
        for time in times:
            return time
        raise KeyboardInterrupt

    def make(_: str, dsn: str, deliver: module.Deliver) -> Delivering:
        made = Delivering(dsn)
        made.deliver = deliver
        return made

    monkeypatch.setattr(module, "monotonic", interrupted)
    for name in "ab":
        shards.produce(name, "1")
    with pytest.raises(KeyboardInterrupt):
        module.ShardLoops(str(shards.path), make, lambda *_: None).run(handle_signals=False)


# --- in Spark


def test_all_shards_are_one_dataframe(spark: SparkSession, shards: Shards) -> None:
    shards.map("a", "b", "c")
    for shard in "abc":
        shards.produce(shard, '{"n": 1}', '{"n": 2}')
    tick = ops.value(shards["b"], "select max(tick_time) from pgq.tick")

    def load(schema: str | None = None, **options: str) -> DataFrame:
        given = {"shards": str(shards.path), "queue": QUEUE} | options
        reader = spark.read.format("pgq").options(**given)
        return (reader.schema(schema) if schema else reader).load()

    df = load()
    shards.produce("a", "later")
    assert df.columns == [*EVENT_SCHEMA.names, "shard"]
    rows = [f"{row.shard}:{row.ev_data}" for row in df.select("shard", "ev_data").collect()]
    assert sorted(rows) == [f'{each}:{{"n": {n}}}' for each in "abc" for n in (1, 2)]
    assert df.rdd.getNumPartitions() == 3
    assert load().count() == 7
    # Columns, payloads, and times as of one queue.
    decoded = load("n int, shard string", payload="json", where="ev_data like '%2%'").collect()
    assert sorted(map(tuple, decoded)) == [(2, "a"), (2, "b"), (2, "c")]
    assert load(columns="shard,ev_id").columns == ["shard", "ev_id"]
    assert load(startTime=tick.isoformat()).where("shard = 'b'").count() == 0
    shards.map("a")
    assert load().select("shard").distinct().collect() == [("a",)]


def test_a_stream_over_shards_is_exact_while_one_is_killed_and_one_joins(
    spark: SparkSession, shards: Shards, mortal_shard: Server, tmp_path: Path
) -> None:
    seen: list[tuple[int, str, int]] = []
    produced: list[tuple[str, int]] = []

    def effect(df: DataFrame, number: int) -> None:
        # A micro-batch that comes again replaces what it brought before.
        rows = [(number, row.shard, row.ev_id) for row in df.select("shard", "ev_id").collect()]
        seen[:] = [each for each in seen if each[0] != number] + rows

    def start() -> StreamingQuery:
        reader = spark.readStream.format("pgq").options(
            shards=str(shards.path),
            queue=QUEUE,
            consumer=CONSUMER,
            startingPosition="earliest",
            onShardDown="wait",
            maxEventsPerTrigger="200",
        )
        writer = reader.load().writeStream.foreachBatch(effect)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def produce(*names: str) -> None:
        for name in names:
            rows = shards[name].execute(
                "select e.* from pgq.insert_events(%s, array_fill('t'::text, '{50}'),"
                " array_fill('d'::text, '{50}')) e",
                [QUEUE],
            )
            produced.extend((name, event) for (event,) in rows)
            ops.tick(shards[name], QUEUE)

    def all_seen() -> bool:
        return len(seen) >= len(produced)

    produce("a", "c")
    query = start()
    try:
        wait_until(all_seen, SPARK_PATIENCE)
        produce("c")
        mortal_shard.kill()
        produce("a", "a", "b")
        shards.map("a", "b", "c")
        here = sum(shard != "c" for shard, _ in produced)
        wait_until(lambda: sum(shard != "c" for _, shard, _ in seen) >= here, SPARK_PATIENCE)
        query.stop()
        query = start()
        produce("a", "b")
        mortal_shard.restart()
        produce("c")
        wait_until(all_seen, SPARK_PATIENCE)
    finally:
        query.stop()
    assert sorted((shard, event) for _, shard, event in seen) == sorted(produced)
    offsets = b"".join(path.read_bytes() for path in (tmp_path / "checkpoint").rglob("[0-9]*"))
    assert b'"shards": {"a": {"queue": ' in offsets
    assert b"host" not in offsets
    assert b"postgres" not in offsets


# --- SparkConsumer


def test_a_consumer_gets_the_batches_of_all_shards_in_one_call(
    spark: SparkSession,
    shards: Shards,
    mortal_shard: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pgqpy_consumers.spark import SparkConsumer

    monkeypatch.setattr("pgqpy_consumers.spark._shards_consumer.GATHER", SPARK_PATIENCE)
    shards.map("a", "b", "c")
    calls: list[list[str]] = []
    failures = iter([RuntimeError("not yet"), None])

    class All(SparkConsumer):
        queue = QUEUE
        consumer = CONSUMER
        start: Start = "first"

        def process_batches(
            self, spark: SparkSession, batches: Mapping[str, pgqpy.Batch], df: DataFrame
        ) -> None:
            rows = sorted(f"{row.shard}:{row.ev_data}" for row in df.collect())
            calls.append(rows)
            assert sorted(batches) == sorted(self.conns) == sorted({row[0] for row in rows})
            for shard, conn in self.conns.items():
                conn.execute("insert into effect values (%s)", [batches[shard].id])
            error = next(failures, None)
            if error is not None:
                raise error

    for shard in "abc":
        shards[shard].execute("create table effect (batch_id bigint)")
        shards.produce(shard, "1")

    def unclaimed() -> bool:
        # The server may take a moment to end a session; a shard that is claimed is left out.
        claims = "select count(*) from pg_locks where locktype = 'advisory' and classid = %s"
        databases = (
            " and database = (select oid from pg_database where datname = current_database())"
        )
        return not any(ops.value(shards[s], claims + databases, LOCK) for s in "abc")

    every = ["a:1", "b:1", "c:1"]
    consumer = All(shards=str(shards.path), spark=spark)
    with pytest.raises(RuntimeError, match="not yet"):
        consumer.run(until_empty=True)
    wait_until(unclaimed)
    consumer.run(until_empty=True)
    wait_until(unclaimed)
    assert calls == [every, every]
    assert [ops.value(shards[shard], "select count(*) from effect") for shard in "abc"] == [1] * 3

    # One that is down stops no other, and is caught up.
    monkeypatch.undo()
    shards.produce("c", "2")
    mortal_shard.kill()
    shards.produce("a", "2")
    with pytest.raises(ConnectionFailed, match="were down: c"):
        consumer.run(until_empty=True)
    assert calls[2:] == [["a:2"]]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(consumer.run)
        shards.produce("b", "2")
        wait_until(lambda: calls[3:] == [["b:2"]], SPARK_PATIENCE)
        mortal_shard.restart()
        wait_until(lambda: calls[4:] == [["c:2"]], SPARK_PATIENCE)
        consumer.stop()
        running.result()
    with pytest.raises(InvalidConsumer, match="no process_batches"):
        SparkConsumer(shards=str(shards.path), queue=QUEUE, consumer=CONSUMER)


# --- archive and replay


def test_an_archive_of_shards_has_each_event_once_and_can_be_replayed(
    spark: SparkSession, shards: Shards, mortal_shard: Server, tmp_path: Path
) -> None:
    from pgqpy_consumers.spark import Archive, Replay, Selection
    from pgqpy_consumers.spark._archive_log import ArchiveError

    class Lake(Archive):
        queue = QUEUE
        path = str(tmp_path / "lake")

    def archive() -> None:
        Lake.run_shards(str(shards.path), spark=spark, until_empty=True)

    shards.map("a", "b", "c")
    for shard in "abc":
        shards.produce(shard, "1", "2")
    archive()
    shards.produce("c", "3")
    mortal_shard.kill()
    shards.produce("a", "3")
    with pytest.raises(ConnectionFailed, match="were down: c"):
        archive()
    mortal_shard.restart()
    archive()
    archive()
    rows = spark.read.parquet(Lake.path).select("shard", "ev_data").collect()
    every = ["a:1", "a:2", "a:3", "b:1", "b:2", "c:1", "c:2", "c:3"]
    assert sorted(f"{row.shard}:{row.ev_data}" for row in rows) == every

    with pytest.raises(ArchiveError, match="an archive of shards"):
        Lake(shards.dsns["a"], spark=spark).register()
    with pytest.raises(ArchiveError, match="no shard x"):
        Replay(spark, Lake.path, Selection(shard="x"))
    shards["b"].execute("select pgq.create_queue('again')")
    ops.register(shards["b"], "again", "reader")
    Replay(spark, Lake.path, Selection()).send(shards.dsns["b"], "again", mark="ev_extra4")
    ops.tick(shards["b"], "again")
    sent = ops.events(shards["b"], ops.next_batch(shards["b"], "again", "reader"))
    assert [f"{json.loads(row[9])['shard']}:{row[5]}" for row in sent] == every
    counts = Replay(spark, Lake.path, Selection(shard="c")).counts()
    assert [each.events for each in counts] == [3]
