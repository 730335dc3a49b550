"""Next to other queues: sending, handling, delays, and the effect of an open transaction.

Each is installed as its documentation says, into a database of its own, with its own client, one
worker process (`benchmarks/programs`) with the concurrency that its documentation shows, and its
daemon, if any. Handling is from the start of the worker, with all items waiting, to the last
handler; delays are from before sending to the handler, at 200 items a second. Last, a transaction
stays open, so that nothing can be cleaned up, round after round. pgqpy, PgQ and PgQue keep items
for any number of consumers; the others hand each to one worker.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks._beside import PYTHON, daemon, pgqd, ticker
from benchmarks._program import (
    DEBIAN_PYTHON,
    Program,
    Work,
    install_node,
    node_architecture,
    node_program,
    node_version,
    python_program,
)
from benchmarks._result import Cell
from benchmarks._servers import PGQ_C, connect, database, implementations
from benchmarks.bench import Bench
from pgqpy.embedded import Server

Daemon = Callable[[Server, str], AbstractContextManager[object]]
"""Starts the processes that must run beside a worker, for a server and a database in it."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A queue, and its requirements."""

    name: str
    program: Program
    settings: str
    items: int
    """The number of items to handle at a time: enough for a second or more."""
    sql: Path | None = None
    """A file to be installed first."""
    daemon: Daemon = lambda *_: nullcontext()


@dataclass(frozen=True, slots=True)
class Place:
    """A database in which a peer is installed."""

    peer: Peer
    server: Server
    dsn: str

    @classmethod
    def make(cls, peer: Peer, server: Server) -> Place:
        dsn = database(server, *([peer.sql.read_text()] if peer.sql else []))
        peer.program.install(dsn)
        return cls(peer, server, dsn)

    @contextmanager
    def work(self, items: int, at_most: float) -> Iterator[Work]:
        """Run a worker, and the peer's daemon beside it."""
        with (
            self.peer.daemon(self.server, self.dsn),
            self.peer.program.work(self.dsn, items, at_most) as work,
        ):
            yield work

    def handle(self, items: int, at_most: float) -> float:
        """Handle ``items`` items, sent before the worker starts; returns items a second."""
        self.peer.program.bulk(self.dsn, items)
        with self.work(items, at_most) as work:
            return work().rate


def run(bench: Bench) -> None:
    with bench.server() as server:
        peers = available(bench, server)
        sending(bench, server, peers)
        handling(bench, server, peers)
        delivery(bench, server, peers)
        under_a_transaction(bench, server, peers)


def sending(bench: Bench, server: Server, peers: list[Peer]) -> None:
    places = [Place.make(peer, server) for peer in peers]
    count, rounds = bench.choose((2_000, 3), quick=(20, 1))
    bench.contest(
        "Sent one by one over one connection",
        {p.peer.name: partial(p.peer.program.send, p.dsn, count) for p in places},
        rounds=rounds,
        items=count,
        unit="items",
    )
    count = bench.choose(10_000, quick=100)
    bench.contest(
        f"{count:,} sent at once",
        {p.peer.name: partial(p.peer.program.bulk, p.dsn, count) for p in places},
        rounds=rounds,
        items=count,
        unit="items",
    )


def handling(bench: Bench, server: Server, peers: list[Peer]) -> None:
    rounds, share, at_most = bench.choose((3, 1, 60), quick=(1, 100, 20))

    def contestant(place: Place) -> float:
        """The seconds for the same number of items for all contestants."""
        return items / place.handle(place.peer.items // share, at_most)

    items = 10_000
    places = [Place.make(peer, server) for peer in peers]
    bench.contest(
        "Handled by one worker",
        {p.peer.name: partial(contestant, p) for p in places},
        rounds=rounds,
        items=items,
        unit="items",
    )


def delivery(bench: Bench, server: Server, peers: list[Peer]) -> None:
    rate, count, patience = bench.choose((200, 2_000, 20), quick=(50, 50, 15))
    delays = {}
    for peer in peers:
        bench.say(f"Delivery by {peer.name}")
        place = Place.make(peer, server)
        with place.work(count, count / rate + patience) as work:
            time.sleep(2)
            peer.program.send(place.dsn, count, rate)
            handled = work()
        if len(handled.handled) < count:
            bench.say(f"{peer.name} has handled {len(handled.handled):,} of {count:,}")
        delays[peer.name] = handled.delays
    bench.delays(f"From sending to handling, {rate} items a second", delays)


def under_a_transaction(bench: Bench, server: Server, peers: list[Peer]) -> None:
    """Rates relative to the first one, since it only matters whether they hold."""
    rounds, seconds, share, at_most = bench.choose((8, 20, 2, 15), quick=(2, 20, 100, 15))
    lines = {}
    rows: list[list[Cell]] = []
    for peer in peers:
        bench.say(f"{peer.name} under an open transaction")
        place = Place.make(peer, server)
        items = peer.items // share
        before = max(place.handle(items, at_most) for _ in range(2))
        rates: list[float] = []
        with connect(place.dsn) as holder, holder.transaction():
            holder.execute("select txid_current()")
            # A queue that slows down has done so by then.
            until = time.monotonic() + seconds
            while len(rates) < rounds and time.monotonic() < until:
                rates.append(place.handle(items, at_most))
        lines[peer.name] = [(items * n / 1000, rate / before) for n, rate in enumerate(rates, 1)]
        rows.append([peer.name, before, rates[-1], rates[-1] / before, items * len(rates)])
    title = "Handled while a transaction stays open"
    bench.table(
        title,
        ("", "items a second before", "in the last round", "x before", "items handled under it"),
        rows,
    )
    bench.series(title, y="rate, x before", lines=lines)


def available(bench: Bench, server: Server) -> list[Peer]:
    """pgqpy, and the peers available on this machine; reports the missing ones."""
    versions = bench.result.versions
    peers = [
        Peer(
            "pgqpy",
            python_program("pgqpy"),
            "as it comes, pgqpy ticker beside it",
            200_000,
            daemon=lambda server, dsn: ticker(dsn),
        )
    ]
    if PGQ_C in implementations(server) and shutil.which("pgqd"):
        settings = "python3-pgq and pgqd as they come"
        program = python_program("pgq", DEBIAN_PYTHON)
        peers.append(Peer(PGQ_C, program, settings, 200_000, daemon=pgqd))
    else:
        bench.say("Left out: PgQ, which needs postgresql-15-pgq3, pgqd and python3-pgq")
    for package, settings, items in (
        ("procrastinate", "concurrency=30", 1_000),
        ("pgqueuer", "asyncpg, batch_size=25, its settings for autovacuum", 20_000),
    ):
        if importlib.util.find_spec(package):
            versions[package] = importlib.metadata.version(package)
            peers.append(Peer(package, python_program(package), settings, items))
        else:
            bench.say(f'Left out: {package}; pip install "pgqpy[bench]"')
    if install_node():
        for package, settings, items in (
            (
                "graphile-worker",
                "concurrentJobs 24, maxPoolSize 25, localQueue of 500, batches of 0 ms",
                30_000,
            ),
            ("pg-boss", "useListenNotify, batchSize 100, burstWhenBatchFull", 20_000),
        ):
            versions[package] = node_version(package)
            peers.append(Peer(package, node_program(package), settings, items))
        versions["Node"] = node_version(f"node-linux-{node_architecture()}")
    else:
        bench.say("Left out: graphile-worker and pg-boss, which need npm")
    sql = bench.options.peer_sql
    for name, file in sql.items():
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        versions[name] = f"{file.name}, sha256 {digest[:12]}"
    if "PgQue" in sql:
        versions["pgque-py"] = importlib.metadata.version("pgque-py")
        peers.append(
            Peer(
                "PgQue",
                python_program("pgque"),
                "pgque-py as it comes, pgque.ticker_loop() every second",
                50_000,
                sql["PgQue"],
                lambda server, dsn: daemon(*PYTHON, "benchmarks.programs.pgque", "tick", dsn),
            )
        )
    if "pgmq" in sql:
        settings = "read_with_poll of 100, 100 ms; delete"
        peers.append(Peer("pgmq", python_program("pgmq"), settings, 20_000, sql["pgmq"]))
    bench.result.settings |= {peer.name: peer.settings for peer in peers}
    return peers
