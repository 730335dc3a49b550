"""Cascaded queues: a branch beside its root, one process, all databases on one server.

First 1,000 events a second, each a transaction, with the default ticker: the delay is the time from
the notification of a tick at the root to that of the same tick, or a later one, at the branch. Then
1,000,000 events with a tick every 1,000 are copied into a new branch, and by hand: psql's binary
COPY out of the event table, piped into COPY of another psql, in one transaction, into a plain table
with the same columns and index. Last, 100 idle queues with nodes in three databases.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter

import psutil

from benchmarks._beside import processes
from benchmarks._meter import Meter, Party
from benchmarks._program import python_program
from benchmarks._servers import FLIGHTS, PLAIN_TABLE, TICK, connect, database, ticker
from benchmarks.bench import Bench
from benchmarks.latency import listen
from pgqpy.cascade import CascadedWorker
from pgqpy.embedded import Server
from pgqpy.schema import node_sql, schema_sql

PGQPY = python_program("pgqpy")
TICK_EVERY = 1_000
COLUMNS = "ev_id, ev_time, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
COPY_OUT = f"copy (select {COLUMNS} from pgq.event) to stdout (format binary)"
COPY_IN = f"copy plain ({COLUMNS}) from stdin (format binary)"
BY_HAND, WORKER = "COPY out | COPY in", "pgqpy, a new branch"


def run(bench: Bench) -> None:
    with bench.server() as server:
        behind(bench, server, 1_000, bench.choose(30_000, quick=2_000))
    with bench.server(autovacuum=False) as server:
        copying(bench, server, *bench.choose((1_000_000, 5), quick=(20_000, 1)))
    with bench.server(max_connections=300) as server:
        idle(bench, server, bench.choose(100, quick=5), 60 * bench.minutes(2))


def node(server: Server, name: str, *scripts: str) -> str:
    return database(server, name, schema_sql(), node_sql(), *scripts)


def join(queue: str, name: str, dsn: str, provider: tuple[str, str] | None = None) -> None:
    """Make the database a node of the queue."""
    with connect(dsn) as conn, connect(provider[1] if provider else dsn) as above:
        locate = "select pgq_node.register_location(%s, %s, %s, false)"
        for known, location in filter(None, [(name, dsn), provider]):
            conn.execute(locate, [queue, known, location])
            above.execute(locate, [queue, known, location])
        kind, watermark = "root", None
        if provider:
            kind = "branch"
            [(watermark,)] = above.execute(
                "select global_watermark from pgq_node.register_subscriber(%s, %s, %s, null)",
                [queue, name, f"{name}_worker"],
            ).fetchall()
        conn.execute(
            "select pgq_node.create_node(%s, %s, %s, %s, %s, %s, null)",
            [queue, kind, name, f"{name}_worker", provider and provider[0], watermark],
        )


@contextmanager
def cascade(*nodes: str) -> Iterator[psutil.Process]:
    """Run ``pgqpy run cascade``."""
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "cascade.toml")
        config.write_text(f"nodes = {json.dumps(nodes)}\n")
        log = Path(directory, "log")
        command = [sys.executable, "-m", "pgqpy", "run", "cascade", str(config)]
        with log.open("w") as output, subprocess.Popen(command, stderr=output) as process:
            try:
                yield psutil.Process(process.pid)
                if process.poll() is not None:
                    raise RuntimeError(f"the cascade ended: {log.read_text()}")
            finally:
                process.terminate()


def behind(bench: Bench, server: Server, rate: int, count: int) -> None:
    root, branch = node(server, "root"), node(server, "branch")
    join("q", "root", root)
    join("q", "branch", branch, ("root", root))
    with (
        ticker(root) as daemon,
        cascade(root, branch) as process,
        processes(listen, [(root,), (branch,)]) as (_, pipes),
        connect(branch) as conn,
    ):
        time.sleep(bench.choose(3, quick=1))
        own = Party([process], ("pgqpy cascade", "pgqpy listen"))
        meter = Meter(conn, {"ticker": Party([daemon], ("pgqpy ticker",)), "cascade": own})
        PGQPY.send(root, count, rate)
        shares, _ = meter.shares()
        time.sleep(1)
        for pipe in pipes:
            pipe.send(None)
        at_root, at_branch = (pipe.recv() for pipe in pipes)
    ticks = sorted(at_branch)
    seconds = [
        at_branch[ticks[place]] - heard
        for tick, heard in at_root.items()
        if (place := bisect_left(ticks, tick)) < len(ticks)
    ]
    delays = bench.delays(f"A branch behind its root, {rate:,} events a second", {"tick": seconds})
    bench.table(
        f"Processor time at {rate:,} events a second, of one core",
        ("", "program", "its sessions"),
        [(name, share.program, share.sessions) for name, share in shares.items()],
    )
    bench.at_most("C8a", "a branch behind its root, p50", delays.ms("tick", 50), 10, "ms")
    bench.at_most("C8b", "a branch behind its root, p99", delays.ms("tick", 99), 100, "ms")


def copying(bench: Bench, server: Server, count: int, rounds: int) -> None:
    root, branch = node(server, "root"), node(server, "branch", PLAIN_TABLE)
    join("q", "root", root)
    with connect(root) as conn:
        for _ in range(count // TICK_EVERY):
            conn.execute((FLIGHTS % TICK_EVERY).encode())
            conn.execute(TICK.encode())
    psql = server.bin_dir / "psql"
    contest = bench.contest(
        "From one database to another",
        {
            BY_HAND: lambda: by_hand(psql, root, branch),
            WORKER: lambda: copy(root, branch, count),
        },
        rounds=rounds,
        items=count,
        unit="events",
    )
    bench.at_least("C9", f"{WORKER}, times {BY_HAND}", contest.ratio(WORKER, BY_HAND), 0.8)


def by_hand(psql: Path, source: str, target: str) -> float:
    with connect(target) as conn:
        conn.execute("truncate plain")
    began = perf_counter()
    with subprocess.Popen([psql, source, "-qXc", COPY_OUT], stdout=subprocess.PIPE) as out:
        subprocess.run([psql, target, "-qXc", COPY_IN], stdin=out.stdout, check=True)
    assert out.returncode == 0
    return perf_counter() - began


def copy(root: str, branch: str, count: int) -> float:
    with connect(root) as above, connect(branch) as conn:
        above.execute("select pgq_node.unregister_subscriber('q', 'branch')")
        conn.execute("select pgq_node.drop_node('q', 'branch')")
    join("q", "branch", branch, ("root", root))
    began = perf_counter()
    CascadedWorker(branch, queue="q").run(until_empty=True)
    seconds = perf_counter() - began
    with connect(branch) as conn:
        [(copied,)] = conn.execute("select count(*) from pgq.event").fetchall()
    assert copied >= count, f"{copied:,} events were copied"
    return seconds


def idle(bench: Bench, server: Server, queues: int, seconds: float) -> None:
    names: Sequence[str] = ("root", "branch", "below")
    dsns = [node(server, name) for name in names]
    chain = list(zip(names, dsns, strict=True))
    for number in range(queues):
        provider = None
        for name, dsn in chain:
            join(f"q{number}", name, dsn, provider)
            provider = name, dsn
    with ExitStack() as stack:
        daemon = stack.enter_context(ticker(dsns[0]))
        process = stack.enter_context(cascade(*dsns))
        conn = stack.enter_context(connect(dsns[0]))
        time.sleep(bench.choose(60, quick=3))
        own = Party([process], ("pgqpy cascade", "pgqpy listen"))
        meter = Meter(conn, {"ticker": Party([daemon], ("pgqpy ticker",)), "cascade": own})
        time.sleep(seconds)
        shares, _ = meter.shares()
    bench.table(
        f"Processor time of {queues} idle queues on three nodes, % of one core",
        ("", "program", "its sessions"),
        [(name, 100 * each.program, 100 * each.sessions) for name, each in shares.items()],
    )
    bench.at_most(
        "C10",
        f"{queues} idle queues on 3 nodes, the process and its sessions, of a core",
        100 * shares["cascade"].both,
        30,
        "%",
    )
