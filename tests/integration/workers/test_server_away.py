"""An outage ends when the server is back: clients notice within a quarter of a second."""

from __future__ import annotations

import queue as queues
import random
from collections import Counter
from itertools import accumulate
from time import monotonic
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

import pgqpy
from pgqpy import Admin, Consumer, Event, GroupConsumer, Producer, RemoteConsumer
from pgqpy._runtime.backoff import REFUSED, Backoff, is_refused
from pgqpy.embedded import Server
from pgqpy.tasks import TableWorker, Task, Tasks, TaskWorker
from tests.fixtures.fix_client import PATIENCE, Background, wait_until
from tests.fixtures.fix_ticker import StartTicker

HOST = 'connection failed: connection to server at "127.0.0.1", port 1 failed: '
REFUSAL = f"{HOST}Connection refused\n\tIs the server running on that host?"
BUSY = f"{HOST}FATAL:  sorry, too many clients already"


def test_refused_connections_are_told_from_others() -> None:
    def several(*attempts: str) -> psycopg.Error:
        return psycopg.OperationalError(
            "\n- host: ".join(
                ["Multiple connection attempts failed. All failures were:", *attempts]
            )
        )

    assert is_refused(psycopg.OperationalError(REFUSAL))
    assert is_refused(several(REFUSAL, REFUSAL))
    assert not is_refused(psycopg.OperationalError(BUSY))
    assert not is_refused(several(REFUSAL, BUSY))


def test_two_hundred_clients_come_back_soon_and_not_together() -> None:
    random.seed(1)
    back = 3.0
    refusal = psycopg.OperationalError(REFUSAL)
    arrivals = []
    for _ in range(200):
        pauses = Backoff(0.1, 5)
        attempts = accumulate(pauses.pause(refusal) for _ in range(100))
        arrivals.append(next(moment for moment in attempts if moment >= back))
    assert max(arrivals) <= back + REFUSED
    busiest = Counter(int(moment * 100) for moment in arrivals).most_common(1)[0][1]
    assert busiest <= 20, "of 200, in the same hundredth of a second"


@pytest.mark.slow
def test_all_clients_work_again_as_soon_as_the_server_does(
    own_server: Server, dsn: str, background: Background, start_ticker: StartTicker
) -> None:
    handled: queues.Queue[str] = queues.Queue()
    refused: Counter[str] = Counter()

    class Counting:
        def on_error(self, error: Exception, *_: Any) -> None:
            refused[type(self).__name__] += is_refused(error)

    class Plain(Counting, Consumer):
        queue, consumer = "q", "plain"

        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            handled.put("Plain")

    class Remote(Counting, RemoteConsumer):
        queue, consumer = "q", "remote"

        def process_remote_event(self, target: pgqpy.Connection, event: Event) -> None:
            handled.put("Remote")

    class Group(Counting, GroupConsumer):
        queue, consumer, partitions = "q", "group", 2

        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            handled.put("Group")

    class Working(Counting, TaskWorker):
        queues = "tasks"

        def process_task(self, conn: pgqpy.Connection, task: Task) -> None:
            handled.put("Working")

    class Rows(Counting, TableWorker):
        table = "rows"

        def process_row(self, conn: pgqpy.Connection, row: dict[str, Any]) -> None:
            handled.put("Rows")

    def give_work() -> None:
        with psycopg.connect(own_server.dsn, autocommit=True) as conn:
            conn.execute("select pgq.insert_event('q', 'test', 'data')")
            conn.execute("insert into rows default values")
            Tasks(conn).push("tasks")
        # What was handled, and not committed when the server was killed, comes again.
        left = set(names)
        while left:
            left.discard(handled.get(timeout=PATIENCE))

    with psycopg.connect(own_server.dsn, autocommit=True) as conn:
        Admin(conn).create_queue("q")
        Tasks(conn).create_queue("tasks")
        conn.execute("create table rows (id int primary key generated always as identity)")
        conn.execute("select pgq_task.add_columns('rows')")
    start_ticker(own_server.dsn)
    remote = Remote(own_server.dsn, target_dsn=dsn)
    consumers = [Plain(own_server.dsn), remote, Group(own_server.dsn)]
    for consumer in consumers:
        consumer.register()
    clients: list[Any] = [*consumers, Working(own_server.dsn), Rows(own_server.dsn)]
    names = {type(client).__name__ for client in clients}
    for client in clients:
        background(client)
    give_work()
    own_server.kill()
    # Pauses that double would be seconds by now.
    wait_until(lambda: all(refused[name] >= 10 for name in names))
    own_server.restart()
    started = monotonic()
    give_work()
    # It is 0.3 s, where nothing else is under way.
    assert monotonic() - started < 40


@pytest.mark.slow
def test_a_pool_of_producers_survives_a_restart(own_server: Server) -> None:
    """The recipe of docs/operations.md."""
    with ConnectionPool(
        own_server.dsn, min_size=1, check=ConnectionPool.check_connection, open=True
    ) as pool:
        with pool.connection() as conn:
            Admin(conn).create_queue("orders")
        orders = Producer("orders")
        for number in range(2):
            with pool.connection() as conn:
                orders.insert_event(conn, "created", str(number))
            own_server.restart()
