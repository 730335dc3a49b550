"""Of a large event table, which is never analyzed, only what is asked for is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pgqpy import Admin
from pgqpy.cli._events.peek import Wanted, newest, one, since_then
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection

TICKS = 50
INSERT = """
insert into pgq_queue.q (ev_type, ev_data) select 'type', %s || n from generate_series(1, 100) n
"""
READ_WHOLE = """
select coalesce(sum(seq_tup_read), 0)::int from pg_stat_xact_user_tables
 where schemaname = 'pgq' and relname ~ '^event_[0-9]'
"""
LAST = f"tick {TICKS} event 100"


def find_newest(conn: Connection, event_id: int) -> None:
    assert newest(conn, "q", Wanted(10)).events[-1].data == LAST


def find_since(conn: Connection, event_id: int) -> None:
    ((since,),) = conn.execute(
        "select tick_time from pgq.tick order by tick_id desc offset 2 limit 1"
    ).fetchall()
    assert since_then(conn, "q", since, Wanted(10_000))[-1].data == LAST


def find_one(conn: Connection, event_id: int) -> None:
    event = one(conn, "q", event_id)
    assert event is not None
    assert event.data == LAST


def where(conn: Connection, event_id: int) -> None:
    assert Admin(conn).where_is_event("q", event_id)[0].state == "stored"


def rest(conn: Connection, event_id: int) -> None:
    tick = "(select max(tick_id) - 1 from pgq.tick)"
    found = conn.execute(f"select ev_data from pgq_node.get_rest_events('q', {tick})".encode())
    assert found.fetchall()[-1] == (LAST,)


def promote(conn: Connection, event_id: int) -> None:
    conn.execute("update pgq_node.node_info set node_type = 'branch'")
    assert ops.value(conn, "select ret_code from pgq_node.promote_branch('q')") == 200


@pytest.mark.parametrize("look", [find_newest, find_since, find_one, where, rest, promote])
def test_no_range_with_one_end_reads_the_whole_table(
    node: Connection, look: Callable[[Connection, int], None]
) -> None:
    node.execute(
        "select pgq_node.register_location('q', 'a', 'dbname=a', false);"
        "select pgq_node.create_node('q', 'root', 'a', 'worker', null, null, null)"
    )
    fill(node)
    event_id = ops.value(node, "select max(ev_id) from pgq.event_1")
    with node.transaction(), reading_no_table(node):
        look(node, event_id)


def test_rotation_does_not_read_the_table_that_it_empties(conn: Connection) -> None:
    conn.execute("select pgq.create_queue('q')")
    ops.rotate_whenever_asked(conn, "q")
    fill(conn)
    for _ in range(2):
        assert ops.rotate(conn, "q")
        ops.tick(conn, "q")
    with conn.transaction(), reading_no_table(conn):
        conn.execute("select pgq.maint_rotate_tables_step1('q')")
    assert ops.rotations(conn, "q") == 3


def test_the_newest_dead_letters_are_found_by_index(conn: Connection) -> None:
    conn.execute("""
        insert into pgq._dead_letter (dl_queue, dl_consumer, dl_batch, dl_attempts, dl_reason,
                                      ev_id, ev_time, ev_type)
        select 'q', 'c', 1, 1, 'r', n, now(), 't' from generate_series(1, 10000) n;
        analyze pgq._dead_letter""")
    newest = "explain select * from pgq.dead_letter order by dl_id desc limit 100"
    plan = " ".join(line for (line,) in conn.execute(newest))
    assert "dead_letter_pkey" in plan
    assert "Sort" not in plan


@contextmanager
def reading_no_table(conn: Connection) -> Iterator[None]:
    before = ops.value(conn, READ_WHOLE)
    yield
    assert ops.value(conn, READ_WHOLE) == before


def fill(conn: Connection) -> None:
    for number in range(TICKS):
        conn.execute(INSERT, [f"tick {number + 1} event "])
        ops.tick(conn, "q")
