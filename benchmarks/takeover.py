"""Planned takeovers of a cascaded queue with three nodes, under producers at full speed.

Three databases on one server, a root and two branches, one process that copies. Four clients insert
one event a transaction, as fast as they can, where the root is; a consumer reads at the third node.
The root goes to and fro between the other two. The pause is the time in which no database takes
events, and beside it the longest time that a client went without a commit. At the end the consumer
has had each committed event once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection as Pipe
from time import monotonic

from benchmarks._beside import processes, ticker
from benchmarks._servers import Connection, connect
from benchmarks.bench import Bench
from benchmarks.cascade import cascade, node
from pgqpy.cascade import Nodes, create_node, takeover
from pgqpy.errors import InsertDisabled, translate_errors
from pgqpy.producer import Producer

CLIENTS = 4
NODES = ("a", "b", "c")
MOST = 2.0


def run(bench: Bench) -> None:
    times = bench.choose(10, quick=2)
    with bench.server() as server, ExitStack() as stack:
        dsns = [node(server) for _ in NODES]
        create_node("q", "a", "root", dsns[0])
        for name, dsn in zip(NODES[1:], dsns[1:], strict=True):
            create_node("q", name, "branch", dsn, provider=dsns[0])
        reader = stack.enter_context(connect(dsns[2]))
        reader.execute("select pgq.register_consumer('q', 'reader')")
        for dsn in dsns:
            stack.enter_context(ticker(dsn))
        stack.enter_context(cascade(*dsns))
        calls = [(dsns[:2], number) for number in range(CLIENTS)]
        _, pipes = stack.enter_context(processes(write, calls))
        pauses, gaps = [], []
        for number in range(times):
            time.sleep(2)
            with Nodes("q", dsns[2]) as nodes:
                done = takeover(nodes, NODES[(number + 1) % 2])
            assert done.paused is not None
            pauses.append(done.paused.total_seconds())
            time.sleep(0.5)
            for pipe in pipes:
                pipe.send(None)
            gaps.append(max(pipe.recv()[1] for pipe in pipes))
        for pipe in pipes:
            pipe.send("end")
        committed = sum(pipe.recv()[0] for pipe in pipes)
        received = read(reader, committed)
    assert len(received) == len(set(received)) == committed, (len(received), committed)
    bench.delays(
        f"{times} takeovers, {committed:,} events", {"writes paused": pauses, "longest wait": gaps}
    )
    bench.at_most("C11", "writes paused by a planned takeover, longest", max(pauses), MOST, "s")


def write(pipe: Pipe, dsns: Sequence[str], number: int) -> None:
    """Insert until told to end; tell the number of events, and the longest pause since asked."""
    conns, producer, at = [connect(dsn) for dsn in dsns], Producer("q"), 0
    events, longest = 0, 0.0
    pipe.send("ready")
    last = monotonic()
    while True:
        if pipe.poll():
            word = pipe.recv()
            pipe.send((events, longest))
            longest = 0.0
            if word == "end":
                return
        try:
            with translate_errors():
                producer.insert_event(conns[at], "flight", f"{number} {events}")
        except InsertDisabled:
            at = 1 - at
            time.sleep(0.01)
            continue
        events += 1
        now = monotonic()
        longest, last = max(longest, now - last), now


def read(conn: Connection, most: int) -> list[str]:
    """Read the events of the consumer, until it has as many as there should be, or for a minute."""
    found: list[str] = []
    deadline = monotonic() + 60
    while len(found) < most and monotonic() < deadline:
        [(batch,)] = conn.execute("select pgq.next_batch('q', 'reader')").fetchall()
        if batch is None:
            time.sleep(0.1)
            continue
        rows = conn.execute(
            "select ev_data from pgq.get_batch_events(%s) where ev_type = 'flight'", [batch]
        )
        found += [data for (data,) in rows]
        conn.execute("select pgq.finish_batch(%s)", [batch])
    return found
