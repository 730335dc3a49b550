"""Tasks while transactions stay open for long.

Two thousand tasks a second, each pushed in a transaction by pgbench, and four worker processes that
claim and finish one after the other. After a while a transaction that has pushed a task and one
that has read (REPEATABLE READ) stay open. Their end, and the time from a minute later on, are
compared with before. There is a checkpoint a minute.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

from benchmarks._beside import READS, held_open
from benchmarks._pgbench import producers
from benchmarks._servers import OURS, connect, pgqpy_database
from benchmarks.bench import Bench
from benchmarks.readers import Position, Readers, Record, readers, stopped
from benchmarks.task_push import CREATE_TASKS, PUSH

RATE = 2_000
WORKERS = 4
CLAIM = "select id, version from pgq_task.claim('{q}', %s)"
FINISH = "select pgq_task.finish(%s, %s, %s)"
SWEEP = "select pgq_task.sweep()"
PAUSE = 0.002
SWEEP_EVERY = 0.1
"""Seconds that an idle worker waits, and between its sweeps."""
DEAD = """
select c.relname, s.n_live_tup, s.n_dead_tup, pg_total_relation_size(c.oid) / 1024,
       round(100.0 * s.n_tup_hot_upd / nullif(s.n_tup_upd, 0), 1)::float8
  from pg_stat_all_tables s join pg_class c on c.oid = s.relid
 where s.schemaname = 'pgq_task' and s.n_tup_ins > 0
 order by c.relname
"""


def run(bench: Bench) -> None:
    minutes = bench.minutes(15)
    window = bench.choose(min(2.0, minutes), quick=0.05)
    recovery = min(1.0, minutes)
    moments = {}
    with bench.server(checkpoint_timeout="1min") as server:
        dsn = pgqpy_database(server, CREATE_TASKS)
        names = [("q", f"worker {number}") for number in range(WORKERS)]
        with (
            readers(dsn, names, processes=WORKERS, work=work) as group,
            producers(server, dsn, PUSH, clients=4, rate=RATE),
        ):
            time.sleep(60 * window / 4)
            start = time.time()
            time.sleep(60 * window)
            moments["before"] = time.time()
            with held_open(dsn, PUSH, READS):
                time.sleep(60 * minutes)
                moments["at the end"] = time.time()
                with connect(dsn) as conn:
                    dead = conn.execute(DEAD).fetchall()
            time.sleep(60 * (recovery + window))
            moments["a minute later"] = time.time()

    claims = {when: group.ages_between(end - 60 * window, end) for when, end in moments.items()}
    rates = {when: len(took) / (60 * window) for when, took in claims.items()}
    delays = bench.delays(f"Claims of {RATE:,} tasks a second", claims)
    bench.series(
        f"Claims; transactions are open from minute {window:g} to {window + minutes:g}",
        y="ms, the median",
        lines={OURS: medians(group, start, moments)},
    )
    bench.table(
        "Tables while the transactions are open, at the end",
        ("", "rows", "dead rows", "kB", "% of updates heap-only"),
        dead,
    )
    before = "before"
    # A ratio of 1.0 is expected, apart from noise.
    for part, when, target in (("Q6", "at the end", 0.8), ("Q7", "a minute later", 0.95)):
        what = f"{when}, x {before}"
        bench.at_least(f"{part}a", f"tasks a second {what}", rates[when] / rates[before], target)
        for name, percent in (("b", 50), ("c", 99)):
            bench.at_least(
                f"{part}{name}",
                f"1 / time of a claim, p{percent}, {what}",
                delays.ms(before, percent) / delays.ms(when, percent),
                target,
            )


def work(dsn: str, positions: Sequence[Position], record: Record) -> None:
    """Note the claims that found a task, as ages from their beginning."""
    [(_, name)] = positions
    stop = stopped()
    with connect(dsn) as conn:
        conn.prepare_threshold = 0
        swept = 0.0
        while not stop.is_set():
            began = time.time()
            task = conn.execute(CLAIM, [name]).fetchone()
            if task is not None:
                record.take(began)
            if task is None or began - swept > 1:
                if began - swept > SWEEP_EVERY:
                    conn.execute(SWEEP)
                    swept = began
                if task is None:
                    time.sleep(PAUSE)
                    continue
            conn.execute(FINISH, [name, *task])


def medians(
    group: Readers, start: float, moments: Mapping[str, float]
) -> list[tuple[float, float]]:
    """Minutes, and the median duration of the claims in them, in ms."""
    end = moments["a minute later"]
    step = max((end - start) / 60, 1)
    times = [start + number * step for number in range(int((end - start) / step))]
    found = [(begin, group.ages_between(begin, begin + step)) for begin in times]
    return [((begin - start) / 60, 1000 * statistics.median(took)) for begin, took in found if took]
