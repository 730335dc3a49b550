"""The options of pgq.capture_table(), and what it refuses."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_capture import changes, last_event, raw_events, short
from tests.fixtures.fix_db import Connect, Connection

TABLE = "create table flight (id int primary key, carrier text, delay real, note json)"


def capture(conn: Connection, queue: str, options: str = "", table: str = "flight") -> None:
    conn.execute(f"select pgq.capture_table('{table}', %s{options and ', '}{options})", [queue])


@pytest.fixture(autouse=True)
def flight(conn: Connection) -> None:
    conn.execute(TABLE)


def test_only_the_wanted_operations_are_captured(conn: Connection, queue: str) -> None:
    for operations, seen in {
        "insert": "I",
        "UPDATE , delete": "UD",
        "{delete,truncate}": "DT",
        "truncate,insert,insert": "IT",
    }.items():
        capture(conn, queue, f"operations => '{operations}', replace => true")
        before = last_event(conn)
        conn.execute(
            "insert into flight values (1); update flight set delay = 1; delete from flight"
        )
        conn.execute("truncate flight")
        assert "".join(change.op[0] for change in changes(conn, before)) == seen


def test_columns_are_those_listed_and_the_key_or_all_but_some(conn: Connection, queue: str) -> None:
    capture(conn, queue, "columns => '{delay}'")
    conn.execute("insert into flight values (1, 'UA', 2)")
    capture(conn, queue, "exclude => '{note,id}', replace => true")
    conn.execute("insert into flight values (2, 'UA', 2)")
    rows = [change.row for change in changes(conn)]
    assert rows == [{"id": 1, "delay": 2}, {"carrier": "UA", "delay": 2}]


@pytest.mark.parametrize("rows", [1, 30])
def test_an_update_of_uncaptured_columns_alone_makes_no_event(
    conn: Connection, queue: str, rows: int
) -> None:
    capture(conn, queue, "exclude => '{note,delay}'")
    conn.execute("insert into flight select n, 'UA' from generate_series(1, %s) n", [rows])
    before = last_event(conn)
    conn.execute("update flight set note = '{}', delay = 5")
    assert short(conn, before) == []
    conn.execute("update flight set note = '1', carrier = 'AA' where id = 1")
    conn.execute("update flight set delay = delay")  # nothing changes: an event in PgQ, too
    assert short(conn, before) == [("U", 1)] + [("U", n) for n in (*range(2, rows + 1), 1)]
    conn.execute("update flight set id = 0 where id = 1")
    assert short(conn)[-2:] == [("D", 1), ("I", 0)]


@pytest.mark.parametrize("rows", [1, 3])
def test_old_rows_come_with_updates(conn: Connection, queue: str, rows: int) -> None:
    capture(conn, queue, "old_values => 'row'")
    conn.execute("insert into flight select n, 'UA', n from generate_series(1, %s) n", [rows])
    conn.execute("update flight set delay = 10 + id")
    conn.execute("update flight set id = 50 where id = 1")
    conn.execute("delete from flight where id = 50")
    updates = [c for c in changes(conn) if c.op == "UPDATE"]
    assert [(c.row["delay"], c.old and c.old["delay"]) for c in updates] == [
        (10 + n, n) for n in range(1, rows + 1)
    ]
    assert {c.old is None for c in changes(conn) if c.op != "UPDATE"} == {True}


@pytest.mark.parametrize("form", ["row_json", "jsontriga"])
@pytest.mark.parametrize("rows", [1, 3])
def test_old_values_that_changed_only(conn: Connection, queue: str, rows: int, form: str) -> None:
    capture(conn, queue, f"old_values => 'changed', format => '{form}'")
    conn.execute("insert into flight select n, 'UA' from generate_series(1, %s) n", [rows])
    conn.execute("""update flight set delay = 1, carrier = 'q"', note = '{"a":[1, 2]}'""")
    conn.execute("update flight set delay = delay")
    conn.execute("""update flight set note = '{"a":[1, 3]}'""")
    old_note: Any = {"a": [1, 2]} if form == "row_json" else '{"a":[1, 2]}'
    assert [c.old for c in changes(conn) if c.op == "UPDATE"] == [
        *[{"carrier": "UA", "delay": None, "note": None}] * rows,
        *[{}] * rows,
        *[{"note": old_note}] * rows,
    ]


@pytest.mark.parametrize("batched", [False, True], ids=["one row", "many rows"])
def test_a_condition_selects_rows(conn: Connection, queue: str, batched: bool) -> None:
    capture(conn, queue, "condition => $$delay > 10 -- late\n and carrier in ('UA', 'AA')$$")
    values = ["(1, 'UA', 5)", "(2, 'UA', 50)", "(3, 'DL', 50)", "(4, 'AA', 11)"]
    for value in [", ".join(values)] if batched else values:
        conn.execute(f"insert into flight values {value}")
    conn.execute("update flight set delay = delay + 6")
    conn.execute("delete from flight where id = 1")
    if not batched:
        conn.execute("delete from flight where id = 2")
    conn.execute("delete from flight")
    assert short(conn) == [
        *[("I", 2), ("I", 4)],
        *[("U", 1), ("U", 2), ("U", 4)],
        *[("D", 1), ("D", 2), ("D", 4)],
    ]


def test_a_condition_can_compare_new_and_old(conn: Connection, queue: str) -> None:
    capture(conn, queue, "condition => 'old.carrier is distinct from new.carrier'")
    conn.execute("insert into flight values (1, 'UA'), (2, null)")
    conn.execute("update flight set delay = 1")
    conn.execute("update flight set carrier = 'AA' where id = 1")
    conn.execute("update flight set carrier = 'AA'")
    conn.execute("delete from flight")
    assert sorted(short(conn)) == [("D", 1), ("D", 2), ("I", 1), ("U", 1), ("U", 2)]


def test_a_condition_may_use_other_tables(conn: Connection, queue: str) -> None:
    conn.execute("create table vip (carrier text primary key); insert into vip values ('UA')")
    exists = "exists (select from public.vip v where v.carrier = new.carrier)"
    capture(conn, queue, f"condition => '{exists}'")
    conn.execute("insert into flight values (1, 'UA'), (2, 'AA')")
    conn.execute("insert into flight values (3, 'UA')")
    assert short(conn) == [("I", 1), ("I", 3)]


def test_a_key_can_be_named(conn: Connection, queue: str) -> None:
    capture(conn, queue, "key => '{carrier,id}'")
    conn.execute("insert into flight values (1, 'UA'); update flight set carrier = 'AA'")
    assert [(c.op[0], c.key) for c in changes(conn)] == [(op, ("carrier", "id")) for op in "IDI"]


def test_a_table_without_a_key_needs_old_rows_or_inserts_only(conn: Connection, queue: str) -> None:
    conn.execute("create table log (line text)")
    with ops.refused("PQ021", match="no primary key") as error:
        capture(conn, queue, table="log")
    assert "old_values => 'row'" in str(error.value.diag.message_hint)
    capture(conn, queue, "operations => 'insert,truncate'", table="log")
    conn.execute("insert into log values ('a'), ('a')")
    capture(conn, queue, "old_values => 'row', replace => true", table="log")
    conn.execute("update log set line = line || 'b'")
    assert [(c.op[0], c.row["line"], c.old) for c in changes(conn)] == [
        ("I", "a", None),
        ("I", "a", None),
        ("U", "ab", {"line": "a"}),
        ("U", "ab", {"line": "a"}),
    ]


def test_the_limit_of_events_in_a_transaction_counts_events(conn: Connection, queue: str) -> None:
    conn.execute("update pgq.queue set queue_per_tx_limit = 10")
    capture(conn, queue, "condition => 'mod(id, 2) = 0'")
    with conn.transaction():
        conn.execute("insert into flight select generate_series(1, 20)")
    with conn.transaction(force_rollback=True):
        conn.execute("insert into flight select generate_series(101, 120)")
        with pytest.raises(psycopg.Error) as error:
            conn.execute("update flight set delay = 1 where id = 2")
    assert error.value.sqlstate == "PQ010"
    assert len(raw_events(conn)) == 10


def test_a_session_that_has_written_before_notices_the_queues_settings(
    connect: Connect, conn: Connection, queue: str
) -> None:
    capture(conn, queue)
    writer = connect()
    for n in range(7):
        writer.execute("insert into flight values (%s)", [n])
    for setting, sqlstate in (
        ("queue_disable_insert = true", "PQ006"),
        ("queue_per_tx_limit = 1", "PQ010"),
    ):
        conn.execute(f"update pgq.queue set {setting}")
        statements = ["insert into flight values (8), (9)", "update flight set delay = 1"]
        if "disable" in setting:
            statements.append("truncate flight")
        for statement in statements:
            with ops.refused(sqlstate):
                writer.execute(statement)
        writer.execute("update flight set delay = 1 where false")
        conn.execute("update pgq.queue set queue_disable_insert = false, queue_per_tx_limit = null")
        writer.execute("update flight set delay = 2 where id = 1")
    assert len(raw_events(conn)) == 9


WRONG_OPTIONS = [
    ("operations => 'insert,select'", "PQ011", "operations cannot be 'select'"),
    ("operations => ''", "PQ011", "operations cannot be NULL"),
    ("operations => null", "PQ011", "operations cannot be NULL"),
    ("format => 'xml'", "PQ011", "format cannot be 'xml'"),
    ("format => null", "PQ011", "format cannot be NULL"),
    ("old_values => 'all'", "PQ011", "old_values cannot be 'all'"),
    ("old_values => 'changed', format => 'logutriga'", "PQ011", "old_values cannot be"),
    ("key_changes => 'keep'", "PQ011", "key_changes cannot be 'keep'"),
    ("columns => '{id,nope}'", "PQ011", "no column nope"),
    ("exclude => '{}'", "PQ011", "no column is given"),
    ("key => array[null]", "PQ011", "no column NULL"),
    ("columns => '{id}', exclude => '{note}'", "PQ011", "cannot be given both"),
    ("condition => 'delay'", "42804", "must be type boolean"),
    ("condition => 'nope > 1'", "42703", "nope"),
    ("condition => ''", "42601", "syntax error"),
    ("condition => 'true) c on true; drop table flight; --'", "42601", "syntax error"),
    ("condition => 'tg_op = ''INSERT'''", "42703", "tg_op"),
]


def test_wrong_options_are_refused_and_change_nothing(
    conn: Connection, queue: str, subtests: pytest.Subtests
) -> None:
    for options, sqlstate, message in WRONG_OPTIONS:
        with subtests.test(options):
            with ops.refused(sqlstate, match=message):
                capture(conn, queue, options)
            assert conn.execute("select count(*) from pgq.capture_info()").fetchall() == [(0,)]
    conn.execute("insert into flight values (1)")


def test_what_is_no_ordinary_table_or_no_queue_is_refused(conn: Connection, queue: str) -> None:
    conn.execute("create view flight_view as select * from flight")
    for table, sqlstate in (
        ("nowhere", "42P01"),
        ("flight_view", "PQ024"),
        ("pgq.queue", "PQ024"),
        ("pg_catalog.pg_class", "PQ024"),
    ):
        with ops.refused(sqlstate):
            capture(conn, queue, table=table)
    with ops.refused("PQ001", match="'nowhere'"):
        capture(conn, "nowhere")


def test_writes_through_a_view_are_captured(conn: Connection, queue: str) -> None:
    capture(conn, queue)
    conn.execute("create view late as select * from flight where delay > 5 with check option")
    conn.execute("insert into late values (1, 'UA', 6); update late set delay = 7")
    assert short(conn) == [("I", 1), ("U", 1)]


def test_info_tells_the_options(conn: Connection, queue: str) -> None:
    capture(conn, queue, "exclude => '{note}', old_values => 'row', condition => 'id > 0'")
    row = conn.execute(
        "select table_name, queue_name, operations, exclude, key, old_values, condition, format,"
        " key_changes, trigger_function, enabled, partitions_missing"
        " from pgq.capture_info('flight')"
    ).fetchall()
    assert row == [
        (
            *("public.flight", queue, ["insert", "update", "delete", "truncate"], ["note"], ["id"]),
            *("row", "id > 0", "row_json", "split", "public.flight_test_queue", True, 0),
        )
    ]
