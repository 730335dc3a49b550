"""A dump loaded into a cluster with lower transaction ids is detected, refused with the remedy in
the message, and repaired by one call.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from pgqpy.embedded import Server
from tests.fixtures import queue_ops as ops
from tests.fixtures.dumps import dump, restored_elsewhere, use_up_transaction_ids
from tests.fixtures.fix_db import Connect, Connection

pytestmark = pytest.mark.smoke

WRITES = {
    "insert_event": "select pgq.insert_event('q', 't', 'd')",
    "insert_events": "select pgq.insert_events('q', array['t'], array['d'])",
    "current_event_table": "select pgq.current_event_table('q')",
    "delayed": "select pgq.insert_event_at('q', now(), 't', 'd')",
    "once": "select pgq.insert_event_once('q', 'another', 't', 'd')",
    "copy": "insert into pgq.event_1_0 (ev_type) values ('t')",
    "ticker": "select pgq.ticker('q')",
    "all tickers": "select pgq.ticker()",
    "daemon": "select pgq.ticker_round()",
    "retry": "select pgq.maint_retry_events()",
    "create_queue": "select pgq.create_queue('another')",
}


def prepare_source(conn: Connection) -> None:
    """Consumers at several points, events before, in and behind their batches."""
    conn.execute("select pgq.create_queue('q')")
    ops.rotate_whenever_asked(conn, "q")
    assert ops.rotate(conn, "q")
    conn.execute("select pgq.insert_event_at('q', now(), 'test', 'was delayed')")
    assert ops.value(conn, "select pgq.maint_retry_events()") == 1
    conn.execute("select pgq.set_queue_config('q', 'key_window', '1 hour')")
    conn.execute("select pgq.insert_event_once('q', 'key', 'test', 'with a key')")
    ops.tick(conn, "q")
    for consumer in EXPECTED:
        ops.register(conn, "q", consumer)
    for number in range(3):
        ops.insert_ticked(conn, "q", f"ticked {number}")
    batch = ops.next_batch(conn, "q", "in a batch")
    ops.finish(conn, batch)
    ops.next_batch(conn, "q", "in a batch")
    batch = ops.next_batch(conn, "q", "behind")
    assert ops.value(conn, "select pgq.batch_retry(%s, -1)", batch) == 1
    ops.drain(conn, "q", "up to date")
    conn.execute("select pgq.insert_event_at('q', now(), 'test', 'is delayed')")
    ops.insert(conn, "q", "not ticked")


EXPECTED = {
    "behind": ["ticked 0", "ticked 1", "ticked 2", "not ticked"],
    "in a batch": ["ticked 1", "ticked 2", "not ticked"],
    "up to date": ["not ticked"],
}


@pytest.fixture
def restored(server: Server, mortal: Server) -> Iterator[Connection]:
    """A database that was dumped in the middle of its work, in a cluster with lower ids."""
    with psycopg.connect(mortal.dsn, autocommit=True) as conn:
        use_up_transaction_ids(conn)
        # A transaction that is open at all the ticks and commits before the dump.
        with psycopg.connect(mortal.dsn) as slow:
            slow.execute("select txid_current()")
            prepare_source(conn)
        dumped = dump(mortal, mortal.dsn)
    with restored_elsewhere(server, dumped) as conn:
        yield conn


@pytest.mark.slow
def test_a_restored_dump_is_refused_until_it_is_adopted_and_then_goes_on_where_it_was(
    restored: Connection,
) -> None:
    for query in WRITES.values():
        with ops.refused("PQ009") as refused:
            restored.execute(query.encode())
        assert "pgq.adopt_restored()" in (refused.value.diag.message_hint or ""), query
    ticks = ops.value(restored, "select max(tick_id) from pgq.tick")
    ids = ops.value(restored, "select max(ev_id) from pgq.event_template")
    assert ops.value(restored, "select pgq.adopt_restored()") == 1
    assert ops.insert(restored, "q", "new") > ids
    assert ops.tick(restored, "q") > ticks
    for consumer, expected in EXPECTED.items():
        assert ops.drain(restored, "q", consumer) == [*expected, "new"], consumer
    assert ops.value(restored, "select pgq.maint_retry_events()") == 2
    assert ops.deliver(restored, "q", "behind") == ["ticked 0", "is delayed"]
    for consumer in ("in a batch", "up to date"):
        assert ops.drain(restored, "q", consumer) == ["is delayed"]
    assert ops.value(restored, "select pgq.insert_event_once('q', 'key', 't', 'again')") < ids
    assert ops.value(restored, "select pgq.maint_retry_events()") == 0
    for number in range(6):
        ops.insert_ticked(restored, "q", f"afterwards {number}")
        for consumer in EXPECTED:
            assert ops.drain(restored, "q", consumer) == [f"afterwards {number}"]
        assert ops.rotate(restored, "q")
    assert ops.value(restored, "select pgq.create_queue('another')") == 1


def test_old_transactions_are_no_foreign_ones(conn: Connection, queue: str) -> None:
    """Even in a transaction that is older than the newest tick."""
    with conn.transaction():
        conn.execute("select txid_current()")
        with psycopg.connect(conn.info.dsn, autocommit=True) as other:
            for _ in range(3):
                ops.tick(other, queue)
        ops.insert(conn, queue, "old transaction")
        ops.copy(conn, ops.value(conn, "select pgq.current_event_table(%s)", queue), ["copied"])


def restore_elsewhere(conn: Connection, column: str = "identifier") -> None:
    """Set the values that a dump brings into a cluster with lower transaction ids."""
    conn.execute(f"update pgq.cluster set cluster_{column} = 1".encode())
    conn.execute("select setval('pgq.txid_high_seq', txid_current() + 1000000)")


def insert(connect: Connect) -> None:
    with connect() as session:
        ops.insert(session, "q", "event")


@pytest.mark.parametrize(
    ("tag", "column"), [(1, "identifier"), (4095, "identifier"), (2, "table"), (4095, "table")]
)
def test_no_tag_of_a_cluster_hides_that_a_dump_was_restored_in_another(
    conn: Connection, connect: Connect, tag: int, column: str
) -> None:
    """Its own tag stands in the dump, so another cluster takes one that is certainly not in it."""
    conn.execute(
        "insert into pgq.cluster select true, system_identifier, 'pgq.cluster'::regclass, %s"
        " from pg_control_system()",
        [tag],
    )
    with connect() as session:
        session.execute("select pgq.create_queue('q')")
    insert(connect)
    restore_elsewhere(conn, column)
    for what, query in WRITES.items():
        if what == "once":
            continue
        with connect() as session, ops.refused("PQ009"):
            session.execute(query.encode())
    with connect() as session:
        session.execute("select pgq.adopt_restored()")
        ops.register(session, "q", "c")
    insert(connect)
    assert ops.deliver(conn, "q", "c") == ["event", "event"]
    ops.tick(conn, "q")
    with connect() as session:
        state = ops.value(session, "select pg_sequence_last_value('pgq_slots.q')")
        assert state >> 19 & 4095 == tag % 4095 + 1
        assert not state & 2**18


def is_guarded(connect: Connect) -> bool:
    """Whether the queue is guarded, for sessions that come now."""
    with connect() as session:
        return bool(
            ops.value(
                session,
                "select (pg_sequence_last_value('pgq_slots.q') & 2147483647) - pgq._cluster_tag()"
                " not between 0 and 262143",
            )
        )


def test_higher_transaction_ids_need_no_adopting(conn: Connection, connect: Connect) -> None:
    """After pg_upgrade nothing has to be adopted, and soon nothing is looked at either."""
    conn.execute("select pgq.create_queue('q')")
    ops.register(conn, "q", "c")
    assert not is_guarded(connect)
    conn.execute("update pgq.cluster set cluster_identifier = 1")
    assert is_guarded(connect)
    insert(connect)
    for _ in range(2):
        assert is_guarded(connect)
        with connect() as session:
            session.execute("select pgq.force_tick('q'), pgq.ticker('q')")
    assert not is_guarded(connect)
    insert(connect)
    assert ops.deliver(conn, "q", "c") == ["event", "event"]


def test_a_rolled_back_tick_leaves_no_state_to_trust(conn: Connection, connect: Connect) -> None:
    """Values of sequences do not roll back."""
    conn.execute("select pgq.create_queue('q')")
    conn.execute("update pgq.cluster set cluster_identifier = 1")
    with connect() as session, session.transaction(force_rollback=True):
        ops.tick(session, "q")
        ops.tick(session, "q")
    assert is_guarded(connect)
