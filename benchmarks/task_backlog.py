"""Claims and finishes while 5,000,000 tasks wait, and while 5,000 do.

Eight pgbench clients claim a task and finish it, two transactions, in one database and in the
other. As many are pushed anew in between; pushing does not count.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks._pgbench import contestant
from benchmarks._servers import connect, pgqpy_database
from benchmarks.bench import Bench
from benchmarks.task_held import SWEEP
from benchmarks.task_push import CREATE_TASKS, PAYLOAD, PUSH_MANY
from pgqpy.embedded import Server

WORK = """
select id, version from pgq_task.claim('{q}', 'w') \\gset
select pgq_task.finish('w', :id::bigint, :version::int4);
"""
AT_ONCE = 50_000


def run(bench: Bench) -> None:
    few, many = bench.choose((5_000, 5_000_000), quick=(1_000, 20_000))
    transactions, rounds = bench.choose((4_000, 9), quick=(400, 1))
    with bench.server() as server:
        contestants = {}
        for backlog in (few, many):
            dsn = pgqpy_database(server, CREATE_TASKS)
            bench.say(f"Pushing {backlog:,} tasks")
            push(dsn, backlog)
            contestants[name(backlog)] = turn(server, dsn, transactions)
        contest = bench.contest(
            "Claimed and finished by 8 clients",
            contestants,
            rounds=rounds,
            items=transactions,
            unit="tasks",
        )
    bench.at_least("Q8", f"times {name(few)}", contest.ratio(name(many), name(few)), 0.95)


def name(backlog: int) -> str:
    return f"a backlog of {backlog:,}"


def push(dsn: str, count: int) -> None:
    with connect(dsn) as conn:
        for begin in range(0, count, AT_ONCE):
            conn.execute(PUSH_MANY.encode(), [PAYLOAD, min(AT_ONCE, count - begin)])
        conn.execute("vacuum analyze pgq_task.task")


def turn(server: Server, dsn: str, transactions: int) -> Callable[[], float]:
    work = contestant(server, dsn, WORK, clients=8, transactions=transactions)

    def run() -> float:
        with connect(dsn) as conn:
            conn.execute(SWEEP)
        took = work()
        push(dsn, transactions)
        return took

    return run
