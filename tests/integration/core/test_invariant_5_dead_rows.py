"""No steady-state operation leaves dead rows in event tables; rows of metadata that die are
bounded, also while some transaction holds back the xmin horizon for hours.
"""

from __future__ import annotations

import pytest
from psycopg import IsolationLevel

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection

pytestmark = pytest.mark.smoke

CYCLES = 150
LOGS = ("tick_0", "tick_1", "position_0", "position_1")


def work(conn: Connection, queue: str) -> None:
    """Some hours of a queue in a second: inserts, ticks, batches, rotation of everything."""
    ops.register(conn, queue, "c")
    for number in range(CYCLES):
        ops.insert(conn, queue, f"event {number}")
        ops.deliver(conn, queue, "c")
        if number % 50 == 49:
            ops.rotate(conn, queue)
            ops.rotate_logs(conn)


def dead_rows(conn: Connection) -> dict[str, int]:
    """Updated and deleted rows of each table of the schema since it was last emptied."""
    conn.execute("select pg_stat_force_next_flush()")
    return dict(
        conn.execute(
            "select relname, n_tup_upd + n_tup_del from pg_stat_user_tables"
            " where schemaname = 'pgq' and n_tup_upd + n_tup_del > 0"
        ).fetchall()
    )


@pytest.mark.slow
def test_logs_are_never_updated_nor_deleted_from(conn: Connection, queue: str) -> None:
    work(conn, queue)
    died = dead_rows(conn)
    assert not [table for table in died if table.startswith("event_")]
    assert not set(died) & set(LOGS)
    # The dead rows left: a few for each rotation, none for a batch or a tick.
    assert sum(died.values()) < CYCLES / 4, died


@pytest.mark.slow
def test_a_transaction_that_stays_open_does_not_let_the_metadata_grow(
    conn: Connection, connect: Connect, queue: str
) -> None:
    forgotten = connect(level=IsolationLevel.REPEATABLE_READ)
    forgotten.execute("create temporary table mine ()")
    assert ops.value(forgotten, "select txid_current()")
    work(conn, queue)
    positions = ops.value(
        conn, "select (select count(*) from pgq.position_0) + (select count(*) from pgq.position_1)"
    )
    assert positions < CYCLES / 4, "the log was not rotated"
    assert sum(dead_rows(conn).values()) < CYCLES / 4
    forgotten.rollback()


def test_retries_leave_no_dead_row_behind(conn: Connection, queue: str) -> None:
    ops.register(conn, queue, "c")
    for number in range(20):
        ops.insert(conn, queue, f"event {number}")
    ops.tick(conn, queue)
    batch = ops.next_batch(conn, queue, "c")
    assert ops.value(conn, "select pgq.batch_retry(%s, -1)", batch) == 20
    ops.finish(conn, batch)
    assert ops.value(conn, "select pgq.maint_retry_events()") == 20
    assert len(ops.deliver(conn, queue, "c")) == 20
    assert dead_rows(conn).keys() <= {"queue"}, "creating a queue rewrites its row"
