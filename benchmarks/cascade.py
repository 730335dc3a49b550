"""Cascaded queues: a branch beside its root, one process, all databases on one server.

First 1,000 events a second, each a transaction, with the default ticker: the delay is the time from
the notification of a tick at the root to that of the same tick, or a later one, at the branch. Then
1,000,000 events with a tick every 1,000 are copied into a new branch, and by hand: psql's binary
COPY out of the event table, piped into COPY of another psql, in one transaction, into a plain table
with the same columns and index. Last, 100 idle queues with nodes in three databases.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from contextlib import AbstractContextManager, ExitStack
from functools import partial

import psutil

from benchmarks._beside import PYTHON, daemon, processes, ticker
from benchmarks._meter import Meter, Party
from benchmarks._program import python_program
from benchmarks._servers import (
    FLIGHTS,
    PLAIN_TABLE,
    Connection,
    connect,
    fill,
    pgqpy_database,
)
from benchmarks.bench import Bench, timed
from benchmarks.latency import listen
from benchmarks.mover import BY_HAND, by_hand
from pgqpy.cascade import CascadedWorker, Nodes, create_node, drop_node
from pgqpy.embedded import Server
from pgqpy.schema import node_sql

PGQPY = python_program("pgqpy")
TICK_EVERY = 1_000
COLUMNS = "ev_id, ev_time, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
EVENTS = f"select {COLUMNS} from pgq.event"
WORKER = "pgqpy, a new branch"


def run(bench: Bench) -> None:
    with bench.server() as server:
        behind(bench, server, 1_000, bench.choose(30_000, quick=2_000))
    with bench.server(autovacuum=False) as server:
        copying(bench, server, *bench.choose((1_000_000, 5), quick=(20_000, 1)))
    with bench.server(max_connections=300) as server:
        idle(bench, server, bench.choose(100, quick=5), 60 * bench.minutes(2))


def node(server: Server, *scripts: str) -> str:
    return pgqpy_database(server, node_sql(), *scripts)


def cascade(*nodes: str) -> AbstractContextManager[psutil.Process]:
    """Run ``pgqpy run cascade``."""
    return daemon(*PYTHON, "pgqpy", "run", "cascade", config=f"nodes = {json.dumps(nodes)}\n")


def metered(conn: Connection, ticker: psutil.Process, cascade: psutil.Process) -> Meter:
    own = Party([cascade], ("pgqpy cascade", "pgqpy listen"))
    return Meter(conn, {"ticker": Party([ticker], ("pgqpy ticker",)), "cascade": own})


def behind(bench: Bench, server: Server, rate: int, count: int) -> None:
    root, branch = node(server), node(server)
    create_node("q", "root", "root", root)
    create_node("q", "branch", "branch", branch, provider=root)
    with (
        ticker(root) as leader,
        cascade(root, branch) as process,
        processes(listen, [(root,), (branch,)]) as (_, pipes),
        connect(branch) as conn,
    ):
        time.sleep(bench.choose(3, quick=1))
        meter = metered(conn, leader, process)
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
    root, branch = node(server), node(server, PLAIN_TABLE)
    create_node("q", "root", "root", root)
    with connect(root) as conn:
        fill(conn, [FLIGHTS % TICK_EVERY] * (count // TICK_EVERY))
    contest = bench.contest(
        "From one database to another",
        {
            BY_HAND: partial(to_plain_table, server, root, branch),
            WORKER: partial(to_branch, root, branch, count),
        },
        rounds=rounds,
        items=count,
        unit="events",
    )
    bench.at_least("C9", f"{WORKER}, times {BY_HAND}", contest.ratio(WORKER, BY_HAND), 0.8)


def to_plain_table(server: Server, source: str, target: str) -> float:
    with connect(target) as conn:
        conn.execute("truncate plain")
    return timed(by_hand, server, source, target, COLUMNS, EVENTS)


def to_branch(root: str, branch: str, count: int) -> float:
    with Nodes("q", root) as nodes:
        if "branch" in nodes.locations:
            drop_node(nodes, "branch")
    create_node("q", "branch", "branch", branch, provider=root)
    seconds = timed(partial(CascadedWorker(branch, queue="q").run, until_empty=True))
    with connect(branch) as conn:
        [(copied,)] = conn.execute("select count(*) from pgq.event")
    assert copied >= count, f"{copied:,} events were copied"
    return seconds


def idle(bench: Bench, server: Server, queues: int, seconds: float) -> None:
    root, *others = dsns = [node(server) for _ in range(3)]
    for number in range(queues):
        create_node(f"q{number}", "root", "root", root)
        for name, dsn, provider in zip(("branch", "below"), others, dsns, strict=False):
            create_node(f"q{number}", name, "branch", dsn, provider=provider)
    with ExitStack() as stack:
        leader = stack.enter_context(ticker(root))
        process = stack.enter_context(cascade(*dsns))
        conn = stack.enter_context(connect(root))
        time.sleep(bench.choose(60, quick=3))
        meter = metered(conn, leader, process)
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
