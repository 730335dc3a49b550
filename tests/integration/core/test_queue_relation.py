"""The relation of a queue, into which applications INSERT: pgq_queue.<queue>."""

from __future__ import annotations

import pytest
from psycopg import errors, sql

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import PATIENCE
from tests.fixtures.fix_db import AsRole, Connect, Connection, MakeRole

SETTINGS = [("queue_disable_insert = true", "PQ006"), ("queue_per_tx_limit = 2", "PQ010")]


def relation(queue: str) -> sql.Composable:
    return sql.Identifier("pgq_queue", queue)


@pytest.fixture
def writer(make_role: MakeRole, as_role: AsRole) -> Connection:
    """A role with no right but to insert."""
    return as_role(make_role("producer", "pgq_writer"))


@pytest.mark.any_pg
@pytest.mark.smoke
def test_rows_are_events(conn: Connection, writer: Connection, queue: str) -> None:
    ops.register(conn, queue, "c")
    into = sql.SQL("insert into {} (ev_type, ev_data, ev_extra1)").format(relation(queue))
    [(first,)] = writer.execute(into + sql.SQL("values ('t', 'one', 'x') returning ev_id"))
    writer.execute(into + sql.SQL("select 't', n::text, null from generate_series(2, 4) n"))
    with writer.pipeline():
        for n in (5, 6):
            writer.execute(into + sql.SQL("values ('t', %s, null)"), [str(n)], prepare=True)
    expected = ["one", "2", "3", "4", "5", "6"]
    rows = sql.SQL("select ev_id, ev_data, ev_extra1 from {} order by 1").format(relation(queue))
    stored = conn.execute(rows).fetchall()
    assert stored[0] == (first, "one", "x")
    assert [data for _, data, _ in stored] == expected
    assert ops.deliver(conn, queue, "c") == expected


@pytest.mark.any_pg
@pytest.mark.parametrize("name", ["q", 'o\'dd \\ "name" %s', "x" * 60])
def test_a_forgotten_type_is_an_error(conn: Connection, writer: Connection, name: str) -> None:
    """An event without one is possible, by the function or as an explicit NULL."""
    for _ in range(2):
        conn.execute("select pgq.create_queue(%s)", [name])
        into = ops.value(conn, "select pgq.queue_relation(%s)", name)
        for statement in (
            f"insert into {into} (ev_data) values ('x')",
            f"insert into {into} (ev_type, ev_data) values ('t', 'x'), (default, 'y')",
            f"insert into {into} (ev_data) select 'x' from generate_series(1, 3) returning ev_id",
            f"insert into {into} default values",
        ):
            with pytest.raises(errors.NotNullViolation) as caught:
                writer.execute(statement.encode())
            quoted = ops.value(conn, "select quote_literal(%s)", name)
            assert caught.value.diag.message_primary == f"an event for queue {quoted} has no type"
            assert "ev_type" in (caught.value.diag.message_hint or "")
        assert ops.value(conn, "select count(*) from pgq.event") == 0
        writer.execute("select pgq.insert_event(%s, null, 'by the function')", [name])
        writer.execute(f"insert into {into} (ev_type, ev_data) values (null, 'said')".encode())
        assert conn.execute(f"select distinct ev_type from {into}".encode()).fetchall() == [(None,)]
        conn.execute("select pgq.drop_queue(%s, true)", [name])


def test_while_the_queue_is_guarded_rows_are_the_same(
    conn: Connection, writer: Connection, queue: str
) -> None:
    """An INSERT counts and returns them. Maintenance removes what this needs."""
    ops.register(conn, queue, "c")
    conn.execute("select setval('pgq.ticker_sleep_seq', 2)")
    assert ops.value(conn, "select pgq._guard_queues()")
    cursor = writer.execute(
        sql.SQL(
            "insert into {} (ev_type, ev_data) values ('t', 'a'), ('t', 'b') returning ev_id"
        ).format(relation(queue))
    )
    ids = [ev_id for (ev_id,) in cursor]
    assert cursor.rowcount == 2
    conn.execute("listen pgq_wake")
    writer.execute(
        sql.SQL("insert into {} (ev_type, ev_data) values ('t', 'c')").format(relation(queue))
    )
    assert [n.channel for n in conn.notifies(timeout=PATIENCE, stop_after=1)] == ["pgq_wake"]
    stored = conn.execute(sql.SQL("select ev_id from {} order by 1").format(relation(queue)))
    assert [ev_id for (ev_id,) in stored][:2] == ids
    assert ops.value(conn, "select count(*) from pgq.event_template") == 3
    assert ("pgq.maint_guards", None) in conn.execute("select * from pgq.maint_operations()")
    conn.execute("select pgq.maint_guards()")
    assert ops.value(conn, "select count(*) from pgq.event") == 3
    assert ("pgq.maint_guards", None) not in conn.execute("select * from pgq.maint_operations()")
    assert ops.deliver(conn, queue, "c") == ["a", "b", "c"]


def test_maintenance_waits_for_no_transaction(
    conn: Connection, connect: Connect, queue: str
) -> None:
    assert ops.value(conn, "select pgq._guard_queues()")
    producer = connect(autocommit=False)
    ops.insert(producer, queue, "guarded")
    conn.execute("set lock_timeout = '1s'")
    assert ops.value(conn, "select pgq.maint_guards()") == 0
    producer.rollback()


@pytest.mark.parametrize(("setting", "sqlstate"), SETTINGS)
def test_settings_of_the_queue_hold(
    conn: Connection, writer: Connection, queue: str, setting: str, sqlstate: str
) -> None:
    insert = sql.SQL("insert into {} (ev_type) values ('1'), ('2'), ('3')").format(relation(queue))
    copy = "copy {} (ev_type) from stdin".format(
        ops.value(conn, "select pgq.current_event_table(%s)", queue)
    )
    writer.execute(insert)
    conn.execute(f"update pgq.queue set {setting}".encode())
    with ops.refused(sqlstate):
        writer.execute(insert)
    with ops.refused(sqlstate), writer.cursor().copy(copy.encode()) as rows:
        rows.write(b"4\n")
    with ops.refused(sqlstate):
        writer.execute("select pgq.current_event_table(%s)", [queue])
    assert ops.value(conn, "select count(*) from pgq.event_template") == 3


@pytest.mark.one_database
@pytest.mark.parametrize(
    "statement",
    [
        "insert into pgq_queue.q (ev_id, ev_data) values (1, 'x')",
        "insert into pgq_queue.q (ev_time, ev_data) values (now(), 'x')",
        "insert into pgq_queue.q (ev_txid, ev_data) values (1, 'x')",
        "insert into pgq_queue.q (ev_retry, ev_data) values (1, 'x')",
        "insert into pgq_queue.q (ev_data) values ('x') returning ev_data",
        "select ev_data from pgq_queue.q",
        "update pgq_queue.q set ev_data = 'x'",
        "delete from pgq_queue.q",
        "insert into pgq.event (ev_id, ev_slot) values (1, 0)",
        "insert into pgq.event (ev_data) values ('x')",
        "insert into pgq.event_1_0 (ev_id) values (1)",
        "insert into pgq.event_1_0 (ev_time) values (now())",
        "insert into pgq.event_1_0 (ev_data) values ('x')",
        "with x as (insert into pgq.event_1_0 (ev_data) values ('x')) select",
        "insert into pgq.event_guard_0 (ev_id, ev_slot) values (1, -1)",
        "select setval('pgq_ids.q', 1)",
        "select nextval('pgq_slots.q')",
        "alter view pgq_queue.q alter column ev_id drop default",
        "create rule x as on insert to pgq_queue.q do instead nothing",
        "create view pgq_queue.mine as select 1",
    ],
)
def test_a_producer_gives_the_content_alone(
    conn: Connection, writer: Connection, statement: str
) -> None:
    conn.execute("select pgq.create_queue('q')")
    with pytest.raises((errors.InsufficientPrivilege, errors.FeatureNotSupported)):
        writer.execute(statement.encode())


@pytest.mark.parametrize("column", ["ev_id", "ev_time", "ev_txid", "ev_retry", "ev_owner"])
def test_no_view_of_a_producer_sets_more(conn: Connection, writer: Connection, column: str) -> None:
    """PostgreSQL checks no right on columns that get the defaults of such a view."""
    conn.execute("select pgq.create_queue('q')")
    conn.execute("create schema own; grant all on schema own to test_producer")
    value = "now()" if column == "ev_time" else "5"
    for name in ("pgq_queue.q", "pgq.event_1_0", "pgq.queue_defaults_1", "pgq.event"):
        if column == "ev_owner" and name in ("pgq_queue.q", "pgq.queue_defaults_1"):
            continue
        for view, below in (("own.v", name), ("own.w", "own.v")):
            writer.execute(f"create view {view} as select * from {below}".encode())
            with pytest.raises((errors.InsufficientPrivilege, errors.FeatureNotSupported)):
                writer.execute(
                    f"alter view {view} alter {column} set default {value};"
                    f" insert into {view} (ev_type, ev_data) values ('t', 'd')".encode()
                )
        writer.execute("drop view own.v cascade")
    assert ops.value(conn, "select count(*) from pgq.event") == 0


def test_nor_does_one_of_another_role_or_one_that_the_snapshot_does_not_show(
    conn: Connection, connect: Connect, writer: Connection
) -> None:
    conn.execute("select pgq.create_queue('q')")
    conn.execute("create schema own; grant all on schema own to public")
    snapshot = connect(autocommit=False)
    snapshot.execute("set transaction isolation level repeatable read; set role test_producer")
    snapshot.execute("select 1")
    writer.execute("create view own.old as select * from pgq.event_1_0")
    writer.execute("create view own.new with (security_invoker) as select * from own.old")
    writer.execute("alter view own.new alter ev_id set default 5")
    conn.execute("alter view own.old owner to pgq_reader; alter view own.new owner to pgq_reader")
    conn.execute("alter view own.old set (security_invoker)")
    conn.execute("grant insert on own.old, own.new to public")
    for each in (writer, snapshot):
        with pytest.raises(errors.InsufficientPrivilege, match=r"INSERT into pgq\.event_1_0"):
            each.execute("insert into own.new (ev_data) values ('forged')")
    if conn.info.server_version >= 170000:
        with pytest.raises(errors.FeatureNotSupported):
            writer.execute(
                "merge into own.new using (values (1)) on false"
                " when not matched then insert (ev_data) values ('forged')"
            )
    # and the views of a role do not keep others from copying
    ops.copy(writer, "pgq.event_1_0", ["copied"])
    assert ops.value(conn, "select ev_data from pgq.event") == "copied"
    # Copies of events keep their ids, though.
    conn.execute("set role pgq_admin")
    conn.execute("insert into pgq.event_1_0 (ev_id, ev_time, ev_type) values (7, now(), 't')")


def test_a_view_of_anyone_does_not_keep_a_queue(conn: Connection, writer: Connection) -> None:
    conn.execute("select pgq.create_queue('q')")
    conn.execute("create schema own; grant all on schema own to test_producer")
    writer.execute("create view own.v as select ev_id from pgq_queue.q")
    conn.execute("select pgq.drop_queue('q', true)")


def test_rows_of_other_queues_stay_unseen_without_pruning(
    conn: Connection, connect: Connect
) -> None:
    """A function in the condition of a query must not see them before the view's condition."""
    conn.execute("select pgq.create_queue('q'), pgq.create_queue('other')")
    ops.insert(conn, "other", "secret")
    ops.insert(conn, "q", "open")
    reader = connect()
    reader.execute(
        "create function pg_temp.seen(text) returns bool language plpgsql cost 0.0001"
        " as $$ begin perform set_config('test.seen',"
        " concat(current_setting('test.seen', true), $1), false); return true; end $$"
    )
    reader.execute("set enable_partition_pruning = off; set role pgq_reader")
    reader.execute("select from pgq_queue.q where pg_temp.seen(ev_data)")
    assert ops.value(reader, "select current_setting('test.seen')") == "open"


@pytest.mark.one_database
@pytest.mark.parametrize("name", ["a.b", 'quote"', "x" * 59, "x" * 60, "ä" * 40, "event_1", " "])
def test_any_name_works_and_can_be_made_again(conn: Connection, name: str) -> None:
    for _ in range(2):
        conn.execute("select pgq.create_queue(%s)", [name])
        ops.register(conn, name, "c")
        found = ops.value(conn, "select pgq.queue_relation(%s)", name)
        assert found.startswith("pgq_queue.") == (len(name.encode()) < 60)
        conn.execute(f"insert into {found} (ev_type, ev_data) values ('t', '1')".encode())
        assert ops.deliver(conn, name, "c") == ["1"]
        conn.execute("select pgq.drop_queue(%s, true)", [name])
    assert (
        ops.value(
            conn, "select count(*) from pg_class where relnamespace = 'pgq_queue'::regnamespace"
        )
        == 0
    )
    with ops.refused("PQ001"):
        conn.execute("select pgq.queue_relation(%s)", [name])


def test_rotation_moves_a_prepared_insert_to_the_next_table(conn: Connection, queue: str) -> None:
    ops.register(conn, queue, "c")
    ops.rotate_whenever_asked(conn, queue)
    insert = sql.SQL("insert into {} (ev_type, ev_data) values ('t', %s)").format(relation(queue))
    for number in range(8):
        conn.execute(insert, [f"{number}"], prepare=True)
        assert ops.deliver(conn, queue, "c") == [f"{number}"]
        ops.rotate_idle(conn, queue, "c", 1)
    assert ops.rotations(conn, queue) == 8
