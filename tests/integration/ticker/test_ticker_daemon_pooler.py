"""Behind PgBouncer: a pool in session mode is as good as the server, others are refused."""

from __future__ import annotations

from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_pool import Pool
from tests.fixtures.fix_ticker import StartTicker, eventually


def test_a_pool_in_transaction_mode_is_refused_before_it_keeps_our_lock(
    start_ticker: StartTicker, pool: Pool, conn: Connection
) -> None:
    daemon = start_ticker(pool("transaction"), reconnect_at_most=0.1)
    assert "session mode" in daemon.hear("connected through a pooler")["hint"]
    assert daemon.said("leading") == []
    assert daemon.stop() == 0
    assert conn.execute(
        "select count(*) from pg_locks l join pg_database d on d.oid = l.database "
        "where locktype = 'advisory' and datname = current_database()"
    ).fetchone() == (0,)


def test_a_pool_in_transaction_mode_with_one_session_is_refused_too(
    start_ticker: StartTicker, pool: Pool
) -> None:
    daemon = start_ticker(pool("transaction", size=1), reconnect_at_most=0.1)
    daemon.hear("connected through a pooler")
    assert daemon.said("leading") == []


def test_a_pool_in_session_mode_is_used(
    start_ticker: StartTicker, pool: Pool, conn: Connection, queue: str
) -> None:
    daemon = start_ticker(pool("session"), reconnect_at_most=0.1)
    daemon.hear("leading")
    conn.execute("select pgq.insert_event(%s, 'type', 'data')", [queue])
    eventually(conn, "select last_tick_id > 1 from pgq.get_queue_info(%s)", queue)
    assert daemon.stop() == 0
