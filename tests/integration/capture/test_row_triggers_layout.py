"""The row triggers' cache of a table: right after any ALTER TABLE, and it blocks no session."""

from __future__ import annotations

import json
from typing import LiteralString

import psycopg
import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection

TRIGGER: LiteralString = (
    "create trigger t after insert or update or delete on item"
    " for each row execute function pgq.jsontriga('test_queue')"
)


ITEM = """
    -- With a numeric column, so that row_to_json alone is not what is wanted.
    create table item (price numeric, id int primary key, label text, amount int);
"""


@pytest.fixture
def item(conn: Connection, queue: str) -> None:
    create_item(conn)


def create_item(conn: Connection) -> None:
    conn.execute(ITEM + TRIGGER)
    conn.execute("insert into item values (null, 1, 'a', 2)")


@pytest.fixture
def small(conn: Connection, queue: str) -> None:
    conn.execute("create table item (id int primary key)")
    conn.execute(TRIGGER)


def last_event(conn: Connection) -> tuple[str, str]:
    row = conn.execute(
        "select ev_type, ev_data from pgq.event_template order by ev_id desc limit 1"
    ).fetchone()
    assert row is not None
    return row[0], row[1]


def layouts(conn: Connection) -> int:
    row = conn.execute("select count(*) from pgq.row_layout").fetchone()
    assert row is not None
    return int(row[0])


def layouts_made(conn: Connection) -> int:
    row = conn.execute("select last_value from pgq.row_layout_made").fetchone()
    assert row is not None
    return int(row[0])


# The columns after price and id.
ALTERATIONS: dict[LiteralString, str] = {
    "alter table item add column more text default 'm'": '"label":null,"amount":2,"more":"m"',
    "alter table item drop column amount": '"label":null',
    "alter table item rename column amount to n": '"label":null,"n":2',
    "alter table item rename column label to name": '"name":null,"amount":2',
    "alter table item alter column amount type numeric": '"label":null,"amount":"2"',
    # binary compatible, so the table is not rewritten
    "alter table item alter column amount type oid": '"label":null,"amount":"2"',
    "alter table item alter column label type varchar": '"label":null,"amount":2',
    "create domain d as int; alter table item alter column amount type d": (
        '"label":null,"amount":"2"'
    ),
}


def test_an_altered_table_is_noticed_by_the_next_row(
    conn: Connection, connect: Connect, queue: str, subtests: pytest.Subtests
) -> None:
    for alteration, row in ALTERATIONS.items():
        with subtests.test(alteration):
            conn.execute("drop table if exists item")
            create_item(conn)
            other = connect()
            other.execute("update item set label = null")
            for statement in alteration.split("; "):
                conn.execute(statement.encode())
            for session in (other, conn):
                session.execute("update item set id = id")
                assert last_event(conn)[1] == '{"price":null,"id":1,' + row + "}"


@pytest.mark.usefixtures("item")
def test_an_alteration_that_is_rolled_back_is_forgotten(conn: Connection) -> None:
    with conn.transaction(force_rollback=True):
        conn.execute("alter table item add column more int")
        conn.execute("update item set more = 3")
        assert last_event(conn)[1] == '{"price":null,"id":1,"label":"a","amount":2,"more":3}'
    conn.execute("update item set amount = 4")
    assert last_event(conn)[1] == '{"price":null,"id":1,"label":"a","amount":4}'


@pytest.mark.usefixtures("item")
def test_another_primary_key_is_noticed_by_the_next_row(conn: Connection, connect: Connect) -> None:
    other = connect()
    other.execute("update item set label = 'b'")
    conn.execute("alter table item drop constraint item_pkey")
    with ops.refused("PQ021"):
        other.execute("update item set label = 'c'")
    other.execute("insert into item values (5, 5, 'e', 5)")
    assert json.loads(last_event(conn)[0])["pkey"] == []
    conn.execute("alter table item add primary key (amount, id)")
    other.execute("update item set label = 'd'")
    assert json.loads(last_event(conn)[0])["pkey"] == ["amount", "id"]


@pytest.mark.usefixtures("item")
def test_other_arguments_are_noticed_by_the_next_row(conn: Connection) -> None:
    conn.execute(
        "create or replace trigger t after update on item"
        " for each row execute function pgq.jsontriga('test_queue', 'ignore=label')"
    )
    conn.execute("update item set amount = 3")
    assert last_event(conn)[1] == '{"price":null,"id":1,"amount":3}'


@pytest.mark.usefixtures("item")
def test_a_layout_is_made_once_for_all_sessions(conn: Connection, connect: Connect) -> None:
    made = layouts_made(conn)
    conn.execute("insert into item select n, n, 'x', n from generate_series(2, 1000) n")
    connect().execute("update item set amount = 0")
    conn.execute("delete from item")
    assert layouts_made(conn) == made


def test_one_statement_makes_one_layout(conn: Connection, queue: str) -> None:
    conn.execute("create table item (id int primary key)")
    conn.execute(TRIGGER.replace("_queue'", "_queue', 'when=id > 5', 'ev_type=id'").encode())
    conn.execute("insert into item select generate_series(1, 10)")
    assert layouts(conn) == 1


@pytest.mark.usefixtures("item")
def test_layouts_that_no_longer_fit_are_removed(conn: Connection) -> None:
    for n in range(5):
        conn.execute(f"alter table item add column c{n} int".encode())
        conn.execute("update item set id = id")
    assert layouts(conn) == 1
    conn.execute("drop table item")
    conn.execute("create table item (id int primary key)")
    conn.execute(TRIGGER)
    conn.execute("insert into item values (1)")
    assert layouts(conn) == 1


@pytest.mark.usefixtures("small")
def test_sessions_that_fire_a_new_trigger_at_once_do_not_wait_for_each_other(
    conn: Connection, connect: Connect
) -> None:
    first, second = connect(autocommit=False), connect(autocommit=False)
    first.execute("insert into item values (1)")
    second.execute("set local lock_timeout = '2s'")
    second.execute("insert into item values (2)")
    second.commit()
    first.commit()
    # One of the two is spare, and goes when the next is made.
    conn.execute("alter table item add column more int")
    conn.execute("insert into item values (3)")
    assert layouts(conn) == 1


@pytest.mark.usefixtures("item")
def test_sessions_that_notice_an_altered_table_at_once_do_not_wait_for_each_other(
    conn: Connection, connect: Connect
) -> None:
    conn.execute("alter table item add column more int")
    first, second = connect(autocommit=False), connect(autocommit=False)
    first.execute("insert into item values (2, 2)")
    second.execute("set local lock_timeout = '2s'")
    second.execute("insert into item values (3, 3)")
    second.commit()
    first.commit()
    assert last_event(conn)[1].endswith('"more":null}')


@pytest.mark.usefixtures("small")
def test_a_prepared_transaction_may_come_first(conn: Connection, connect: Connect) -> None:
    other = connect(autocommit=False)
    other.tpc_begin(other.xid(1, "row_triggers", ""))
    other.execute("insert into item values (1)")
    other.tpc_prepare()
    conn.execute("set lock_timeout = '2s'")
    conn.execute("insert into item values (2)")
    other.tpc_commit()
    assert layouts(conn) == 2


@pytest.mark.parametrize(
    ("level", "fired"),
    [("repeatable read", False), ("serializable", True)],
)
@pytest.mark.usefixtures("item")
def test_a_snapshot_older_than_the_table_is_refused(
    conn: Connection, connect: Connect, level: str, fired: bool
) -> None:
    """In such a transaction the catalog does not describe the layout of its rows."""
    other = connect(autocommit=False)
    other.execute(f"set transaction isolation level {level}".encode())
    other.execute("select 1 from pg_class limit 1")
    conn.execute("alter table item rename column amount to n")
    conn.execute("alter table item alter column n type oid")
    if fired:
        conn.execute("insert into item values (2, 2)")
    with pytest.raises(psycopg.errors.SerializationFailure) as caught:
        other.execute("insert into item values (3, 3, 'c', 3)")
    assert caught.value.diag.message_hint
    other.rollback()
    other.execute(f"set transaction isolation level {level}".encode())
    other.execute("insert into item values (3, 3, 'c', 3)")
    other.commit()
    assert last_event(conn)[1] == '{"price":"3","id":3,"label":"c","n":"3"}'


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_any_isolation_level_may_come_first(conn: Connection, connect: Connect, level: str) -> None:
    other = connect(autocommit=False)
    other.execute(f"set transaction isolation level {level}".encode())
    other.execute("insert into item select generate_series(1, 20)")
    other.commit()
    assert layouts(conn) == 1
    assert last_event(conn)[1] == '{"id":20}'


def test_a_table_with_domains_is_compared_column_by_column(conn: Connection, queue: str) -> None:
    """A row of it cannot be blanked: the domain's check would refuse it."""
    conn.execute("create domain positive as int not null check (value > 0)")
    conn.execute("create table item (id positive primary key, label text)")
    conn.execute(TRIGGER)
    conn.execute("insert into item values (1)")
    conn.execute("alter table item rename column label to name")
    conn.execute("update item set id = id")
    assert last_event(conn)[1] == '{"id":"1","name":null}'
    conn.execute("alter table item alter column id type int")
    conn.execute("update item set id = id")
    assert last_event(conn)[1] == '{"id":1,"name":null}'
