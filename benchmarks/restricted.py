"""A restricted queue, by a role with grants, next to an open one, by a member of the usual roles.

Each call is a transaction of a prepared statement, by one connection for each queue. They take
turns at every call, and the ratio is the median of the pairs' ones. Batches have two events.
Nothing waits for the disk.
"""

from __future__ import annotations

from time import perf_counter

from psycopg.conninfo import make_conninfo
from psycopg.pq import ExecStatus

from benchmarks._result import Contest
from benchmarks._servers import Connection, connect, pgqpy_database
from benchmarks.bench import Bench
from benchmarks.insert import DATA

OPEN, RESTRICTED = "open queue", "restricted queue"
QUEUES = {OPEN: "q", RESTRICTED: "r"}
ROLES = {OPEN: "usual", RESTRICTED: "granted"}

SETUP = (
    "create role usual in role pgq_writer, pgq_reader",
    "create role granted in role pgq_writer, pgq_reader",
    *(f"select pgq.create_queue('{queue}')" for queue in QUEUES.values()),
    *(f"select pgq.register_consumer('{queue}', 'reader')" for queue in QUEUES.values()),
    "select pgq.restrict_queue('r')",
    "select pgq.grant_queue('r', '{insert}', 'granted')",
    "select pgq.grant_queue('r', '{consume}', 'granted', 'reader')",
)
STEPS = {
    "INSERT into the relation": "insert into pgq_queue.%s (ev_type, ev_data)"
    f" values ('type', '{DATA}')",
    "insert_event": f"select pgq.insert_event('%s', 'type', '{DATA}')",
    "next_batch": "select pgq.next_batch('%s', 'reader')",
    "finish_batch": "select pgq.finish_batch($1)",
}
TICK = b"select pgq.force_tick(queue_name), pgq.ticker(queue_name) from pgq.queue"


def call(conn: Connection, step: str, values: list[bytes]) -> tuple[float, bytes | None]:
    """The seconds that a call takes, and its result."""
    began = perf_counter()
    # Without psycopg's own work, which would be half of the time.
    result = conn.pgconn.exec_prepared(step.encode(), values)
    took = perf_counter() - began
    assert result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK), result.error_message
    return took, result.get_value(0, 0) if result.ntuples else None


def run(bench: Bench) -> None:
    pairs = bench.choose(3_000, quick=30)
    seconds: dict[str, dict[str, list[float]]] = {
        step: {name: [] for name in QUEUES} for step in STEPS
    }
    with bench.server(autovacuum=False, fsync=False) as server:
        dsn = pgqpy_database(server, *SETUP)
        sessions = {
            name: connect(make_conninfo(dsn, options=f"-c role={role}"))
            for name, role in ROLES.items()
        }
        for name, conn in sessions.items():
            for step, statement in STEPS.items():
                text = statement.replace("%s", QUEUES[name])
                conn.pgconn.prepare(step.encode(), text.encode())
        with connect(dsn) as owner:
            for number in range(pairs):
                order = [*QUEUES][:: 1 if number % 2 else -1]
                found: dict[str, bytes] = {}
                for step in STEPS:
                    if step == "next_batch":
                        owner.execute(TICK)
                    for name in order:
                        values = [found[name]] if step == "finish_batch" else []
                        took, value = call(sessions[name], step, values)
                        seconds[step][name].append(took)
                        found[name] = value or b""
        for conn in sessions.values():
            conn.close()
    for letter, (step, each) in zip("abcd", seconds.items(), strict=True):
        contest = Contest(step, 1, "calls", each)
        bench.add(contest)
        bench.at_least(f"R4{letter}", step, contest.ratio(RESTRICTED, OPEN), 0.97)
