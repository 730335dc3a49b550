"""A row that kills its worker is given up, and costs other rows nothing."""

from __future__ import annotations

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_example import Run
from tests.fixtures.fix_ticker import eventually

WORKER = """
import os, signal, sys
from pgqpy.retry import FixedDelay
from pgqpy.tasks import TableWorker

def send(conn, row):
    conn.execute("insert into sent values (%s)", [row["id"]])
    if row["id"] in (3, 7):
        os.kill(os.getpid(), signal.SIGKILL)

TableWorker(
    sys.argv[1], "mail", send, batch_size=int(sys.argv[2]), concurrency=int(sys.argv[3]),
    retry_policy=FixedDelay(0, attempts=2),
).run(until_empty=True)
"""

GONE = (
    "select count(*) = 0 from pg_stat_activity"
    " where datname = current_database() and application_name = 'pgqpy mail'"
)


def deaths(conn: Connection, run: Run, program: str, *arguments: object) -> int:
    """The number of workers killed until nothing is left to do."""
    count = 0
    while run(program, *arguments).wait():
        count += 1
        # Until the server has noticed, its rows are locked, and no worker waits for them.
        eventually(conn, GONE)
        assert count < 10
    return count


@pytest.mark.slow
@pytest.mark.parametrize(("batch_size", "concurrency"), [(1, 1), (100, 1), (2, 3)])
def test_a_row_that_kills_its_process_is_given_up(
    conn: Connection, dsn: str, run_python: Run, batch_size: int, concurrency: int
) -> None:
    conn.execute("create table mail (id int primary key)")
    conn.execute("create table sent (id int primary key)")
    conn.execute("select pgq_task.add_columns('mail')")
    conn.execute("insert into mail select n from generate_series(1, 20) n")
    # Each of the two is given up after two attempts; the first that killed is not known.
    assert 2 <= deaths(conn, run_python, WORKER, dsn, batch_size, concurrency) <= 2 * (2 + 1)
    assert ops.value(conn, "select array_agg(id order by id) from sent") == [
        number for number in range(1, 21) if number not in (3, 7)
    ]
    found = conn.execute(
        "select id, status, next_attempt is null, attempts, last_error like 'RowLost: %'"
        " from mail where status <> 'succeeded' order by id"
    ).fetchall()
    assert found == [(number, "failed", True, 2, True) for number in (3, 7)]


ENDLESS = """
import os, signal, sys
from pgqpy.retry import FixedDelay
from pgqpy.tasks import TableWorker

def send(conn, row):
    os.kill(os.getpid(), signal.SIGKILL)

TableWorker(sys.argv[1], "mail", send, retry_policy=FixedDelay(0, attempts=None)).run(
    until_empty=True
)
"""


@pytest.mark.slow
def test_a_row_is_given_up_though_its_policy_never_does(
    conn: Connection, dsn: str, run_python: Run
) -> None:
    conn.execute("create table mail (id int primary key)")
    conn.execute("select pgq_task.add_columns('mail')")
    conn.execute("insert into mail values (1)")
    # The first death, which was not recorded, and five more.
    assert deaths(conn, run_python, ENDLESS, dsn) == 6
    found = conn.execute("select status, next_attempt, attempts, last_error from mail").fetchall()
    assert found[0][:3] == ("failed", None, 5)
    assert found[0][3].endswith("(5 times in a row)")
