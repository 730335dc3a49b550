"""pgbench's TPC-B at its full rate, and its tables copied into another database meanwhile.

Four clients, scale 10, all four tables. First pgbench alone; then with `pgqpy run replicate`, the
ticker and the target on the same machine. The lag is the age of the newest tick that the target has
applied; its growth in a second is the share of changes that replicate does not keep up with.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from benchmarks._beside import PYTHON, daemon, sampling, ticker
from benchmarks._pgbench import PREPARED, pgbench, rate_of
from benchmarks._servers import CREATE_QUEUE, Connection, connect, pgqpy_database
from benchmarks.bench import Bench
from pgqpy_consumers.replicate.compare import Comparer
from pgqpy_consumers.replicate.manage import Manager

CLIENTS = 4
TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")
KEY = "alter table pgbench_history add column id bigint generated always as identity primary key"
IN_STEP = "select bool_and(rpt_state = 'in_step') from pgq_ext.replica_table"
LAG = """
select extract(epoch from clock_timestamp() - max(prg_tick_time))::float from pgq_ext.progress
"""


def run(bench: Bench) -> None:
    seconds = round(60 * bench.minutes(3))
    scale = bench.choose(10, quick=1)
    with bench.server() as server:
        source = pgqpy_database(server, CREATE_QUEUE)
        target = pgqpy_database(server)
        for dsn, steps in ((source, "dtgp"), (target, "tp")):
            pgbench(server, dsn, "-i", f"-I{steps}", f"--scale={scale}", "--quiet")
            with connect(dsn) as conn:
                conn.execute(KEY)
        tpc_b = *PREPARED, f"--client={CLIENTS}", f"--time={seconds}"
        bench.say("pgbench alone")
        alone = rate_of(pgbench(server, source, *tpc_b))
        command = *PYTHON, "pgqpy", "run", "replicate"
        config = f'dsn = "{source}"\ntarget_dsn = "{target}"\nqueue = "q"\n'
        with ticker(source), daemon(*command, config=config):
            bench.say("Copying")
            began = time.perf_counter()
            with connect(source) as here, connect(target) as there:
                manager = Manager(here, there, "q", "replicate")
                for table in TABLES:
                    manager.add(table)
                while there.execute(IN_STEP).fetchone() != (True,):
                    time.sleep(0.1)
            copied = time.perf_counter() - began
            bench.say("pgbench with replicate")
            start = time.time()
            with sampling(target, _lag) as samples:
                replicated = rate_of(pgbench(server, source, *tpc_b))
            lags = [(moment - start, lag) for moment, lag in samples]
            began = time.perf_counter()
            comparer = Comparer(source, target, "q", "replicate")
            differences = 0
            with connect(source) as here, connect(target) as there:
                replicas = Manager(here, there, "q", "replicate").state.tables()
            # The first one waits until the target has everything.
            differences += len(comparer.compare(replicas[1]).differences)
            behind = time.perf_counter() - began
            for each in replicas:
                differences += len(comparer.compare(each).differences)
    assert differences == 0, f"{differences} rows differ"
    first, last = (
        _median(lags, seconds * begin / 3, seconds * end / 3) for begin, end in ((0, 1), (2, 3))
    )
    bench.table(
        f"TPC-B, {CLIENTS} clients, scale {scale}",
        ("", "number"),
        [
            ("transactions a second, pgbench alone", alone),
            ("transactions a second, replicated", replicated),
            ("row changes a second, replicated", 4 * replicated),
            ("lag in the first third, median, ms", 1000 * first),
            ("lag in the last third, median, ms", 1000 * last),
            ("longest lag, ms", 1000 * max(lag for _, lag in lags)),
            ("seconds of the first copy", copied),
        ],
    )
    bench.series("Lag of the target", y="seconds", lines={"lag": lags})
    # From the middle of the first third to the middle of the last.
    bench.at_least(
        "C6a", "changes applied as they come", 1 - (last - first) / (seconds * 2 / 3), 0.99, "x"
    )
    bench.at_most(
        "C6b",
        "the target has everything after pgbench has ended",
        behind,
        2,
        "s",
        note="With comparing a small table.",
    )


def _lag(conn: Connection) -> float:
    [(lag,)] = conn.execute(LAG).fetchall()
    return float(lag)


def _median(lags: Sequence[tuple[float, float]], start: float, end: float) -> float:
    return statistics.median(lag for moment, lag in lags if start <= moment < end)
