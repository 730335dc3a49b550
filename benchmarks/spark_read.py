"""A range of 1,000,000 events, read by Spark and aggregated: `format("pgq")`, JDBC, COPY by hand.

In `local[2]`, with the full heap from the start. JDBC reads the queue's own table with as many
partitions and a `fetchsize` of 10,000. It fetches the columns that are asked for; so does `pgq`
with option `columns`, and once all ten. By hand is two binary COPYs at a time, not decoded. Then
JSON payloads of about 110 bytes become six columns, by option `payload`, and by `from_json`.
Planning counts; all connect over TCP. Memory is the most that processes had.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks._result import Cell
from benchmarks._servers import CREATE_QUEUE, KEEPER, connect, fill, pgqpy_database
from benchmarks.bench import Bench, timed
from benchmarks.programs.protocol import peak_memory
from benchmarks.spark_session import (
    PARTITIONS,
    is_missing,
    jdbc_options,
    spark_process,
    spark_session,
    tcp,
    tcp_server,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

TICK_EVERY = 10_000
FETCH = 10_000
BY_HAND, JDBC = f"{PARTITIONS} x COPY", "JDBC"
SOURCE, SOURCE_ALL = "pgq", "pgq, all columns"
FROM_JSON, PAYLOAD = "JDBC, from_json", "pgq, payload"
HEAP = "1g"

FILL = """
select count(pgq.insert_event('q', 'flight', json_build_object(
           'id', 1000000 + n, 'origin', (array['EWR', 'JFK', 'LGA'])[1 + n %% 3],
           'delay', (n %% 1200)::float8 / 8, 'cancelled', n %% 50 = 0,
           'day', date '2013-01-01' + n %% 365,
           'left', timestamp '2013-01-01' + n * interval '1 second' || 'Z')::text))
  from generate_series(%d, %d) n
"""
TABLE = "select pgq.current_event_table('q')"
COLUMNS = "ev_id,ev_time,ev_type,ev_data"
TYPED = "id long, origin string, delay double, cancelled boolean, day date, left timestamp"


class Reading:
    """Reads the rows in several ways."""

    def __init__(self, spark: SparkSession, dsn: str, count: int) -> None:
        self.spark = spark
        self.dsn = dsn
        self.count = count
        with connect(dsn) as conn:
            [(self.table,)] = conn.execute(TABLE).fetchall()

    def source(self, **options: str | int) -> DataFrame:
        return self._reader(**options).load()

    def payload(self) -> DataFrame:
        return self._reader(payload="json").schema(TYPED).load()

    def jdbc(self) -> DataFrame:
        cut: dict[str, str | int] = {"lowerBound": 1, "upperBound": self.count + 1}
        cut |= {"partitionColumn": "ev_id", "numPartitions": PARTITIONS, "fetchsize": FETCH}
        reader = self.spark.read.format("jdbc").options(**jdbc_options(self.dsn, self.table))
        return reader.options(**cut).load()

    def from_json(self) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        payload = F.from_json("ev_data", TYPED, {"mode": "FAILFAST"})
        return self.jdbc().select(payload.alias("payload")).select("payload.*")

    def by_hand(self) -> None:
        edges = [1 + self.count * part // PARTITIONS for part in range(PARTITIONS + 1)]
        with ThreadPoolExecutor(PARTITIONS) as threads:
            list(threads.map(self._copy, edges, edges[1:]))

    def _copy(self, first: int, end: int) -> None:
        rows = f"select {COLUMNS} from {self.table} where ev_id >= {first} and ev_id < {end}"
        statement = f"copy ({rows}) to stdout binary".encode()
        with connect(self.dsn) as conn, conn.cursor().copy(statement) as copy:
            for _ in copy:
                pass

    def _reader(self, **options: str | int) -> DataFrameReader:
        reader = self.spark.read.format("pgq").options(dsn=self.dsn, queue="q", **options)
        return reader.option("numPartitions", PARTITIONS)


def aggregate(df: DataFrame, count: int) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    times = F.min("ev_id"), F.max("ev_time"), F.sum(F.length("ev_data"))
    rows = df.groupBy("ev_type").agg(F.count("*").alias("events"), *times).collect()
    assert sum(row["events"] for row in rows) == count


def aggregate_typed(df: DataFrame, count: int) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    cancelled = F.count_if("cancelled").alias("cancelled")
    rest = F.sum("id"), F.avg("delay"), cancelled, F.max("day"), F.max("left")
    rows = df.groupBy("origin").agg(F.count("*").alias("events"), *rest).collect()
    assert sum(row["events"] for row in rows) == count
    assert sum(row["cancelled"] for row in rows) == count // 50


def most_memory(reading: Reading, first: int, last: int) -> tuple[float, float]:
    """The peak memory in MB of Java and a Python worker while the ticks in between were read."""
    java = spark_process()
    for process in (java, *java.children(recursive=True)):
        # Resets the peak.
        Path(f"/proc/{process.pid}/clear_refs").write_text("5")
    ticks = {"startTick": first, "endTick": last}
    aggregate(reading.source(columns=COLUMNS, **ticks), (last - first) * TICK_EVERY)
    workers = [each for each in java.children(recursive=True) if each.name().startswith("python")]
    return most(java), max(map(most, workers))


def most(process: psutil.Process) -> float:
    return peak_memory(process.pid) / 1024


def measure_memory(bench: Bench, reading: Reading) -> None:
    with connect(reading.dsn) as conn:
        [(first, last)] = conn.execute("select min(tick_id), max(tick_id) from pgq.tick").fetchall()
    a_tenth = first + max((last - first) // 10, 1)
    rounds = bench.choose(4, quick=1)
    few = [most_memory(reading, first, a_tenth) for _ in range(2 * rounds)][rounds:]
    many = [most_memory(reading, first, last) for _ in range(rounds)]
    rows: list[list[Cell]] = []
    grown = []
    for place, name in enumerate(("Java", "a Python worker")):
        small, large = (max(each[place] for each in some) for some in (few, many))
        rows.append([name, small, large])
        grown.append(large - small)
    events = [(tick - first) * TICK_EVERY for tick in (a_tenth, last)]
    columns = ("", *(f"{number:,} events" for number in events))
    bench.table("Memory at most, MB", columns, rows)
    bench.at_most(
        "S6a",
        f"what a Python worker has more of during {events[1]:,} events than {events[0]:,}",
        grown[1],
        2.0,
        "MB",
        note=f"The issue says flat; the payloads alone are {110 * reading.count / 1e6:.0f} MB.",
    )
    bench.at_most(
        "S6b",
        "the same for Java, beyond its heap",
        grown[0],
        16.0,
        "MB",
        note=f"The heap is {HEAP} in all cases, and is touched before anything is read.",
    )


def run(bench: Bench) -> None:
    if is_missing(bench):
        return
    count, rounds = bench.choose((1_000_000, 5), quick=(40_000, 1))
    heap = {
        "spark.driver.memory": HEAP,
        "spark.driver.extraJavaOptions": f"-Xms{HEAP} -XX:+AlwaysPreTouch",
    }
    with tcp_server(bench) as server, spark_session(bench, heap) as spark:
        dsn = tcp(pgqpy_database(server, CREATE_QUEUE, KEEPER))
        bench.say("Filling the queue")
        with connect(dsn) as conn:
            firsts = range(1, count, TICK_EVERY)
            fill(conn, (FILL % (first, first + TICK_EVERY - 1) for first in firsts))
        reading = Reading(spark, dsn, count)
        bench.say("Memory")
        measure_memory(bench, reading)
        ranges = bench.contest(
            f"{count:,} events",
            {
                JDBC: partial(timed, lambda: aggregate(reading.jdbc(), count)),
                SOURCE: partial(timed, lambda: aggregate(reading.source(columns=COLUMNS), count)),
                SOURCE_ALL: partial(timed, lambda: aggregate(reading.source(), count)),
                BY_HAND: partial(timed, reading.by_hand),
            },
            rounds=rounds,
            items=count,
            unit="events",
        )
        typed = bench.contest(
            f"{count:,} JSON payloads to six columns",
            {
                FROM_JSON: partial(timed, lambda: aggregate_typed(reading.from_json(), count)),
                PAYLOAD: partial(timed, lambda: aggregate_typed(reading.payload(), count)),
            },
            rounds=rounds,
            items=count,
            unit="events",
        )
    all_columns = ranges.ratio(SOURCE_ALL, JDBC).value
    bench.at_least(
        "S1",
        f"{SOURCE}, times {JDBC}",
        ranges.ratio(SOURCE, JDBC),
        1.0,
        note="With the columns that are aggregated, which are those that JDBC fetches;"
        f" with all ten {all_columns:.2f} x.",
    )
    bench.at_least("S2", f"{PAYLOAD}, times {FROM_JSON}", typed.ratio(PAYLOAD, FROM_JSON), 1.0)
