"""Captured tables that consist of several: partitions and inheritance."""

from __future__ import annotations

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_capture import changes, contents, follow, last_event, short
from tests.fixtures.fix_db import Connect, Connection


@pytest.fixture
def leg(conn: Connection, queue: str) -> str:
    """A captured table of partitions; those of month 3 have their columns in another order."""
    conn.execute(
        "create table leg (month int, id int, note text, primary key (id, month))"
        " partition by list (month);"
        "create table leg_1 partition of leg for values in (1);"
        "create table leg_2 partition of leg for values in (2);"
        "create table leg_3 (note text, gone int, id int not null, month int not null,"
        " primary key (id, month)) partition by range (id);"
        "alter table leg_3 drop column gone;"
        "alter table leg attach partition leg_3 for values in (3);"
        "create table leg_3a partition of leg_3 for values from (0) to (10)"
    )
    conn.execute("select pgq.capture_table('leg', %s)", [queue])
    return "leg"


def test_statements_that_name_the_table_are_captured_whatever_partition_they_reach(
    conn: Connection, leg: str
) -> None:
    conn.execute(
        "insert into leg select m, n, 'x' from generate_series(1, 3) m, generate_series(1, 2) n"
    )
    conn.execute("update leg set note = 'y' where id = 1")
    conn.execute("delete from leg where id = 2 and month > 1")
    assert [c.op[0] for c in changes(conn)] == ["I"] * 6 + ["U"] * 3 + ["D"] * 2
    assert {c.table for c in changes(conn)} == {("public", "leg")}
    assert follow(changes(conn)) == contents(conn, "leg", "id", "month")


@pytest.mark.parametrize(("partition", "month"), [("leg_1", 1), ("leg_3", 3), ("leg_3a", 3)])
def test_statements_that_name_a_partition_are_captured_as_the_tables(
    conn: Connection, leg: str, partition: str, month: int
) -> None:
    conn.execute(f"insert into {partition} (id, month) values (1, {month}), (2, {month})")
    conn.execute(f"update {partition} set note = 'y'")
    conn.execute(f"update {partition} set id = 5 where id = 1")
    conn.execute(f"delete from {partition} where id = 2")
    assert [c.op[0] for c in changes(conn)] == ["I", "I", "U", "U", "D", "I", "D"]
    assert {(c.table, c.key) for c in changes(conn)} == {(("public", "leg"), ("id", "month"))}
    assert follow(changes(conn)) == contents(conn, "leg", "id", "month")


def test_a_moved_row_is_a_delete_and_an_insert(conn: Connection, leg: str) -> None:
    conn.execute("insert into leg select 1, n from generate_series(1, 5) n")
    before = last_event(conn)
    conn.execute("update leg set month = case when id % 2 = 0 then 2 else month end, note = 'm'")
    assert sorted(c.op[0] for c in changes(conn, before)) == list("DDIIUUU")
    assert follow(changes(conn)) == contents(conn, "leg", "id", "month")


def test_a_moved_row_that_a_trigger_stops_is_deleted(conn: Connection, leg: str) -> None:
    conn.execute(
        "create function stop() returns trigger language plpgsql as $$begin return null; end$$;"
        "create trigger stop before insert on leg_2 for each row execute function stop();"
        "insert into leg select 1, n from generate_series(1, 4) n"
    )
    conn.execute("update leg set month = 2 where id = 4")
    assert follow(changes(conn)) == contents(conn, "leg", "id", "month")
    conn.execute("update leg set month = case id when 2 then 2 else month end, note = 'm'")
    assert follow(changes(conn)) == contents(conn, "leg", "id", "month")


def test_without_a_key_a_stopped_row_mixes_up_no_others(conn: Connection, queue: str) -> None:
    conn.execute(
        "create table bag (n int, part int) partition by list (part);"
        "create table bag_0 partition of bag for values in (0);"
        "create table bag_1 partition of bag for values in (1);"
        "create function stop() returns trigger language plpgsql as $$begin return null; end$$;"
        "create trigger stop before insert on bag_1 for each row execute function stop();"
        "insert into bag select n, 0 from generate_series(1, 4) n"
    )
    conn.execute("select pgq.capture_table('bag', %s, old_values => 'row')", [queue])
    conn.execute("update bag set part = case n when 2 then 1 else 0 end, n = n + 10")
    seen = changes(conn)
    gone = [(c.old or c.row)["n"] for c in seen if c.op != "INSERT"]
    come = [c.row["n"] for c in seen if c.op != "DELETE"]
    assert (sorted(gone), sorted(come)) == ([1, 2, 3, 4], [11, 13, 14])
    for change in seen:
        assert change.old is None or change.row["n"] == change.old["n"] + 10


def test_a_key_of_the_root_is_known_to_writers_of_partitions(
    connect: Connect, conn: Connection, leg: str
) -> None:
    writer = connect()
    writer.execute("insert into leg_1 values (1, 1)")
    conn.execute("alter table leg rename id to number")
    conn.execute("alter table leg rename to hop")
    writer.execute("insert into leg_1 values (1, 2)")
    writer.execute("update leg_1 set number = 3 where number = 2")
    assert [(c.table[1], c.key) for c in changes(conn)] == [
        ("leg", ("id", "month")),
        *[("hop", ("number", "month"))] * 3,
    ]


def test_a_new_partition_is_captured_at_once_through_the_table(conn: Connection, leg: str) -> None:
    conn.execute("create table leg_4 partition of leg for values in (4)")
    conn.execute("insert into leg values (4, 1)")
    assert short(conn) == [("I", 4)]


def test_direct_writes_count_once_a_partition_is_added(conn: Connection, leg: str) -> None:
    conn.execute("create table leg_4 partition of leg for values in (4)")
    conn.execute("create table leg_3b partition of leg_3 for values from (10) to (20)")
    assert conn.execute("select partitions_missing from pgq.capture_info()").fetchall() == [(2,)]
    assert conn.execute("select pgq.capture_new_partitions('leg')").fetchall() == [(2,)]
    assert conn.execute("select pgq.capture_new_partitions()").fetchall() == [(0,)]
    assert conn.execute("select partitions_missing from pgq.capture_info()").fetchall() == [(0,)]
    conn.execute("insert into leg_4 values (4, 1)")
    conn.execute("insert into leg_3b (id, month) values (11, 3)")
    conn.execute("insert into leg values (4, 2), (3, 12)")
    assert follow(changes(conn)) == contents(conn, "leg", "id", "month")


def test_maintenance_adds_new_partitions(conn: Connection, leg: str) -> None:
    conn.execute("create table leg_4 partition of leg for values in (4)")
    for name, argument in conn.execute("select * from pgq.maint_operations()").fetchall():
        if "capture" in name:
            conn.execute(f"select {name}({'' if argument is None else argument})")
    assert conn.execute("select partitions_missing from pgq.capture_info()").fetchall() == [(0,)]


def test_a_detached_partition_is_a_table_of_its_own(conn: Connection, leg: str) -> None:
    conn.execute("alter table leg detach partition leg_1")
    conn.execute("insert into leg_1 values (1, 1); update leg_1 set note = 'x'; delete from leg_1")
    conn.execute("truncate leg_1")
    assert changes(conn) == []
    conn.execute("select pgq.release_table('leg')")
    assert conn.execute(
        "select count(*) from pg_trigger where tgrelid = 'leg_1'::regclass and not tgisinternal"
    ).fetchall() == [(0,)]


def test_truncate_is_an_event_of_each_partition(conn: Connection, leg: str) -> None:
    conn.execute("truncate leg_1")
    assert [(c.op, c.table[1]) for c in changes(conn)] == [("TRUNCATE", "leg_1")]
    before = last_event(conn)
    conn.execute("truncate leg")
    seen = [(c.op, c.table[1]) for c in changes(conn, before)]
    assert seen[0] == ("TRUNCATE", "leg")
    assert sorted(seen[1:]) == [
        ("TRUNCATE", name) for name in ("leg_1", "leg_2", "leg_3", "leg_3a")
    ]


def test_a_partition_alone_cannot_be_captured(conn: Connection, leg: str, queue: str) -> None:
    with ops.refused("PQ024", match="is a partition") as error:
        conn.execute("select pgq.capture_table('leg_3a', %s)", [queue])
    assert error.value.diag.message_hint == "Capture the table it belongs to: public.leg."


def test_rows_of_heirs_are_captured_through_the_parent(conn: Connection, queue: str) -> None:
    conn.execute(
        "create table base (id int primary key, v text); create table heir (x int) inherits (base)"
    )
    conn.execute("select pgq.capture_table('base', %s)", [queue])
    conn.execute("insert into heir values (1, 'a', 5)")
    conn.execute("update base set v = 'b'")
    assert [(c.op, c.table[1], c.row) for c in changes(conn)] == [
        ("UPDATE", "base", {"id": 1, "v": "b"})
    ]
    conn.execute("select pgq.capture_table('heir', %s, key => '{id}')", [queue])
    conn.execute("update heir set v = 'c'")
    conn.execute("update base set v = 'd'")
    assert [(c.table[1], c.row["v"]) for c in changes(conn)[1:]] == [("heir", "c"), ("base", "d")]
