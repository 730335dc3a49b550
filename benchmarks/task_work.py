"""Tasks handled by workers, next to other queues that hand each item to one of them.

First one by one: eight processes take an item, note the time, finish it, and take the next. These
are the queues' own workers; pg-boss, whose worker would pause, uses its client with two calls a
task. Then as each documentation recommends, by two processes; pgqpy's worker takes batches of 100.
All items are inserted before, into a new database each time, and counted while all processes are at
work.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from benchmarks._program import Handled, python_program
from benchmarks._result import Contest
from benchmarks._servers import OURS
from benchmarks.bench import Bench
from benchmarks.peers import Peer, Place, available
from pgqpy.embedded import Server

JOB_QUEUES = ("procrastinate", "pgqueuer", "graphile-worker", "pg-boss", "pgmq")
EACH = 10_000
"""The number of items that each turn is scaled to: rates are measured."""


def run(bench: Bench) -> None:
    rounds, seconds, share = bench.choose((3, 15.0, 1), quick=(1, 8.0, 3))
    with bench.server() as server:
        peers = [Peer(OURS, python_program("pgqpy_tasks"), "batches of 100", 400_000)]
        peers += [peer for peer in available(bench, server) if peer.name in JOB_QUEUES]

        def contest(title: str, peers: Sequence[Peer], processes: int) -> Contest:
            return bench.contest(
                title,
                {p.name: partial(turn, server, p, processes, seconds) for p in peers},
                rounds=rounds,
                items=EACH,
                unit="tasks",
            )

        singly = [
            replace(
                peer,
                items=60_000 // share,
                program=replace(
                    peer.program, environment={**peer.program.environment, "SINGLY": "1"}
                ),
            )
            for peer in peers
        ]
        one_by_one = contest("One by one, by 8 workers", singly, 8)
        many = [replace(peer, items=max(peer.items, 60_000) // share) for peer in peers]
        batches = contest("As recommended, by 2 processes", many, 2)
    others = [peer.name for peer in peers[1:]]
    note = ""
    if others:
        best = max(others, key=one_by_one.rate)
        bench.at_least("Q3", f"one by one, times {best}", one_by_one.ratio(OURS, best), 1.5)
        best = max(others, key=batches.rate)
        note = f"{batches.ratio(OURS, best).value:.2f} x {best}, the best peer as recommended."
    bench.at_least("Q4", "in batches of 100", batches.rate(OURS), 25_000, "tasks/s", note=note)


def turn(server: Server, peer: Peer, processes: int, seconds: float) -> float:
    """The seconds for `EACH` items."""
    place = Place.make(peer, server)
    peer.program.bulk(place.dsn, peer.items)

    def work(_: int) -> Handled:
        with peer.program.work(place.dsn, peer.items, seconds) as working:
            return working()

    with peer.daemon(server, place.dsn), ThreadPoolExecutor(processes) as threads:
        return EACH / rate(list(threads.map(work, range(processes))))


def rate(handled: Sequence[Handled]) -> float:
    """Items a second, from when all processes are at work until the first one is not."""
    moments = [each.handled for each in handled]
    assert all(moments), "a worker had nothing to do"
    begin, end = max(each[0] for each in moments), min(each[-1] for each in moments)
    assert begin < end, "the workers were not at work at the same time"
    return sum(begin < moment <= end for each in moments for moment in each) / (end - begin)
