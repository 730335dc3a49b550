"""What is written to the server's log (WAL): bytes of an event, a batch, and a task.

Each is a transaction, its commit included, in a server where nothing else writes; events have
payloads of 130 bytes. *Page images*: after a checkpoint the first change of a page writes the whole
page. These are counted apart; their share depends on the time between checkpoints. Then all that a
task of 256 bytes costs from push to finish, with sweeps, autovacuum and page images: 1,000 a
second, each pushed in a transaction of its own, and one worker as it comes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks._pgbench import producers
from benchmarks._program import python_program
from benchmarks._servers import (
    CREATE_QUEUE,
    KEEPER,
    LSN,
    OURS,
    PGQ_C,
    PLAIN_TABLE,
    Connection,
    connect,
    database,
    implementations,
    pgqpy_database,
)
from benchmarks.bench import Bench
from benchmarks.insert import BY_FUNCTION, BY_HAND, INTO_RELATION, PLAIN, RELATION
from benchmarks.task_held import CLAIM, FINISH
from benchmarks.task_push import BY_HAND as TASK_BY_HAND
from benchmarks.task_push import CREATE_TASKS, PLAIN_TASKS, PUSH

FORCE = "select pgq.force_tick('q')"
TICK = "select pgq.ticker('q')"
NEXT = "select pgq.next_batch('q', 'keeper')"
FINISH_BATCH = "select pgq.finish_batch(%s)"
TASK = f"{PLAIN}, of a task"
LARGE_PUSH = f"""
select pgq_task.push('item', '{{"sent": 0, "padding": "{"x" * 230}"}}');
"""
PROGRESS = f"select ({LSN}), finished from pgq_task.get_statistics('item')"


class Log:
    """The bytes that statements write, by what they do."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.bytes: dict[str, int] = {}

    def write(self, what: str, statement: str, *values: Any) -> Any:
        """Execute a statement and return its first value, if it gives rows."""
        [(began,)] = self.conn.execute(LSN, prepare=True)
        cursor = self.conn.execute(statement.encode(), values, prepare=True)
        found = cursor.fetchone() if cursor.description else None
        [(ended,)] = self.conn.execute(LSN, prepare=True)
        self.bytes[what] = self.bytes.get(what, 0) + int(ended - began)
        return found


def events(log: Log, name: str) -> None:
    log.write(f"{name}, insert_event", BY_FUNCTION)
    if name == OURS:
        log.write(RELATION, INTO_RELATION)


def batches(log: Log, name: str) -> None:
    log.conn.execute(BY_FUNCTION.encode())
    log.conn.execute(FORCE)
    log.write(f"{name}, tick", TICK)
    (batch,) = log.write(f"{name}, next_batch", NEXT)
    log.write(f"{name}, finish_batch", FINISH_BATCH, batch)


def tasks(log: Log, name: str) -> None:
    log.write(f"{name}, push", PUSH)
    task = log.write(f"{name}, claim", CLAIM, "me")
    log.write(f"{name}, finish", FINISH, "me", *task)


def by_hand(log: Log, name: str) -> None:
    log.write(name, {PLAIN: BY_HAND, TASK: TASK_BY_HAND}[name])


def bytes_of(work: Callable[[Log, str], None], name: str, dsn: str, count: int) -> dict[str, float]:
    with connect(dsn) as conn:
        log = Log(conn)
        work(log, name)  # prepares
        conn.execute("checkpoint")
        log.bytes.clear()
        for _ in range(count):
            work(log, name)
        return {what: total / count for what, total in log.bytes.items()}


def stream(bench: Bench) -> float:
    """Bytes of a task while they keep coming."""
    program, rate = python_program("pgqpy_tasks"), 1_000
    warm_up, seconds = bench.choose((10, 60), quick=(1, 2))
    with bench.server() as server:
        dsn = database(server)
        program.install(dsn)
        with (
            program.work(dsn, 10**9, warm_up + seconds + 60),
            producers(server, dsn, LARGE_PUSH, clients=4, rate=rate),
            connect(dsn) as conn,
        ):
            time.sleep(warm_up)
            conn.execute("checkpoint")
            [(began, done)] = conn.execute(PROGRESS)
            time.sleep(seconds)
            [(ended, done_then)] = conn.execute(PROGRESS)
    return float((ended - began) / (done_then - done))


def run(bench: Bench) -> None:
    count = bench.choose(2_000, quick=50)
    with bench.server(autovacuum=False) as server:
        scripts = implementations(server)
        ours = pgqpy_database(server, CREATE_QUEUE, KEEPER, CREATE_TASKS)
        parties = [
            (by_hand, PLAIN, database(server, PLAIN_TABLE)),
            (events, OURS, ours),
            (batches, OURS, ours),
            (by_hand, TASK, pgqpy_database(server, PLAIN_TASKS)),
            (tasks, OURS, ours),
        ]
        if PGQ_C in scripts:
            peer = database(server, scripts[PGQ_C], CREATE_QUEUE, KEEPER)
            parties += [(events, PGQ_C, peer), (batches, PGQ_C, peer)]
        found: list[dict[str, float]] = []
        for images in ("off", "on"):
            with connect(server.dsn) as conn:
                conn.execute(f"alter system set full_page_writes = {images}".encode())
                conn.execute("select pg_reload_conf()")
            found.append({})
            for work, name, dsn in parties:
                found[-1] |= bytes_of(work, name, dsn, count)
    plain, with_images = found
    bench.table(
        "Bytes of a transaction",
        ("", "bytes", "x plain", f"page images, of {count:,} after a checkpoint"),
        [
            (
                what,
                round(plain[what]),
                round(plain[what] / plain[TASK if "push" in what else PLAIN], 2),
                round(with_images[what] - plain[what]),
            )
            for what in plain
        ],
    )
    bench.at_most("Q11", "pushed, claimed, finished", round(stream(bench)), 700, "bytes")
    bench.at_most("R5", f"{RELATION}, times a {PLAIN}", plain[RELATION] / plain[PLAIN], 1.1)
