"""One stream of Spark over many shards, while servers and the driver are killed and shards join.

::

    python -m tests.faults.spark_shards --shards 8 --servers 3 --seconds 60

Producers write into each shard in the map, and note each event in a table, in one transaction. The
driver keeps what each micro-batch held in a file of its own, which a repeated one replaces. In the
end both must be equal: each committed event once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from itertools import cycle
from pathlib import Path

import psycopg

from pgqpy.embedded import Server
from pgqpy.schema import schema_sql
from pgqpy.shards import HASHES
from tests.fixtures.fix_example import Program

QUEUE = "orders"
PATIENCE = 300.0
PAUSE = 0.5

DRIVER = """
import json, sys
from pathlib import Path
from pgqpy_consumers.spark import PgqDataSource, local_session

shards, home = sys.argv[1], Path(sys.argv[2])

def keep(df, number):
    rows = [f"{row.shard} {row.ev_data}" for row in df.select("shard", "ev_data").collect()]
    new = home / f"{number}.new"
    new.write_text(json.dumps(rows))
    new.rename(home / f"{number}.json")

spark = local_session("local[2, 8]", {"spark.sql.shuffle.partitions": "2"})
spark.dataSource.register(PgqDataSource)
events = spark.readStream.format("pgq").options(
    shards=shards, queue="orders", consumer="all", startingPosition="earliest",
    onShardDown="wait", maxEventsPerTrigger="20000", columns="ev_data,shard",
).load()
query = (events.writeStream.foreachBatch(keep)
         .option("checkpointLocation", str(home / "checkpoint")).start())
query.awaitTermination()
"""

INSERT = """
with e as (select pgq.insert_event('orders', 't', d) from unnest(%(data)s::text[]) d),
     t as (insert into truth select d from unnest(%(data)s::text[]) d)
select count(*) from e
"""


class Producer(threading.Thread):
    """Writes into one shard until it is stopped, whatever happens to its server."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self._stopping = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            with (
                suppress(psycopg.OperationalError),
                psycopg.connect(self._dsn, autocommit=True) as conn,
            ):
                while not self._stopping.wait(PAUSE):
                    number += 1
                    data = [f"{number}.{each}" for each in range(50)]
                    conn.execute(INSERT, {"data": data})
                    conn.execute("select pgq.ticker()")
            time.sleep(0.1)

    def stop(self) -> None:
        self._stopping.set()
        self.join()


class Stream:
    """The driver, which is started again when it has died."""

    def __init__(self, shards: Path, home: Path) -> None:
        self._command = [sys.executable, "-c", DRIVER, str(shards), str(home)]
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        self._program = Program(*self._command, environment={})

    def tend(self) -> None:
        """Start it again if it has ended."""
        if self._program.process.poll() is not None:
            print(*self._program.lines[-30:], sep="\n", flush=True)
            self.kill()
            self.start()

    def kill(self) -> None:
        """SIGKILL, for its Java and its workers, too."""
        self._program.end()


def seen(home: Path) -> Counter[str]:
    return Counter(each for file in home.glob("*.json") for each in json.loads(file.read_text()))


def write_map(path: Path, dsns: dict[str, str]) -> None:
    new = path.with_suffix(".new")
    parts = [f'queue = "{QUEUE}"']
    for number, (name, dsn) in enumerate(dsns.items()):
        edges = [HASHES * number // len(dsns), HASHES * (number + 1) // len(dsns)]
        parts.append(f"[shards.{name}]\ndsn = {json.dumps(dsn)}\nhashes = {edges}")
    new.write_text("\n".join(parts))
    new.rename(path)


def create(server: Server, name: str) -> str:
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute(f"create database {name}".encode())
    with psycopg.connect(server.dsn_of(name), autocommit=True) as conn:
        conn.execute(schema_sql().encode())
        conn.execute("create table truth (data text primary key)")
        conn.execute("select pgq.create_queue(%s)", [QUEUE])
        conn.execute("select pgq.set_queue_config(%s, 'ticker_max_lag', '0.2')", [QUEUE])
    return server.dsn_of(name)


def truth(dsns: dict[str, str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for name, dsn in dsns.items():
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("select pgq.force_tick(%s)", [QUEUE])
            conn.execute("select pgq.ticker(%s)", [QUEUE])
            found.update(f"{name} {data}" for (data,) in conn.execute("select data from truth"))
    return found


def run(home: Path, shards: int, servers: int, seconds: float) -> None:
    done: Counter[str] = Counter()
    with ExitStack() as stack:
        running = [stack.enter_context(Server(settings={"jit": False})) for _ in range(servers)]
        names = [f"s{number}" for number in range(shards)]
        dsns = {
            name: create(server, name) for name, server in zip(names, cycle(running), strict=False)
        }
        here = dict(list(dsns.items())[: max(shards * 3 // 4, 1)])
        waiting = dict(list(dsns.items())[len(here) :])
        path = home / "shards.toml"
        write_map(path, here)
        producers = [Producer(dsn) for dsn in dsns.values()]
        for producer in producers:
            producer.start()
        stream = Stream(path, home)
        stack.callback(stream.kill)
        began = time.monotonic()
        join_every = seconds / (len(waiting) + 1)
        while not seen(home):
            stream.tend()
            time.sleep(0.5)
        print(f"first micro-batch after {time.monotonic() - began:.0f} s", flush=True)
        began = time.monotonic()
        while (now := time.monotonic() - began) < seconds:
            kind = random.choices(["server", "driver"], [5, 1])[0]
            if kind == "server":
                down = random.sample(running, random.choice([1, 1, 2]))
                for server in down:
                    server.kill()
                before = seen(home)
                time.sleep(random.uniform(0.5, 6))
                done["batches went on"] += (seen(home) - before).total() > 0
                for server in down:
                    server.restart()
                done["servers killed"] += len(down)
            else:
                stream.kill()
                done["driver killed"] += 1
            if waiting and now > join_every * (len(here) - shards * 3 // 4 + 1):
                name = next(iter(waiting))
                here[name] = waiting.pop(name)
                write_map(path, here)
                done["shards joined"] += 1
            time.sleep(random.uniform(1, 3))
            stream.tend()
            print(f"{now:5.0f} s: {seen(home).total():,} events, {dict(done)}", flush=True)
        write_map(path, dsns)
        for producer in producers:
            producer.stop()
        expected = truth(dsns)
        deadline = time.monotonic() + PATIENCE
        while seen(home).total() < expected.total() and time.monotonic() < deadline:
            stream.tend()
            time.sleep(0.5)
        time.sleep(2)
        found = seen(home)
        print(
            f"{expected.total():,} events committed in {shards} shards, {found.total():,} seen;"
            f" lost {(expected - found).total()}, doubled {(found - expected).total()};"
            f" {dict(done)}; the driver was started {stream.starts} times"
        )
        assert found == expected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["TMPDIR"] = home
        run(Path(home), given.shards, given.servers, given.seconds)


if __name__ == "__main__":
    main()
