"""Workers, connections and the server killed at random: results are exact, nothing is stuck.

For longer: ``pytest tests/faults/test_task_chaos.py --chaos 600 -s -o faulthandler_timeout=0``.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psycopg
import pytest

from examples.map_reduce.job import Job, pieces, words
from examples.map_reduce.workers import Workers
from pgqpy.embedded import Server
from tests.faults import collatz
from tests.faults.task_chaos import PATIENCE, Chaos, Overdue, insist
from tests.fixtures.fix_db import Connection

TEXT = (Path(__file__).parents[2] / "docs" / "decisions.md").read_text("utf-8")[:20_000]
NUMBERS = 40


JOB = Job("words", shards=4)
COUNTS = Counter(words(TEXT))
MOVES = {number: collatz.moves(number) for number in range(1, NUMBERS + 1)}

ROUNDS = "create table round (nr int primary key)"


@pytest.mark.slow
def test_whatever_is_killed_words_and_numbers_are_exact_and_nothing_is_stuck(
    mortal: Server, chaos_seconds: float, tmp_path: Path
) -> None:
    with psycopg.connect(mortal.dsn) as conn:
        conn.execute(ROUNDS)
        JOB.create(conn)
        collatz.create(conn)
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "log").open("wb"))
        crews = [
            Workers(module, arguments, number=2, dsn=mortal.dsn, log=log)
            for module, arguments in [
                ("examples.map_reduce.worker", JOB.arguments),
                ("tests.faults.collatz", []),
            ]
        ]
        for crew in crews:
            stack.callback(crew.stop)
        chaos, overdue = Chaos(mortal, crews), Overdue(mortal.dsn)
        for thread in (overdue, chaos):
            thread.start()
            stack.callback(thread.stop)
        end = time.monotonic() + chaos_seconds
        for rounds in itertools.count(1):
            insist(mortal.dsn, partial(begin, nr=rounds))
            wait_until_done(mortal.dsn, crews)
            insist(mortal.dsn, check)
            # A kill in the middle of a task is chance: repeat until it has happened.
            if time.monotonic() > (end if overdue.leases_over else end + PATIENCE):
                break
    print(
        f"\n{rounds} rounds, {dict(chaos.done)}; {len(overdue.leases_over)} leases ended,"
        f" the last of these tasks was claimed again after {overdue.most:.1f} s"
    )
    assert overdue.leases_over
    assert overdue.most < PATIENCE


def begin(conn: Connection, nr: int) -> None:
    """All words of a text, and some numbers; unless that was committed before."""
    if not conn.execute("insert into round values (%s) on conflict do nothing", [nr]).rowcount:
        return
    conn.execute("delete from arrived")
    conn.execute("select pgq_task.remove_tasks(%s, null)", [JOB.result])
    JOB.start(conn, pieces(TEXT, 3))
    collatz.push(conn, MOVES)


def wait_until_done(dsn: str, crews: list[Workers]) -> None:
    """Workers that could not connect when they began are started again."""
    patience = time.monotonic() + PATIENCE
    while not insist(dsn, lambda conn: JOB.is_empty(conn, JOB.reduce, *collatz.pipeline.queues)):
        assert time.monotonic() < patience, insist(dsn, left_over)
        for crew in crews:
            crew.replace()
        time.sleep(0.1)


def check(conn: Connection) -> None:
    assert JOB.counts(conn) == COUNTS
    arrived = conn.execute("select * from arrived order by start, part").fetchall()
    assert arrived == [
        (*each, part) for each in sorted(MOVES.items()) for part in range(collatz.PARTS)
    ]
    # Queues that tasks are given up to are made when it happens.
    queues = {name for (name,) in conn.execute("select queue_name from pgq_task.queue").fetchall()}
    assert queues == {*JOB.queues, *collatz.pipeline.queues}
    rest = conn.execute("select distinct queue from pgq_task.tasks").fetchall()
    assert rest == [(JOB.result,)]


def left_over(conn: Connection) -> list[tuple[object, ...]]:
    return conn.execute(
        "select id, queue, status, at, claimant, attempts, error, clock_timestamp()"
        "  from pgq_task.tasks order by id limit 20"
    ).fetchall()
