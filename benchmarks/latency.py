"""From commit to consumer with the ticker daemon as it comes; and what the daemon costs."""

from __future__ import annotations

import random
import re
import statistics
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import click
import psutil

import pgqpy
from benchmarks.contest import show_rows
from benchmarks.place import Connection, connect, database, options, ours, start

QUEUE = "select pgq.create_queue('q'); select pgq.register_consumer('q', 'c');"
TICKER = "select pid from pg_stat_activity where application_name like 'pgqpy ticker%'"

Moments = dict[int, float]
"""When something happened, by event or tick."""


class Watch(pgqpy.Consumer):
    """Notes when each event arrives."""

    queue_name = "q"
    consumer_name = "c"

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.seen: Moments = {}

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        self.seen[event.id] = time.monotonic()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Which transactions a tick sees."""

    tick_id: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, tick_id: int, text: str) -> Snapshot:
        _, xmax, *running = (int(number) for number in re.findall(r"\d+", text))
        return cls(tick_id, xmax, frozenset(running))

    def sees(self, txid: int) -> bool:
        return txid < self.xmax and txid not in self.running


class Listener(threading.Thread):
    """Notes when it hears of each tick."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self.heard: Moments = {}
        self.done = threading.Event()
        self._conn = connect(dsn)
        [(channel,)] = self._conn.execute("select pgq.tick_channel('q')").fetchall()
        self._conn.execute(f'listen "{channel}"'.encode())

    def run(self) -> None:
        while not self.done.is_set():
            for notice in self._conn.notifies(timeout=0.2):
                self.heard[int(notice.payload)] = time.monotonic()


@contextmanager
def daemon(dsn: str) -> Iterator[psutil.Process]:
    """The ticker with default settings."""
    command = [sys.executable, "-m", "pgqpy_ticker", "--dsn", dsn]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "message=leading" in line:
                break
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()


def processor_time(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def produce(conn: Connection, pauses: Iterator[float]) -> Moments:
    """One event after each pause; when its commit had returned."""
    committed: Moments = {}
    due = time.monotonic()
    for pause in pauses:
        due = max(due + pause, time.monotonic() - pause)
        time.sleep(max(due - time.monotonic(), 0))
        row = conn.execute("select pgq.insert_event('q', 'type', 'data')").fetchone()
        assert row is not None
        committed[row[0]] = time.monotonic()
    return committed


def first_tick(conn: Connection) -> dict[int, int]:
    """For each event the first tick that shows it."""
    ticks = [
        Snapshot.parse(*row)
        for row in conn.execute(
            "select tick_id, tick_snapshot::text from pgq.tick order by tick_id"
        )
    ]
    first = {}
    for ev_id, txid in conn.execute("select ev_id, ev_txid from pgq.event_template"):
        place = bisect_left(ticks, True, key=lambda tick: tick.sees(txid))
        if place < len(ticks):
            first[ev_id] = ticks[place].tick_id
    return first


def delays(committed: Moments, arrived: Moments) -> tuple[str, ...]:
    """Median, 99th percentile and maximum in ms, of those that can be told."""
    ms = [
        1000 * (arrived[event] - moment) for event, moment in committed.items() if event in arrived
    ]
    return tuple(
        f"{value:.1f}"
        for value in (
            statistics.median(ms),
            statistics.quantiles(ms, n=100, method="inclusive")[98],
            max(ms),
        )
    )


@click.command(help=__doc__)
@options
def main(quick: bool, version: int | None) -> None:
    rate, events, first_events, idle = (100, 50, 3, 1) if quick else (1_000, 20_000, 30, 20)
    delay_rows: list[tuple[str, ...]] = []
    # By default the ticker sleeps until a producer wakes it, which prepared transactions forbid.
    with start(version, max_prepared_transactions=0) as server:
        dsn = database(server, "latency", ours(), QUEUE)
        with connect(dsn) as conn, daemon(dsn) as process:
            backends = [psutil.Process(pid) for (pid,) in conn.execute(TICKER)]

            def load(name: str, pauses: Sequence[float]) -> tuple[float, float]:
                """Returns how busy daemon and backends were; what it took goes into the table."""
                listener, watch = Listener(dsn), Watch(dsn)
                consumer = threading.Thread(target=partial(watch.run, handle_signals=False))
                listener.start()
                consumer.start()
                before = processor_time([process]), processor_time(backends)
                began = time.monotonic()
                committed = produce(conn, iter(pauses))
                took = time.monotonic() - began
                after = processor_time([process]), processor_time(backends)
                while watch.seen.keys() < committed.keys():
                    time.sleep(0.01)
                watch.stop()
                consumer.join()
                listener.done.set()
                listener.join()
                ticks = first_tick(conn)
                told = {e: listener.heard[t] for e, t in ticks.items() if t in listener.heard}
                delay_rows.append((f"{name}: to NOTIFY", *delays(committed, told)))
                delay_rows.append((f"{name}: to process_event", *delays(committed, watch.seen)))
                return (after[0] - before[0]) / took, (after[1] - before[1]) / took

            busy = load(f"{rate:,} events a second", [1 / rate] * events)
            load("an event after 1 to 2 s", [random.uniform(1, 2) for _ in range(first_events)])
            before = processor_time([process]), processor_time(backends)
            time.sleep(idle)
            after = processor_time([process]), processor_time(backends)
            quiet = [(now - then) / idle for now, then in zip(after, before, strict=True)]

    show_rows("Delay after the commit, ms", ("", "median", "p99", "max"), delay_rows)
    show_rows(
        "Processor time of the ticker, of one core",
        ("", "daemon", "its sessions"),
        [
            (f"{rate:,} events a second", *(f"{share:.1%}" for share in busy)),
            ("idle", *(f"{share:.1%}" for share in quiet)),
        ],
    )


if __name__ == "__main__":
    main()
