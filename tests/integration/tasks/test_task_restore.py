"""Tasks survive crashes and dumps: each that is there can be claimed, wherever the marks stand."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
import pytest

from pgqpy.embedded import Server
from tests.fixtures import queue_ops as ops
from tests.fixtures.dumps import dump, restored_elsewhere, use_up_transaction_ids
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_db import Connection
from tests.fixtures.task_ops import finish

PUSH = "select pgq_task.push('tasks', '1')"
CLAIM = "select id, version from pgq_task.claim('{tasks}', %s, interval '1 second', 3)"
#: Also those that have lost five workers, on a slow machine: they are in the error queue.
DRAIN = """
select id, version
  from pgq_task.claim((select array_agg(queue_name) from pgq_task.queue), 'drain', '1 hour', 100)
"""
COUNT = "select count(*) from pgq_task.task"
MOST = 2_000


class Load:
    """Pushes, claims, finishes, dies and sweeps on some connections.

    It pushes as many tasks as can be drained in a moment, however long a dump takes.
    """

    def __init__(self, dsn: str) -> None:
        self.stopping = threading.Event()
        self.threads = [
            threading.Thread(target=work, args=(dsn, f"w{number}"))
            for work in (self.push, self.work)
            for number in range(2)
        ]
        self.finished = 0

    def push(self, dsn: str, name: str) -> None:
        with suppress(psycopg.OperationalError), psycopg.connect(dsn, autocommit=True) as conn:
            for _ in range(MOST):
                if self.stopping.is_set():
                    break
                conn.execute(PUSH)

    def work(self, dsn: str, name: str) -> None:
        with suppress(psycopg.OperationalError), psycopg.connect(dsn, autocommit=True) as conn:
            while not self.stopping.is_set():
                conn.execute("select pgq_task.sweep()")
                for task, version in conn.execute(CLAIM, [name]).fetchall():
                    if task % 7 and self.finish(conn, name, task, version):
                        self.finished += 1

    def finish(self, conn: Connection, *task: object) -> bool:
        """False if its lease was over, and the other one has it."""
        try:
            conn.execute("select pgq_task.finish(%s, %s, %s)", task)
        except psycopg.DatabaseError as error:
            if error.sqlstate != "PQ071":
                raise
            return False
        return True

    def until_finished(self, count: int) -> None:
        wait_until(lambda: self.finished >= count)


@contextmanager
def load(dsn: str) -> Iterator[Load]:
    load = Load(dsn)
    for thread in load.threads:
        thread.start()
    try:
        yield load
    finally:
        load.stopping.set()
        for thread in load.threads:
            thread.join()


def drain(conn: Connection) -> int:
    """The tasks that claims find, until nothing is left."""
    found = 0

    def nothing_left() -> bool:
        nonlocal found
        conn.execute("select pgq_task.sweep()")
        claimed = conn.execute(DRAIN).fetchall()
        finish(conn, *claimed, claimant="drain")
        found += len(claimed)
        return bool(ops.value(conn, COUNT) == 0)

    wait_until(nothing_left)
    return found


@pytest.mark.slow
def test_a_dump_in_a_cluster_with_lower_transaction_ids_holds_tasks_that_can_all_be_claimed(
    server: Server, dsn: str, conn: Connection
) -> None:
    """Sweeps remember ids that are still to be drawn there."""
    conn.execute("select pgq_task.create_queue('tasks')")
    use_up_transaction_ids(conn)
    with psycopg.connect(dsn) as slow, load(dsn) as working:
        slow.execute(PUSH)
        working.until_finished(100)
        dumped = dump(server, dsn)
    with restored_elsewhere(server, dumped) as restored:
        tasks = ops.value(restored, COUNT)
        assert tasks
        assert drain(restored) == tasks
    drain(conn)


@pytest.mark.slow
def test_after_a_crash_all_tasks_that_are_there_can_be_claimed(mortal: Server) -> None:
    """Commits are lost with it, as no session waited for the disk, those of sweeps too."""
    with psycopg.connect(mortal.dsn, autocommit=True) as conn:
        conn.execute("alter database postgres set synchronous_commit = off")
        conn.execute("select pgq_task.create_queue('tasks')")
        conn.execute("checkpoint")
    for _ in range(3):
        with load(mortal.dsn) as working:
            working.until_finished(100)
            mortal.kill()
        mortal.restart()
    with psycopg.connect(mortal.dsn, autocommit=True) as conn:
        tasks = ops.value(conn, COUNT)
        assert drain(conn) == tasks
