"""Events are noticed when they arrive: by polling, by being called, and after long transactions.

No promise here is a number of milliseconds, which a busy machine would break; each is a tick that
could not have come so soon by the slow ways, because these are set to minutes.
"""

from __future__ import annotations

import signal

from tests.fixtures import queue_ops as ops
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


def test_each_event_is_ticked_and_told_soon_after_its_commit(
    start_ticker: StartTicker, dsn: str, conn: Connection, connect: Connect, queue: str
) -> None:
    start_ticker(dsn).hear("leading")
    # The first ticks of a new queue, whose distance grows from there.
    eventually(conn, "select last_tick_id > 1 from pgq.get_queue_info(%s)", queue)
    ops.register(conn, queue, "c")
    listener = connect()
    listen(listener, queue)
    for _ in range(5):
        ops.insert(conn, queue, "data")
        tick_heard(listener)
        eventually(conn, "select ev_new = 0 from pgq.get_queue_info(%s)", queue)
        ops.finish(conn, eventually(conn, "select pgq.next_batch(%s, 'c')", queue))

    # In a transaction that outlives a tick. The event sequence moves when it is inserted, and is
    # ticked then; at the commit nothing moves. The heartbeat of an idle queue comes each minute.
    ops.drain(conn, queue, "c")
    slow = connect(autocommit=False)
    ops.insert(slow, queue, "slow")
    eventually(conn, "select ev_new = 0 from pgq.get_queue_info(%s)", queue)
    slow.commit()
    delivered: list[str] = []
    while not delivered:
        batch = eventually(conn, "select pgq.next_batch(%s, 'c')", queue)
        delivered = ops.payloads(conn, batch)
        ops.finish(conn, batch)
    assert delivered == ["slow"]


ASLEEP = "select last_value = 2 from pgq.ticker_sleep_seq"


def test_a_sleeping_ticker_is_woken_by_the_first_event_and_by_no_other(
    start_ticker: StartTicker, sleepy: Connection, connect: Connect
) -> None:
    dsn = sleepy.info.dsn
    listener, caller = connect(dsn), connect(dsn)
    listen(listener, "q")
    # Asleep it would look for work by itself only after minutes.
    daemon = start_ticker(dsn, sleep_after=0.01, sleep_at_most=600)
    for _ in range(5):
        eventually(sleepy, ASLEEP)
        ops.insert(sleepy, "q", "data")
        tick_heard(listener)
    eventually(sleepy, ASLEEP)
    # Once woken it stays awake, however long the next insert takes to come.
    daemon.config.write_text(ticker_toml(dsn, sleep_after=600, sleep_at_most=600))
    daemon.send(signal.SIGHUP)
    daemon.hear("reloaded")
    ops.insert(sleepy, "q", "data")
    eventually(sleepy, "select last_value = 1 from pgq.ticker_sleep_seq")
    caller.execute("listen pgq_wake")
    ops.insert(sleepy, "q", "data")
    assert list(caller.notifies(timeout=0)) == []


def test_a_declaration_of_sleep_that_was_taken_back_is_made_again(
    start_ticker: StartTicker, sleepy: Connection
) -> None:
    start_ticker(sleepy.info.dsn, sleep_after=0.01, sleep_at_most=0.1).hear("leading")
    for _ in range(3):
        eventually(sleepy, ASLEEP)
        # as PgQ's own daemon does
        sleepy.execute("select pgq.ticker()")
    eventually(sleepy, ASLEEP)


def test_a_heartbeat_that_is_due_keeps_no_ticker_awake_but_an_event_does(
    sleepy: Connection,
) -> None:
    sleepy.execute("update pgq.tick_0 set tick_time = tick_time - interval '1 hour'")
    assert ops.value(sleepy, "select pgq.ticker_sleep()") is True
    # By a session that had looked before the ticker declared that it sleeps.
    sleepy.execute("select nextval('pgq_ids.q')")
    assert ops.value(sleepy, "select pgq.ticker_sleep()") is False
