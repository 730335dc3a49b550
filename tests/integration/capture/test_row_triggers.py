"""What sqltriga, logutriga and jsontriga promise beyond the events of PgQ's own, byte for byte, to
which tests/acceptance/reference compares theirs: their use, and what they refuse."""

from __future__ import annotations

import re
from typing import Any, LiteralString
from urllib.parse import parse_qs

import pytest
from psycopg import sql

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection

KINDS = ["sqltriga", "logutriga", "jsontriga"]


def create_trigger(
    conn: Connection,
    kind: str,
    *arguments: str,
    table: str = "item",
    timing: LiteralString = "after insert or update or delete",
    level: LiteralString = "row",
) -> None:
    conn.execute(
        sql.SQL(
            "create or replace trigger t {} on {} for each {} execute function pgq.{}({})"
        ).format(
            sql.SQL(timing),
            sql.Identifier(table),
            sql.SQL(level),
            sql.Identifier(kind),
            sql.SQL(", ").join(map(sql.Literal, arguments)),
        )
    )


def events(conn: Connection) -> list[tuple[Any, ...]]:
    """All events so far: type, data, extra1, extra2."""
    return conn.execute(
        "select ev_type, ev_data, ev_extra1, ev_extra2 from pgq.event_template order by ev_id"
    ).fetchall()


@pytest.fixture
def item(conn: Connection) -> None:
    conn.execute(
        "create table item"
        " (id int primary key, label text, price numeric, sold boolean, at timestamptz)"
    )
    conn.execute("set timezone = 'UTC'")


def on_truncate(conn: Connection, kind: str, *arguments: str) -> None:
    statement = "create trigger r before truncate on item execute function pgq.{}({})"
    conn.execute(
        sql.SQL(statement).format(
            sql.Identifier(kind), sql.SQL(", ").join(map(sql.Literal, arguments))
        )
    )


@pytest.mark.usefixtures("item")
def test_statements_of_sqltriga_rebuild_the_table(conn: Connection, queue: str) -> None:
    conn.execute("create table copy (like item including all)")
    create_trigger(conn, "sqltriga", queue)
    conn.execute(
        "insert into item select n, chr(n) || '\\', n / 7.0, n % 2 = 0, now()"
        " from generate_series(1, 200) n"
    )
    conn.execute("update item set label = label || '''', price = null where id % 3 = 0")
    conn.execute("delete from item where id % 5 = 0")
    before = {"I": "insert into copy ", "U": "update copy set ", "D": "delete from copy where "}
    for type_, data, _, _ in events(conn):
        conn.execute((before[type_] + data).encode())
    row = conn.execute(
        "select count(*) from item full join copy on item = copy where item is null or copy is null"
    ).fetchone()
    assert row == (0,)


def test_urlencoding_is_reversible_for_every_character(conn: Connection, queue: str) -> None:
    conn.execute("create table item (id int primary key, label text)")
    create_trigger(conn, "logutriga", queue)
    # Few different characters and many go different ways; so do short and long texts.
    labels = [chr(n) for n in range(1, 0x180)]
    labels += ["".join(map(chr, range(1, 128))), "日本語" * 100, "".join(map(chr, range(1, 0x800)))]
    for number, label in enumerate(labels):
        conn.execute("insert into item values (%s, %s)", [number, label])
    assert not any("%20" in data for _, data, _, _ in events(conn)), "a space becomes a plus"
    decoded = [
        parse_qs(data, keep_blank_values=True, strict_parsing=True)["label"][0]
        for _, data, _, _ in events(conn)
    ]
    assert decoded == labels


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("item")
def test_skip_never_writes_the_row(conn: Connection, queue: str, kind: str) -> None:
    """Whether the change makes an event or not."""
    conn.execute("insert into item values (1, 'a')")
    total = 0
    for others, queued in (([], 2), (["backup"], 2), (["when=id < 0"], 0), (["ignore=label"], 1)):
        timing: LiteralString = "before insert or update or delete"
        create_trigger(conn, kind, queue, "SKIP", *others, timing=timing)
        conn.execute("insert into item values (2, 'b')")
        conn.execute("update item set label = 'c'")
        assert conn.execute("select id, label from item").fetchall() == [(1, "a")]
        total += queued
        assert len(events(conn)) == total, others


WRONG_ARGUMENTS: list[tuple[list[str], str]] = [
    (["bogus"], "bogus"),
    ([""], "''"),
    (["skip"], "skip"),
    (["when"], "when"),
    (["ev_extra5=id"], "ev_extra5"),
    (["SKIP"], "AFTER"),
    (["when=label"], "neither true nor false"),
    (["when=null::boolean"], "neither true nor false"),
    (["ev_type=$1"], "parameter"),
]


@pytest.mark.usefixtures("item")
def test_wrong_arguments_are_refused_by_name(conn: Connection, queue: str) -> None:
    for arguments, named in WRONG_ARGUMENTS:
        create_trigger(conn, "jsontriga", queue, *arguments)
        with ops.refused("PQ020", match=re.escape(named)):
            conn.execute("insert into item values (1, 'true')")
    create_trigger(conn, "jsontriga", "nowhere")
    with ops.refused("PQ001", match="nowhere"):
        conn.execute("insert into item values (1)")
    create_trigger(conn, "jsontriga")
    with ops.refused("PQ020"):
        conn.execute("insert into item values (1)")
    conn.execute("drop trigger t on item")
    create_trigger(conn, "jsontriga", queue, level="statement")
    with ops.refused("PQ020"):
        conn.execute("insert into item values (1)")
    assert events(conn) == []


@pytest.mark.usefixtures("item")
def test_arguments_without_sense_for_truncate_are_refused(conn: Connection, queue: str) -> None:
    for argument in ("backup", "pkey=id", "ignore=id", "when=true", "SKIP"):
        timing: LiteralString = "after truncate"
        create_trigger(conn, "logutriga", queue, argument, timing=timing, level="statement")
        with ops.refused("PQ020"):
            conn.execute("truncate item")


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_a_key_cannot_be_changed(conn: Connection, queue: str, kind: str) -> None:
    conn.execute("create table item (id int, label text)")
    create_trigger(conn, kind, queue)
    conn.execute("insert into item values (1, 'a')")
    for statement in ("update item set label = 'b'", "delete from item"):
        with ops.refused("PQ021", match=r"item(.|\n)*pkey="):
            conn.execute(statement)
    create_trigger(conn, kind, queue, "pkey=id")
    conn.execute("update item set label = 'b'")
    conn.execute("delete from item")
    assert len(events(conn)) == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("item")
def test_a_key_cannot_be_changed(conn: Connection, queue: str, kind: str) -> None:
    create_trigger(conn, kind, queue)
    conn.execute("insert into item values (1, 'a')")
    with ops.refused("PQ022"):
        conn.execute("update item set id = 2")
    assert conn.execute("select id from item").fetchone() == (1,)
    assert len(events(conn)) == 1


def test_sqltriga_refuses_a_key_that_is_null(conn: Connection, queue: str) -> None:
    conn.execute("create table item (id int, label text)")
    create_trigger(conn, "sqltriga", queue, "pkey=label")
    conn.execute("insert into item values (1, null)")
    with ops.refused("PQ021"):
        conn.execute("delete from item")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("item")
def test_deny_refuses_every_change(conn: Connection, queue: str, kind: str) -> None:
    conn.execute("insert into item values (1)")
    create_trigger(conn, kind, queue, "deny")
    on_truncate(conn, kind, queue, "deny")
    for statement in (
        "insert into item values (2)",
        "update item set label = 'b'",
        "delete from item",
    ):
        with ops.refused("PQ023", match=queue):
            conn.execute(statement)
    with ops.refused("PQ023"):
        conn.execute("truncate item")
    assert events(conn) == []


def test_an_unknown_magic_column_is_refused(conn: Connection, queue: str) -> None:
    conn.execute("create table item (id int primary key, _pgq_ev_nonsense text)")
    create_trigger(conn, "jsontriga", queue)
    with ops.refused("PQ020", match="_pgq_ev_nonsense"):
        conn.execute("insert into item values (1)")


@pytest.mark.usefixtures("item")
def test_expressions_may_quote_the_names_of_columns(conn: Connection, queue: str) -> None:
    conn.execute('alter table item add column "Odd name" text')
    create_trigger(conn, "jsontriga", queue, 'ev_data="Odd name" || id')
    conn.execute("insert into item (id, \"Odd name\") values (1, 'x')")
    assert events(conn)[0][1] == "x1"


def test_a_change_by_a_later_trigger_follows_the_change_that_fired_it(
    conn: Connection, queue: str
) -> None:
    """Triggers of statements cannot keep this order, which docs/capture.md says."""
    conn.execute("create table item (id int primary key, price int)")
    conn.execute(
        "create function double() returns trigger language plpgsql as $$ begin"
        " update item set price = 2 * price where id = new.id; return null; end $$"
    )
    conn.execute("create trigger u after insert on item for each row execute function double()")
    create_trigger(conn, "jsontriga", queue)
    conn.execute("insert into item values (1, 5)")
    rows = conn.execute("select ev_data::json ->> 'price' from pgq.event_template order by ev_id")
    assert rows.fetchall() == [("5",), ("10",)]
