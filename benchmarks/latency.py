"""From an insert to the consumer's method, everything with default settings.

All programs are processes of their own. The clock starts before the insert is sent; it stops when
`process_event` is called, or when the notification of the first tick that shows the event comes.
First 1,000 events a second, each a transaction; then one event a minute in several databases; then
20 events a second with other tickers: the consumer's own process, or a function once a second.
"""

from __future__ import annotations

import re
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection as Pipe

from benchmarks._beside import processes, thread, ticker
from benchmarks._meter import Meter, Party
from benchmarks._program import Handled, Program, python_program
from benchmarks._servers import connect, database
from benchmarks.bench import Bench
from pgqpy.embedded import Server

PGQPY = python_program("pgqpy")
TICKING = replace(PGQPY, environment={"TICKING": "1"})

TO_EVENT, TO_NOTIFY = "to process_event", "to NOTIFY"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The transactions that a tick sees."""

    tick_id: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, tick_id: int, text: str) -> Snapshot:
        _, xmax, *running = (int(number) for number in re.findall(r"\d+", text))
        return cls(tick_id, xmax, frozenset(running))

    def sees(self, txid: int) -> bool:
        return txid < self.xmax and txid not in self.running


def first_tick(dsn: str) -> Iterator[tuple[float, int]]:
    """The time each event was sent, and the first tick that shows it."""
    with connect(dsn) as conn:
        rows = conn.execute("select tick_id, tick_snapshot::text from pgq.tick order by tick_id")
        ticks = [Snapshot.parse(*row) for row in rows]
        for data, txid in conn.execute("select ev_data, ev_txid from pgq.event_template"):
            place = bisect_left(ticks, True, key=lambda tick: tick.sees(txid))
            if place < len(ticks):
                yield float(data), ticks[place].tick_id


def listen(pipe: Pipe, dsn: str) -> None:
    """Note the time of each tick's notification; send the notes on request."""
    heard: dict[int, float] = {}
    with connect(dsn) as conn:
        [(channel,)] = conn.execute("select pgq.tick_channel('q')").fetchall()
        conn.execute(f'listen "{channel}"'.encode())
        pipe.send(None)
        while not pipe.poll():
            for notice in conn.notifies(timeout=0.2, stop_after=1):
                # Others say that consumers were registered or moved; 0 that a program listens.
                if notice.payload.isdigit() and notice.payload != "0":
                    heard[int(notice.payload)] = time.monotonic()
    pipe.send(heard)


def busy(bench: Bench, server: Server, rate: int, count: int) -> None:
    dsn = database(server)
    PGQPY.install(dsn)
    seconds = count / rate
    with (
        ticker(dsn) as daemon,
        PGQPY.work(dsn, count, seconds + 30) as work,
        processes(listen, [(dsn,)]) as (_, [pipe]),
        connect(dsn) as conn,
    ):
        time.sleep(1)
        meter = Meter(conn, {"ticker": Party([daemon], ("pgqpy ticker",))})
        took = PGQPY.send(dsn, count, rate)
        shares, _ = meter.shares()
        handled = work()
        pipe.send(None)
        heard: dict[int, float] = pipe.recv()
    assert len(handled.handled) == count, f"{len(handled.handled):,} events have arrived"
    assert took < seconds * 1.05, f"the producer needed {took:.1f} s"
    to_notify = [heard[tick] - sent for sent, tick in first_tick(dsn) if tick in heard]
    delays = bench.delays(
        f"{rate:,} events a second", {TO_NOTIFY: to_notify, TO_EVENT: handled.delays}
    )
    bench.table(
        f"Processor time at {rate:,} events a second, of one core",
        ("", "daemon", "its sessions"),
        [["ticker", shares["ticker"].program, shares["ticker"].sessions]],
    )
    bench.at_most("8a", f"{TO_EVENT}, p50", delays.ms(TO_EVENT, 50), 5, "ms")
    bench.at_most("8b", f"{TO_EVENT}, p99", delays.ms(TO_EVENT, 99), 20, "ms")


def idle(bench: Bench, server: Server, databases: int, pause: float, events: int) -> None:
    dsns = [database(server) for _ in range(databases)]

    def first_events(dsn: str) -> Handled:
        """Run a producer with an open connection; its first event is only a warm-up."""
        with PGQPY.work(dsn, events + 1, events * pause + 60) as work:
            time.sleep(1)
            PGQPY.send(dsn, events + 1, 1 / pause)
            return work()

    with ExitStack() as stack, ThreadPoolExecutor(databases) as threads:
        waiting = []
        for dsn in dsns:
            PGQPY.install(dsn)
            stack.enter_context(ticker(dsn))
            # Not all at the same moment.
            time.sleep(pause / databases / 4)
            waiting.append(threads.submit(first_events, dsn))
        delays = [delay for each in waiting for delay in each.result().delays[1:]]
    first = bench.delays(f"The first event after {pause:.0f} s", {TO_EVENT: delays})
    bench.at_most(
        "8c",
        f"first event after {pause:.0f} s idle, the slowest",
        first.ms(TO_EVENT, 100),
        15,
        "ms",
        note=f"{len(delays)} events; the median is {first.ms(TO_EVENT, 50):.1f} ms.",
    )


def once_a_second(statement: str, dsn: str) -> AbstractContextManager[None]:
    """Execute it as pg_cron would."""

    def work(done: threading.Event) -> None:
        with connect(dsn) as conn:
            while not done.wait(1):
                conn.execute(statement.encode())

    return thread(work)


def ways(bench: Bench, server: Server, rate: int, count: int) -> None:
    delays: dict[str, list[float]] = {}
    contestants: dict[str, tuple[Program, Callable[[str], AbstractContextManager[object]]]] = {
        "pgqpy ticker": (PGQPY, ticker),
        'run(ticker="auto")': (TICKING, nullcontext),
        **{
            f"pgq.{call} once a second": (PGQPY, partial(once_a_second, f"select pgq.{call}"))
            for call in ("ticker_round()", "ticker()")
        },
    }
    for way, (program, ticks) in contestants.items():
        dsn = database(server)
        PGQPY.install(dsn)
        with ticks(dsn), program.work(dsn, count, count / rate + 30) as at_work:
            time.sleep(1)
            PGQPY.send(dsn, count, rate)
            delays[way] = at_work().delays
            assert len(delays[way]) == count, f"{way}: {len(delays[way]):,} events have arrived"
    bench.delays(f"{rate} events a second, by the ticker, {TO_EVENT}", delays)


def run(bench: Bench) -> None:
    rate, count = bench.choose((1_000, 30_000), quick=(100, 100))
    databases, pause, events = bench.choose((4, 60.0, 3), quick=(2, 1.0, 1))
    with bench.server() as server:
        busy(bench, server, rate, count)
    # A new server, so that no rows of the first are left to be cleaned up.
    with bench.server() as server:
        idle(bench, server, databases, pause, events)
    with bench.server() as server:
        ways(bench, server, 20, bench.choose(1_000, quick=40))
