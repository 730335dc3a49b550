"""pgq.capture_table(): each change of a row is an event, whatever statement made it."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_capture import (
    changes,
    contents,
    follow,
    last_event,
    raw_events,
    short,
)
from tests.fixtures.fix_db import Connect, Connection

pytestmark = pytest.mark.smoke


@pytest.fixture
def flight(conn: Connection, queue: str) -> str:
    """A captured table."""
    conn.execute("create table flight (id int primary key, carrier text, delay real)")
    conn.execute("select pgq.capture_table('flight', %s)", [queue])
    return "flight"


def test_events_are_the_rows_as_json_with_type_and_table_as_jsontriga_has_them(
    conn: Connection, flight: str
) -> None:
    conn.execute("insert into flight values (1, 'UA', 1.5)")
    conn.execute("update flight set delay = null")
    conn.execute("delete from flight")
    conn.execute("truncate flight")
    head = '"table":["public","flight"],"pkey":["id"]}'
    row = '{"id":1,"carrier":"UA","delay":1.5}'
    row_now = '{"id":1,"carrier":"UA","delay":null}'
    assert raw_events(conn) == [
        ('{"op":"INSERT",' + head, row, "public.flight", None),
        ('{"op":"UPDATE",' + head, row_now, "public.flight", None),
        ('{"op":"DELETE",' + head, row_now, "public.flight", None),
        ('{"op":"TRUNCATE",' + head, "{}", "public.flight", None),
    ]


def test_event_ids_are_in_the_order_of_the_rows(conn: Connection, flight: str) -> None:
    conn.execute("insert into flight select n, 'AA', n from generate_series(1000, 1, -1) n")
    assert short(conn) == [("I", n) for n in range(1000, 0, -1)]
    before = last_event(conn)
    conn.execute("update flight set delay = 0 where id <= 500")
    assert short(conn, before) == [("U", n) for n in range(500, 0, -1)]


def test_a_statement_without_rows_makes_no_event(conn: Connection, flight: str) -> None:
    conn.execute("insert into flight select 1 where false")
    conn.execute("update flight set delay = 0")
    conn.execute("delete from flight")
    conn.execute("insert into flight values (1)")
    conn.execute("insert into flight values (1) on conflict do nothing")
    assert short(conn) == [("I", 1)]


def test_events_share_the_fate_of_the_change(conn: Connection, flight: str) -> None:
    with conn.transaction(force_rollback=True):
        conn.execute("insert into flight values (1)")
    with conn.transaction():
        conn.execute("insert into flight values (2)")
        with conn.transaction(force_rollback=True):
            conn.execute("insert into flight values (3)")
    assert short(conn) == [("I", 2)]


def test_copy_is_captured(conn: Connection, flight: str) -> None:
    with conn.cursor().copy("copy flight from stdin") as copy:
        for n in range(100):
            copy.write_row((n, "DL", None))
    assert short(conn) == [("I", n) for n in range(100)]


def test_on_conflict_do_update_is_an_insert_or_an_update(conn: Connection, flight: str) -> None:
    conn.execute("insert into flight values (1, 'UA'), (3, 'UA')")
    conn.execute(
        "insert into flight values (1, 'AA'), (2, 'AA'), (3, 'AA')"
        " on conflict (id) do update set carrier = excluded.carrier"
    )
    assert sorted(short(conn)[2:]) == [("I", 2), ("U", 1), ("U", 3)]
    assert follow(changes(conn)) == contents(conn, flight, "id")


def test_merge_is_captured_by_what_it_does_to_each_row(conn: Connection, flight: str) -> None:
    if conn.info.server_version < 150000:
        pytest.skip("MERGE came with PostgreSQL 15")
    conn.execute("insert into flight values (1, 'UA'), (2, 'UA'), (3, 'UA')")
    conn.execute(
        "merge into flight f using (values (1), (2), (4)) s (id) on f.id = s.id"
        " when matched and s.id = 1 then update set carrier = 'AA'"
        " when matched then delete"
        " when not matched then insert values (s.id, 'DL')"
    )
    assert sorted(short(conn)[3:]) == [("D", 2), ("I", 4), ("U", 1)]
    assert follow(changes(conn)) == contents(conn, flight, "id")


def test_a_key_that_one_statement_frees_and_takes_again_leaves_a_copy_right(
    conn: Connection, flight: str
) -> None:
    conn.execute("insert into flight values (1, 'UA'), (2, 'UA')")
    conn.execute(
        "with gone as (delete from flight where id = 1 returning id)"
        " insert into flight select id, 'cte' from gone"
    )
    assert follow(changes(conn)) == contents(conn, flight, "id")
    if conn.info.server_version < 150000:
        return
    for matched in ("delete", "update set id = 5, carrier = 'moved'"):
        conn.execute(
            "merge into flight f using (values (1, 1), (1, 2)) s (id, n)"
            f" on f.id = s.id and s.n = 1 when matched then {matched}"
            " when not matched then insert values (s.id, 'merge')"
        )
        assert follow(changes(conn)) == contents(conn, flight, "id")


def test_data_modifying_ctes_are_captured(conn: Connection, flight: str) -> None:
    conn.execute("insert into flight values (1), (2)")
    conn.execute(
        "with gone as (delete from flight where id = 1 returning *)"
        " insert into flight select id + 10 from gone"
    )
    assert sorted(short(conn)[2:]) == [("D", 1), ("I", 11)]


def test_rows_are_as_before_triggers_leave_them(conn: Connection, flight: str) -> None:
    conn.execute(
        "create function shout() returns trigger language plpgsql as"
        " $$begin new.carrier := upper(new.carrier); return new; end$$;"
        "create trigger shout before insert or update on flight"
        " for each row execute function shout()"
    )
    conn.execute("insert into flight values (1, 'ua')")
    conn.execute("update flight set carrier = 'dl'")
    assert [change.row["carrier"] for change in changes(conn)] == ["UA", "DL"]


def test_foreign_key_actions_are_captured(conn: Connection, queue: str, flight: str) -> None:
    conn.execute(
        "create table seat (id int primary key, flight int references flight on delete cascade);"
        "create table bag (id int primary key, flight int references flight on delete set null)"
    )
    conn.execute("select pgq.capture_table(t, %s) from unnest('{seat,bag}'::regclass[]) t", [queue])
    conn.execute("insert into flight values (1); insert into seat values (1, 1), (2, 1)")
    conn.execute("insert into bag values (7, 1)")
    before = last_event(conn)
    conn.execute("delete from flight")
    assert {(c.op, c.table[1], c.row["id"]) for c in changes(conn, before)} == {
        ("DELETE", "flight", 1),
        ("DELETE", "seat", 1),
        ("DELETE", "seat", 2),
        ("UPDATE", "bag", 7),
    }


def test_a_table_can_be_captured_into_two_queues(conn: Connection, flight: str) -> None:
    conn.execute("select pgq.create_queue('other')")
    conn.execute("select pgq.capture_table('flight', 'other', operations => 'delete')")
    conn.execute("insert into flight values (1)")
    conn.execute("delete from flight")
    tables = conn.execute("select queue_data_pfx from pgq.queue order by queue_name").fetchall()
    counts = [conn.execute(f"select count(*) from {table}").fetchall() for (table,) in tables]
    assert counts == [[(1,)], [(2,)]]


@pytest.mark.parametrize("role", ["local", "replica"])
def test_a_replication_role_silences_it(conn: Connection, flight: str, role: str) -> None:
    conn.execute(f"set session_replication_role = {role}")
    conn.execute("insert into flight values (1)")
    conn.execute("truncate flight")
    conn.execute("reset session_replication_role")
    conn.execute("insert into flight values (2)")
    assert short(conn) == [("I", 2)]


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_every_isolation_level_is_captured(
    connect: Connect, conn: Connection, flight: str, isolation: str
) -> None:
    other = connect()
    other.execute(f"set default_transaction_isolation = '{isolation}'")
    for _ in range(2):
        other.execute("insert into flight values (1), (2)")
        other.execute("update flight set delay = 1; update flight set id = id + 1 where id = 2")
        other.execute("delete from flight")
    expected = [("I", 1), ("I", 2), ("U", 1), ("U", 2), ("D", 2), ("I", 3), ("D", 1), ("D", 3)]
    assert short(conn) == expected * 2


def test_null_and_awkward_values_come_back_as_they_were(conn: Connection, queue: str) -> None:
    conn.execute(
        'create table odd (id int primary key, "a ""b" text, "new" text, old int, slot int,'
        " seq text, tg_op text, j jsonb, b bytea, n numeric, ts timestamptz, a int[])"
    )
    conn.execute("select pgq.capture_table('odd', %s)", [queue])
    row: tuple[Any, ...] = (
        *(1, "quote ' \" \\ \n\té\x01", None, 5, 6, "seq", "op", json.dumps({"k": [1]})),
        *(b"\x00\xff", "123456789012345678901234567890.5", "2024-02-29 12:00+01", [1, None]),
    )
    conn.execute(f"insert into odd values ({', '.join(['%s'] * len(row))})", row)
    conn.execute("update odd set slot = 7")
    conn.execute("update odd set slot = 6")
    [(exact,)] = conn.execute("select row_to_json(odd.*)::text from odd").fetchall()
    events = raw_events(conn)
    assert [events[0][1], events[2][1]] == [exact, exact]


# keys that change


def test_a_changed_key_is_a_delete_and_an_insert(conn: Connection, flight: str) -> None:
    conn.execute("insert into flight values (1, 'UA', 1)")
    conn.execute("update flight set id = 2, delay = 5")
    assert [(c.op, c.row["id"], c.row["delay"]) for c in changes(conn)[1:]] == [
        ("DELETE", 1, 1),
        ("INSERT", 2, 5),
    ]


def test_keys_may_move_into_each_others_place(conn: Connection, queue: str) -> None:
    conn.execute("create table chain (id int primary key deferrable, v text)")
    conn.execute("select pgq.capture_table('chain', %s)", [queue])
    conn.execute("insert into chain select n, n::text from generate_series(1, 50) n")
    conn.execute("update chain set id = id + 1")
    conn.execute("update chain set id = 62 - id where id > 10")
    conn.execute("update chain set id = -id, v = 'x' where id % 3 = 0")
    assert follow(changes(conn)) == contents(conn, "chain", "id")


@pytest.mark.parametrize(
    ("kind", "value", "equal"),
    [("numeric", "1.0", "1.00"), ("float8", "0", "-0"), ('text collate "caseless"', "a", "A")],
)
def test_a_key_that_is_only_equal_counts_as_changed(
    conn: Connection, queue: str, kind: str, value: str, equal: str
) -> None:
    if "collate" in kind:
        try:
            conn.execute(
                "create collation caseless"
                " (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
            )
        except psycopg.errors.FeatureNotSupported:
            pytest.skip("a server without ICU")
    conn.execute(f"create table price (amount {kind} primary key)")
    conn.execute("select pgq.capture_table('price', %s)", [queue])
    conn.execute("insert into price values (%s)", [value])
    conn.execute("update price set amount = %s", [equal])
    assert [change.op[0] for change in changes(conn)] == ["I", "D", "I"]
    first, deleted, inserted = (event[1] for event in raw_events(conn))
    assert first == deleted != inserted


@pytest.mark.parametrize("row", ["2, 1", "1, 2", "null, 1", "1, null"])
def test_each_column_of_a_key_counts(conn: Connection, queue: str, row: str) -> None:
    conn.execute("create table pair (a int, b bigint, n int)")
    conn.execute("select pgq.capture_table('pair', %s, key => '{a,b}')", [queue])
    conn.execute("insert into pair values (1, 1), (null, null)")
    before = last_event(conn)
    conn.execute("update pair set n = 1")
    conn.execute(f"update pair set (a, b) = row({row}) where a = 1")
    assert [change.op[0] for change in changes(conn, before)] == ["U", "U", "D", "I"]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("int[]", ["{1}", "{1,2}", "{}", "{9}"]),
        ("text", ["a", "b", "c", "d"]),
        ("uuid", [f"00000000-0000-0000-0000-00000000000{n}" for n in range(4)]),
    ],
)
def test_keys_of_any_type_are_compared(
    conn: Connection, queue: str, kind: str, values: list[str]
) -> None:
    conn.execute(f"create table keyed (n int, k {kind} primary key)")
    conn.execute("select pgq.capture_table('keyed', %s)", [queue])
    *values, another = values
    conn.cursor().executemany("insert into keyed values (0, %s)", [[v] for v in values])
    before = last_event(conn)
    conn.execute("update keyed set n = 1")
    conn.execute("update keyed set k = %s where k = %s", [another, values[0]])
    assert [change.op[0] for change in changes(conn, before)] == ["U", "U", "U", "D", "I"]


@pytest.mark.any_pg
@pytest.mark.slow
def test_more_rows_than_are_compared_quickly(conn: Connection, flight: str) -> None:
    conn.execute("set session_replication_role = local")
    conn.execute("insert into flight select n from generate_series(1, 200002) n")
    conn.execute("reset session_replication_role")
    conn.execute("update flight set carrier = 'UA', id = case id when 200002 then 0 else id end")
    counted = conn.execute(
        "select left(ev_type, 10), count(*), min(ev_id), max(ev_id) from pgq.event_template"
        " group by 1 order by 3"
    ).fetchall()
    assert [(kind, count) for kind, count, _, _ in counted] == [
        ('{"op":"DEL', 1),
        ('{"op":"UPD', 200001),
        ('{"op":"INS', 1),
    ]


def test_a_key_change_can_be_refused(conn: Connection, flight: str, queue: str) -> None:
    conn.execute(
        "select pgq.capture_table('flight', %s, key_changes => 'error', replace => true)", [queue]
    )
    conn.execute("insert into flight values (1), (2)")
    with ops.refused("PQ022", match="must not change"):
        conn.execute("update flight set id = id + 10")
    conn.execute("update flight set delay = 1")
    assert short(conn) == [("I", 1), ("I", 2), ("U", 1), ("U", 2)]
