"""Events are noticed when they arrive: by polling, by being called, and after long transactions.

No promise here is a number of milliseconds, which a busy machine would break; each is a tick that
could not have come so soon by the slow ways, because these are set to minutes.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import psycopg
import pytest

from pgqpy.embedded import Server
from pgqpy.schema import schema_sql
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_ticker import PATIENCE, StartTicker, eventually, ticker_toml


def tick_heard(conn: Connection) -> int:
    """The tick of a listening connection's next notification."""
    for notify in conn.notifies(timeout=PATIENCE, stop_after=1):
        return int(notify.payload)
    raise AssertionError("no tick was heard")


def listen(conn: Connection, queue: str) -> None:
    row = conn.execute("select pgq.tick_channel(%s)", [queue]).fetchone()
    assert row is not None
    conn.execute(f"listen {row[0]}".encode())


def insert(conn: Connection, queue: str) -> None:
    conn.execute("select pgq.insert_event(%s, 'type', 'data')", [queue])


def settle(conn: Connection, queue: str) -> None:
    """Wait for the first ticks of a new queue, whose distance grows from there."""
    eventually(conn, "select last_tick_id > 1 from pgq.get_queue_info(%s)", queue)


def test_each_event_is_ticked_and_told_soon_after_its_commit(
    start_ticker: StartTicker, dsn: str, conn: Connection, connect: Connect, queue: str
) -> None:
    start_ticker(dsn).hear("leading")
    settle(conn, queue)
    conn.execute("select pgq.register_consumer(%s, 'c')", [queue])
    listener = connect(dsn)
    listen(listener, queue)
    for _ in range(5):
        insert(conn, queue)
        tick_heard(listener)
        eventually(conn, "select ev_new = 0 from pgq.get_queue_info(%s)", queue)
        batch = eventually(conn, "select pgq.next_batch(%s, 'c')", queue)
        conn.execute("select pgq.finish_batch(%s)", [batch])


def test_an_event_of_a_transaction_that_outlives_a_tick_arrives_after_its_commit(
    start_ticker: StartTicker, dsn: str, conn: Connection, connect: Connect, queue: str
) -> None:
    """The event sequence moved when it was inserted, and was ticked then; at the commit nothing
    moves. Waiting for the heartbeat of an idle queue would take a minute."""
    start_ticker(dsn).hear("leading")
    settle(conn, queue)
    conn.execute("select pgq.register_consumer(%s, 'c')", [queue])
    slow = connect(dsn, autocommit=False)
    insert(slow, queue)
    eventually(conn, "select ev_new = 0 from pgq.get_queue_info(%s)", queue)
    slow.commit()

    delivered: list[tuple[object, ...]] = []
    while not delivered:
        batch = eventually(conn, "select pgq.next_batch(%s, 'c')", queue)
        delivered = conn.execute("select ev_data from pgq.get_batch_events(%s)", [batch]).fetchall()
        conn.execute("select pgq.finish_batch(%s)", [batch])
    assert delivered == [("data",)]


@pytest.fixture
def no_prepared() -> Iterator[str]:
    """A database on a server without prepared transactions: producers may call the ticker."""
    with Server() as server:
        with psycopg.connect(server.dsn) as conn:
            conn.execute(schema_sql().encode())
            conn.execute("select pgq.create_queue('q')")
        yield server.dsn


def test_a_sleeping_ticker_is_woken_by_the_first_event(
    start_ticker: StartTicker, no_prepared: str, connect: Connect
) -> None:
    conn, listener = connect(no_prepared), connect(no_prepared)
    # Asleep it would look for work by itself only after minutes.
    start_ticker(no_prepared, sleep_after=0.01, sleep_at_most=600).hear("leading")
    listen(listener, "q")
    for _ in range(5):
        eventually(conn, "select last_value = 2 from pgq.ticker_sleep_seq")
        insert(conn, "q")
        tick_heard(listener)


def test_producers_stop_calling_once_the_ticker_is_awake(
    start_ticker: StartTicker, no_prepared: str, connect: Connect
) -> None:
    conn = connect(no_prepared)
    daemon = start_ticker(no_prepared, sleep_after=0.01, sleep_at_most=600)
    eventually(conn, "select last_value = 2 from pgq.ticker_sleep_seq")
    # Once woken it stays awake, however long the next insert takes to come.
    daemon.config.write_text(ticker_toml(no_prepared, sleep_after=600, sleep_at_most=600))
    daemon.send(signal.SIGHUP)
    daemon.hear("reloaded")
    insert(conn, "q")
    eventually(conn, "select last_value = 1 from pgq.ticker_sleep_seq")
    caller = connect(no_prepared)
    caller.execute("listen pgq_wake")
    insert(conn, "q")
    assert list(caller.notifies(timeout=0)) == []


def test_a_declaration_of_sleep_that_was_taken_back_is_made_again(
    start_ticker: StartTicker, no_prepared: str, connect: Connect
) -> None:
    conn = connect(no_prepared)
    start_ticker(no_prepared, sleep_after=0.01, sleep_at_most=0.1).hear("leading")
    for _ in range(3):
        eventually(conn, "select last_value = 2 from pgq.ticker_sleep_seq")
        # as PgQ's own daemon does
        conn.execute("select pgq.ticker()")
    eventually(conn, "select last_value = 2 from pgq.ticker_sleep_seq")


def test_a_heartbeat_that_is_due_keeps_no_ticker_awake_but_an_event_does(
    no_prepared: str, connect: Connect
) -> None:
    conn, sleep = connect(no_prepared), "select pgq.ticker_sleep()"
    conn.execute("update pgq.tick_0 set tick_time = tick_time - interval '1 hour'")
    assert conn.execute(sleep).fetchone() == (True,)
    # By a session that had looked before the ticker declared that it sleeps.
    conn.execute("select nextval('pgq_ids.q')")
    assert conn.execute(sleep).fetchone() == (False,)
