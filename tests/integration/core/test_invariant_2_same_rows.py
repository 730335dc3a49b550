"""The batch of an open batch id is the same set of rows whenever and from wherever it is read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg import IsolationLevel

from pgqpy.embedded import Server
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_standby import standby_of
from tests.fixtures.fix_ticker import eventually

pytestmark = pytest.mark.smoke


def busy_batch(conn: Connection, connect: Connect, queue: str) -> int:
    """A batch between two ticks at which transactions were open; some of them commit later."""
    ops.register(conn, queue, "c")
    before = [connect(autocommit=False) for _ in range(4)]
    for number, producer in enumerate(before):
        ops.insert(producer, queue, f"open at the first tick {number}")
        ops.insert(conn, queue, f"between {number}")
    ops.drain(conn, queue, "c")
    ops.tick(conn, queue)
    ops.finish(conn, ops.next_batch(conn, queue, "c"))
    before[0].commit()
    before[1].rollback()
    after = connect(autocommit=False)
    ops.insert(after, queue, "open at the second tick")
    conn.execute(
        "select pgq.insert_events(%s, array_fill('t'::text, array[1000]),"
        " array(select 'bulk ' || n from generate_series(1, 1000) n))",
        [queue],
    )
    ops.tick(conn, queue)
    batch = ops.next_batch(conn, queue, "c")
    before[2].commit()
    after.commit()
    before[3].commit()
    return batch


def test_an_open_batch_is_the_same_rows_whatever_is_committed_meanwhile(
    conn: Connection, connect: Connect, queue: str
) -> None:
    batch = busy_batch(conn, connect, queue)
    rows = ops.events(conn, batch)
    assert [row[5] for row in rows] == [
        "open at the first tick 0",
        *(f"bulk {n}" for n in range(1, 1001)),
    ]
    ops.tick(conn, queue)
    assert ops.events(conn, batch) == rows
    for level in IsolationLevel:
        other = connect(level=level)
        assert ops.events(other, batch) == rows
        other.rollback()
    query = ops.value(conn, "select pgq.batch_event_sql(%s)", batch)
    assert query.endswith(" order by 1")
    assert connect().execute(query.encode()).fetchall() == rows
    with conn.transaction():
        cursor = "select * from pgq.get_batch_cursor(%s, 'c', 1)"
        head = conn.execute(cursor, [batch]).fetchall()
        assert head + conn.execute("fetch all from c").fetchall() == rows


def test_an_open_batch_is_the_same_rows_after_rotation_and_in_parallel_slices(
    conn: Connection, connect: Connect, queue: str
) -> None:
    ops.rotate_whenever_asked(conn, queue)
    batch = busy_batch(conn, connect, queue)
    rows = ops.events(conn, batch)
    query = ops.value(conn, "select pgq.batch_event_sql(%s)", batch)
    for _ in range(4):
        ops.tick(conn, queue)
        ops.rotate(conn, queue)
        ops.rotate_logs(conn)
        assert ops.events(conn, batch) == rows
        assert conn.execute(query.encode()).fetchall() == rows
    assert ops.rotations(conn, queue) > 0
    readers = [connect() for _ in range(4)]

    def read(number: int) -> list[ops.Row]:
        part = f"select * from ({query}) ev where ev_id % {len(readers)} = {number}"
        return readers[number].execute(part.encode()).fetchall()

    with ThreadPoolExecutor(len(readers)) as pool:
        parts = list(pool.map(read, range(len(readers))))
    assert sorted(row for part in parts for row in part) == rows


def test_a_query_reads_little_but_its_batch(conn: Connection, connect: Connect, queue: str) -> None:
    """Its cost must follow the batch, not the oldest transaction that is open."""
    ops.register(conn, queue, "c")
    oldest = connect(autocommit=False)
    ops.insert(oldest, queue, "oldest")
    for number in range(300):
        ops.insert(conn, queue, f"long since delivered {number}")
    ops.deliver(conn, queue, "c")
    query = ops.value(
        conn, "select pgq.batch_event_sql(%s)", ops.open_batch(conn, queue, "c", "new")
    )
    # A plan by index, as for a table that does not fit into a page or two.
    conn.execute("set enable_seqscan = off")
    plan = ops.value(conn, f"explain (analyze, format json) {query}")

    def rows_read(node: dict[str, object]) -> float:
        removed = node.get("Rows Removed by Filter", 0)
        own = node["Actual Rows"] if str(node["Node Type"]).endswith("Scan") else 0
        assert isinstance(removed, int | float)
        assert isinstance(own, int | float)
        children = node.get("Plans", [])
        assert isinstance(children, list)
        return own + removed + sum(rows_read(child) for child in children)

    assert 1 <= rows_read(plan[0]["Plan"]) < 150


@pytest.mark.slow
def test_a_hot_standby_gives_the_same_rows(mortal: Server, connect: Connect) -> None:
    conn = connect(mortal.dsn)
    conn.execute("select pgq.create_queue('q')")
    ops.register(conn, "q", "c")
    with standby_of(mortal) as standby:
        batch = ops.open_batch(conn, "q", "c", *(f"event {number}" for number in range(10)))
        query = ops.value(conn, "select pgq.batch_event_sql(%s)", batch)
        rows = ops.events(conn, batch)
        reached = ops.value(conn, "select pg_current_wal_lsn()::text")

        other = connect(standby.dsn)
        assert ops.value(other, "select pg_is_in_recovery()")
        eventually(other, "select pg_last_wal_replay_lsn() >= %s::pg_lsn", reached)
        assert other.execute(query.encode()).fetchall() == rows
        assert ops.events(other, batch) == rows
        other.close()
