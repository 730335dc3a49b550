"""Producers read where to write from one sequence, and look at nothing else. Whatever they would
have to look at makes the queue guarded first.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_ticker import with_schema

TABLES = "select distinct tableoid::regclass::text from pgq.event where ev_txid > 0"


def guarded(conn: Connection, queue: str) -> bool:
    seq = ops.value(conn, "select queue_slot_seq::text from pgq.queue where queue_name = %s", queue)
    return bool(ops.value(conn, "select pgq._state_guarded(%s)", seq))


def unguard(conn: Connection, queue: str) -> None:
    """A tick with events does."""
    ops.insert_ticked(conn, queue, "unguards")


def test_a_new_queue_is_guarded_while_the_ticker_sleeps(conn: Connection, connect: Connect) -> None:
    """Otherwise nothing could wake it."""
    creator = connect(autocommit=False)
    creator.execute("select pgq.create_queue('first')")
    assert not ops.value(conn, "select pgq._guard_queues()")
    creator.commit()
    assert not guarded(conn, "first")
    conn.execute("select setval('pgq.ticker_sleep_seq', 2)")
    assert ops.value(conn, "select pgq._guard_queues()")
    conn.execute("select pgq.create_queue('second')")
    assert guarded(conn, "first")
    assert guarded(conn, "second")


def test_a_tick_with_events_ends_the_guard(conn: Connection, queue: str) -> None:
    ops.register(conn, queue, "c")
    assert ops.value(conn, "select pgq._guard_queues()")
    ops.insert(conn, queue, "guarded")
    assert guarded(conn, queue)
    assert ops.deliver(conn, queue, "c") == ["guarded"]
    assert not guarded(conn, queue)
    ops.insert(conn, queue, "not guarded")
    assert ops.deliver(conn, queue, "c") == ["not guarded"]
    assert not guarded(conn, queue)


def test_an_event_is_stored_the_same_guarded_or_not(conn: Connection, queue: str) -> None:
    assert ops.value(conn, "select pgq._guard_queues()")
    insert = "select pgq.insert_event(%s, 't', 'd', '1', '2', '3', '4')"
    first = ops.value(conn, insert, queue)
    unguard(conn, queue)
    second = ops.value(conn, insert, queue)
    rows = conn.execute(
        """
        select ev_time is not null, ev_txid = xmin::text::bigint, ev_owner, ev_retry, ev_type,
               ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_slot, tableoid
          from pgq.event
         where ev_id in (%s, %s) and ev_txid > 0
        """,
        [first, second],
    ).fetchall()
    assert len(rows) == 2
    assert rows[0] == rows[1]
    assert conn.execute(TABLES).fetchall() == [("pgq.event_1_0",)]


@pytest.mark.parametrize(
    ("setting", "value", "error"),
    [("queue_disable_insert", "true", "PQ006"), ("queue_per_tx_limit", "1", "PQ010")],
)
def test_a_setting_is_obeyed_from_its_commit_on(
    conn: Connection, connect: Connect, queue: str, setting: str, value: str, error: str
) -> None:
    change = f"update pgq.queue set {setting} = {value}".encode()
    two = "select pgq.insert_event(%(q)s, 't', 'd'), pgq.insert_event(%(q)s, 't', 'd')"
    admin = connect(autocommit=False)
    unguard(conn, queue)
    admin.execute(change)
    admin.rollback()
    unguard(conn, queue)
    assert not guarded(conn, queue)

    admin.execute(change)
    conn.execute(two, {"q": queue})
    ops.tick(conn, queue)
    assert guarded(conn, queue)  # a look before the commit must not undo the guard
    admin.commit()
    for _ in range(2):
        with ops.refused(error):
            conn.execute(two, {"q": queue})
        ops.tick(conn, queue)
        assert guarded(conn, queue)


def test_rotation_keeps_the_guard_and_the_guard_the_table(conn: Connection, queue: str) -> None:
    ops.register(conn, queue, "c")
    ops.rotate_whenever_asked(conn, queue)
    for number in range(4):
        unguard(conn, queue)
        ops.insert(conn, queue, f"{number}")
        assert ops.deliver(conn, queue, "c") == ["unguards", f"{number}"]
        assert ops.rotate(conn, queue)
        assert not guarded(conn, queue)

        assert ops.value(conn, "select pgq._guard_queues()")
        assert guarded(conn, queue)
        ops.insert(conn, queue, f"guarded {number}")
        assert ops.deliver(conn, queue, "c") == [f"guarded {number}"]
        assert ops.value(conn, "select pgq._guard_queues()")
        assert ops.rotate(conn, queue)
        assert guarded(conn, queue)


def test_a_slot_that_another_session_changes_is_neither_rotated_nor_guarded_nor_unguarded(
    conn: Connection, connect: Connect, queue: str
) -> None:
    """Setting the sequence to the value read before would undo the other session's change."""
    ops.rotate_whenever_asked(conn, queue)
    unguard(conn, queue)
    other = connect(autocommit=False)
    assert ops.value(other, "select pgq._lock_slots()")
    assert not ops.rotate(conn, queue)
    assert not ops.value(conn, "select pgq._guard_queues()")
    assert not guarded(conn, queue)
    other.rollback()
    assert ops.rotate(conn, queue)
    assert ops.value(conn, "select pgq._guard_queues()")
    assert ops.value(other, "select pgq._lock_slots()")
    unguard(conn, queue)
    assert guarded(conn, queue)


def test_the_guard_stays_while_the_ticker_sleeps(conn: Connection, queue: str) -> None:
    conn.execute("select setval('pgq.ticker_sleep_seq', 2)")
    assert ops.value(conn, "select pgq._guard_queues()")
    ops.insert(conn, queue, "event")
    conn.execute("select pgq.ticker_round()")
    assert guarded(conn, queue)
    conn.execute("select pgq.ticker_awake()")
    unguard(conn, queue)
    assert not guarded(conn, queue)


def test_the_state_of_another_cluster_is_replaced(conn: Connection, queue: str) -> None:
    """A different identifier only means that this is a copy; its transaction ids decide."""
    conn.execute("select pgq.create_queue('another')")
    unguard(conn, "another")
    state = "select last_value from pgq_slots.another"
    ours = ops.value(conn, state)
    for tag in (-1, 1):
        conn.execute("select setval('pgq_slots.another', %s)", [ours + tag * 2**19])
        unguard(conn, "another")
        assert ops.value(conn, state) == ours
        assert conn.execute(TABLES).fetchall() == [("pgq.event_2_0",)]


def test_names_of_any_length_are_told_apart(conn: Connection) -> None:
    """PostgreSQL cuts the names of sequences at 63 bytes."""
    names = []
    for character in ("x", "ä", "😀", '"', "#"):
        size = len(character.encode())
        for length in (1, 59, 62, 63, 64, 250) if character in "xä" else (63, 64):
            name = "y" * (length % size) + character * (length // size)
            names += [name, name + "1", name + "A"]
    for each in names:
        assert ops.value(conn, "select pgq.create_queue(%s)", each) == 1
        ops.register(conn, each, "c")
    for name in names:
        for missing in (name + "3", name + "x" * 80):
            with ops.refused("PQ001", match="does not exist"):
                ops.insert(conn, missing, "nowhere")
    for _ in range(2):
        for each in names:
            ops.insert(conn, each, each)
        for each in names:
            assert ops.deliver(conn, each, "c") == [each]


def test_sessions_find_a_queue_that_is_made_again(conn: Connection, queue: str) -> None:
    for _ in range(7):
        unguard(conn, queue)
        conn.execute("select pgq.drop_queue(%s)", [queue])
        with pytest.raises(psycopg.Error, match="does not exist"):
            ops.insert(conn, queue, "nowhere")
        conn.execute("select pgq.create_queue(%s)", [queue])
        ops.register(conn, queue, "c")
        ops.insert(conn, queue, "new")
        assert ops.deliver(conn, queue, "c") == ["new"]
        conn.execute("select pgq.unregister_consumer(%s, 'c')", [queue])


def test_a_queue_is_made_though_an_earlier_schema_has_left_its_sequences(
    conn: Connection, queue: str
) -> None:
    conn.execute("drop schema pgq, pgq_ext, pgq_coop, pgq_task cascade")
    with_schema(conn.info.dsn)
    conn.execute("select pgq.create_queue(%s)", [queue])
    ops.register(conn, queue, "c")
    ops.insert(conn, queue, "event")
    assert ops.deliver(conn, queue, "c") == ["event"]


def test_the_search_path_of_a_producer_leads_nowhere(conn: Connection, queue: str) -> None:
    """insert_event has none of its own."""
    ops.register(conn, queue, "c")
    conn.execute("create schema evil; grant usage on schema evil to public")
    calls = {
        "textcat(text, text)": ("||", "text, text", "text"),
        "int8and(bigint, bigint)": ("&", "bigint, bigint", "bigint"),
        "int4mi(int, int)": ("-", "int, int", "int"),
        "texteq(text, text)": ("=", "text, text", "boolean"),
    }
    for number, (signature, (operator, arguments, result)) in enumerate(calls.items()):
        body = "begin raise exception 'called'; end"
        for name in (f"f{number}({arguments})", signature):
            definition = f"evil.{name} returns {result} language plpgsql as $${body}$$"
            conn.execute(f"create function {definition}".encode())
        left, right = arguments.split(",")
        conn.execute(
            f"create operator evil.{operator} (leftarg = {left}, rightarg = {right}, "
            f"function = evil.f{number})".encode()
        )
    for name in (
        "nextval(regclass)",
        "to_regclass(text)",
        "quote_ident(text)",
        "txid_current()",
        "pg_sequence_last_value(regclass)",
        "has_sequence_privilege(name, regclass, text)",
    ):
        conn.execute(
            f"create function evil.{name} returns bigint language plpgsql as $${body}$$".encode()
        )
    for name in ("regclass", "int8", "text"):
        conn.execute(f"create domain evil.{name} as pg_catalog.bool".encode())
    for restricted in (False, True):
        conn.execute("select pgq.restrict_queue(%s, %s)", [queue, restricted])
        conn.execute("set search_path = evil, pg_catalog")
        for _ in range(2):
            conn.execute("select pgq.insert_event(%s, 't', 'd')", [queue])
            conn.execute("select pgq.insert_event(%s, 't', 'd', '1', '2', '3', '4')", [queue])
            ops.tick(conn, queue)
        conn.execute("reset search_path")
        assert len(ops.drain(conn, queue, "c")) == 4


def test_inserts_go_on_whatever_the_guard(conn: Connection, connect: Connect, queue: str) -> None:
    """Every event that was committed arrives once, whatever changed meanwhile."""
    ops.register(conn, queue, "c")
    ops.rotate_whenever_asked(conn, queue)
    done = threading.Event()
    inserted: list[str] = []

    def produce(producer: Connection) -> None:
        while not done.is_set():
            data = f"{len(inserted)}"
            ops.insert(producer, queue, data)
            inserted.append(data)

    def guard(sleeper: Connection) -> None:
        while not done.is_set():
            sleeper.execute("select pgq._guard_queues()")

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(work, connect()) for work in (produce, guard)]
        rotations, seen = 0, []
        while rotations < 20:
            conn.execute("select pgq.ticker_awake()")
            seen += ops.deliver(conn, queue, "c")
            rotations += ops.rotate(conn, queue)
        done.set()
    assert [each.exception() for each in running] == [None, None]
    seen += ops.deliver(conn, queue, "c")
    assert seen == inserted
