"""Transactions that stay open for long.

A thousand events a second by pgbench, one consumer, the default ticker. After a while a transaction
that has written and one that has read (REPEATABLE READ) stay open, so that no dead row can be
cleaned up; their end is compared with before. There is a checkpoint a minute. PgQ's C version runs
for a third of the time, with pgqd and a consumer that polls ten times a second; its few ticks hide
the effect that `log_churn` shows.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import psutil

from benchmarks._beside import READS, WRITES, held_open, pgqd, ticker
from benchmarks._pgbench import producers
from benchmarks._servers import (
    CREATE_QUEUE,
    OURS,
    PGQ_C,
    connect,
    database,
    implementations,
)
from benchmarks.bench import Bench
from benchmarks.readers import READER, Record, Work, poll, readers, watch
from pgqpy.embedded import Server

RATE = 1_000
PRODUCE = 'select pgq.insert_event(\'q\', \'type\', \'{"id": 1, "origin": "EWR", "dest": "IAH"}\')'
DEAD = """
select c.relname, s.n_dead_tup, pg_total_relation_size(c.oid) / 1024
  from pg_stat_all_tables s join pg_class c on c.oid = s.relid
 where s.schemaname = 'pgq'
   and (s.n_dead_tup > 0 or c.relname ~ '^(tick|position|subscription|queue)')
 order by s.n_dead_tup desc, c.relname
"""
BOUND = 100
WHY = (
    "only configuration, retries and maintenance rewrite rows: each rotation two of pgq.queue, each"
    " change of logs (8 MB) two of pgq.log, at most once a minute; event, tick and position"
    " tables are append-only and emptied by TRUNCATE."
)


Daemon: TypeAlias = Callable[[str], AbstractContextManager[psutil.Process]]
Dead: TypeAlias = list[tuple[str, int, int]]
"""Relation, dead rows, size in kB."""


@dataclass(frozen=True, slots=True)
class Held:
    """A consumer's batches, and the moments when transactions were opened and of the end."""

    record: Record
    began: float
    opened: float
    ended: float
    dead: Dead

    @property
    def window(self) -> float:
        return min(self.opened - self.began, self.ended - self.opened)

    def rates(self) -> list[float]:
        """Batches a second, before and at the end."""
        return [
            self.record.batches_between(end - self.window, end) / self.window
            for end in (self.opened, self.ended)
        ]

    def ages(self) -> list[list[float]]:
        """The ages of events, before and at the end."""
        return [
            self.record.ages_between(end - self.window, end) for end in (self.opened, self.ended)
        ]

    def series(self) -> list[tuple[float, float]]:
        """Minutes, and batches a second."""
        step = max((self.ended - self.began) / 60, 1)
        return [
            (number * step / 60, self.record.batches_between(begin, begin + step) / step)
            for number in range(int((self.ended - self.began) / step))
            if (begin := self.began + number * step)
        ]


def run(bench: Bench) -> None:
    minutes = bench.minutes(15)
    before = bench.choose(min(2.0, minutes), quick=0.05)
    with bench.server(checkpoint_timeout="1min") as server:
        scripts = implementations(server)
        ours = measure(server, scripts[OURS], ticker, watch, before, minutes)
        peer = None
        if PGQ_C in scripts and shutil.which("pgqd"):
            daemon = partial(pgqd, server)
            peer = measure(server, scripts[PGQ_C], daemon, poll, before, minutes / 3)

    measured = {OURS: ours} | ({PGQ_C: peer} if peer else {})
    delays = bench.delays(
        f"Delivery of {RATE:,} events a second",
        {
            f"{name}, {when}": ages
            for name, held in measured.items()
            for when, ages in zip(("before", "at the end"), held.ages(), strict=True)
        },
    )
    bench.series(
        f"Batches; transactions are open from minute {before:g} on",
        y="batches a second",
        lines={name: held.series() for name, held in measured.items()},
    )
    for name, held in measured.items():
        bench.table(f"Dead rows at the end, {name}", ("", "dead rows", "kB"), held.dead)
    first, last = ours.rates()
    bench.at_least("11a", "batches a second, at the end of before", last / first, 0.95)
    for part, percent in (("11b", 50), ("11c", 99)):
        before_them, at_the_end = (
            delays.ms(f"{OURS}, {when}", percent) for when in ("before", "at the end")
        )
        what = f"delivery p{percent}, before of at the end"
        bench.at_least(part, what, before_them / at_the_end, 0.95)
    most = max((dead for _, dead, _ in ours.dead), default=0)
    bench.at_most("11d", "dead rows in any relation of pgq", most, BOUND, "rows", note=WHY)


def measure(
    server: Server,
    script: str,
    daemon: Daemon,
    work: Work,
    before: float,
    minutes: float,
) -> Held:
    dsn = database(server, script, CREATE_QUEUE, READER)
    with (
        daemon(dsn),
        readers(dsn, [("q", "reader")], work=work) as group,
        producers(server, dsn, PRODUCE, clients=2, rate=RATE),
    ):
        time.sleep(60 * before / 4)
        began = time.time()
        time.sleep(60 * before)
        opened = time.time()
        with held_open(dsn, WRITES, READS):
            time.sleep(60 * minutes)
            ended = time.time()
            with connect(dsn) as conn:
                dead = conn.execute(DEAD).fetchall()
            # Events inserted until the end are delivered after it.
            time.sleep(5)
    return Held(group.records[0], began, opened, ended, dead)
