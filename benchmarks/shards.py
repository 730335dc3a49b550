"""One queue over 1, 2, 4 and 8 servers on this machine, and what servers of their own would do.

pgbench inserts into each shard as fast as it can, an event a transaction, with 8 clients in all; a
ticker for each, and one process that reads all shards. All of them share two cores, so the total
cannot grow with the shards: it shrinks, as each server has its own work for fewer events. The
processor time of an event with one, by part, and its WAL say what servers of their own would
carry: see docs/scaling.md.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

import pgqpy
from benchmarks._beside import ticker
from benchmarks._meter import used
from benchmarks._pgbench import producers
from benchmarks._servers import CREATE_QUEUE, LSN, connect, pgqpy_database
from benchmarks.bench import Bench
from benchmarks.insert import INTO_RELATION
from benchmarks.readers import Position, Record, readers
from pgqpy.embedded import Server
from pgqpy.shards import HASHES

CLIENTS = 8
REGISTER = "select pgq.register_consumer('q', 'tally')"


class Tally(pgqpy.Consumer):
    """Counts events."""

    queue, consumer = "q", "tally"
    record: Record
    lock = threading.Lock()

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        pass

    def on_batch(self, stats: pgqpy.BatchStats) -> None:
        with Tally.lock:
            Tally.record.finish(stats.events)


def read(shards: str, positions: Sequence[Position], record: Record) -> None:
    """Read all shards until SIGTERM."""
    Tally.record = record
    consumer = pgqpy.ShardedConsumer(Tally, shards)
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    consumer.run(handle_signals=False)


def write_map(path: Path, dsns: list[str]) -> None:
    edges = [HASHES * number // len(dsns) for number in range(len(dsns) + 1)]
    lines = ['queue = "q"']
    for number, dsn in enumerate(dsns):
        lines.append(f"[shards.s{number}]\ndsn = {json.dumps(dsn)}")
        lines.append(f"hashes = {edges[number : number + 2]}")
    path.write_text("\n".join(lines))


def of_server(server: Server) -> float:
    """The processor seconds of a server's processes so far, those that have ended included."""
    postmaster = psutil.Process(server.pid)
    times = postmaster.cpu_times()
    seconds = used(postmaster) + float(times.children_user + times.children_system)
    for each in postmaster.children():
        with suppress(psutil.NoSuchProcess):
            seconds += used(each)
    return seconds


@contextmanager
def shards(bench: Bench, number: int) -> Iterator[dict[str, Server]]:
    """Servers with a queue each, by the DSNs of their databases."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(bench.server(autovacuum=False, shared_buffers="128MB"))
            for _ in range(number)
        ]
        yield {pgqpy_database(each, CREATE_QUEUE, REGISTER): each for each in servers}


def measure(bench: Bench, number: int, seconds: float) -> tuple[float, float, float, float]:
    """Events read a second; processor microseconds of an event, of servers and of the rest;
    bytes of WAL."""
    with TemporaryDirectory() as directory, shards(bench, number) as servers, ExitStack() as stack:
        path = Path(directory, "shards.toml")
        write_map(path, [*servers])
        programs = [stack.enter_context(ticker(dsn)) for dsn in servers]
        group = stack.enter_context(readers(str(path), [("q", "tally")], work=read))
        programs += group.processes

        def wal() -> int:
            found = 0
            for dsn in servers:
                with connect(dsn) as conn:
                    found += int(conn.execute(LSN).fetchall()[0][0])
            return found

        began, before, logged = time.monotonic(), sum(map(of_server, servers.values())), wal()
        others = sum(map(used, programs))
        with ExitStack() as busy:
            for dsn, server in servers.items():
                clients = max(1, CLIENTS // number)
                busy.enter_context(producers(server, dsn, INTO_RELATION, clients=clients))
            time.sleep(seconds)
            events, took = group.events, time.monotonic() - began
            spent = sum(map(of_server, servers.values())) - before
            others = sum(map(used, programs)) - others
            logged = wal() - logged
    return events / took, 1e6 * spent / events, 1e6 * others / events, logged / events


def run(bench: Bench) -> None:
    seconds = bench.choose(15.0, quick=2.0)
    rows = []
    for number in bench.choose((1, 2, 4, 8), quick=(1, 2)):
        rate, server, others, logged = measure(bench, number, seconds)
        rows.append((f"{number}", rate, server, others, logged))
        bench.say(f"{number} shards: {rate:,.0f} events/s")
    bench.table(
        "Shards on two cores",
        ("", "events/s in all", "server, us", "ticker and reader, us", "WAL, bytes"),
        rows,
    )
