"""table_loader: changes of captured tables in tables of another database, in three ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pgqpy
from pgqpy import Producer
from pgqpy_consumers.apply import ApplyError, BadEvent, Change
from pgqpy_consumers.settings import ConfigError, build
from pgqpy_consumers.table_loader import BadRow, TableLoader
from tests.fixtures.fix_client import Tick
from tests.fixtures.fix_db import Connection

TABLE = """
create table item (
    id      int primary key,
    name    varchar(10),
    price   numeric,
    tags    text[],
    notes   jsonb,
    made    timestamptz,
    raw     bytea
)
"""
CHANGES = """
insert into item values
    (1, 'one', 1.50, '{a,"b,c",NULL}', '{"n": 1.10, "t": [null, "x"]}', '2026-11-21 10:00+02',
     '\\x00ff'),
    (2, 'two', 'NaN', '{}', '"text"', 'infinity', ''),
    (3, null, null, null, null, null, null),
    (4, 'gone', 4, null, 'null', null, null);
update item set price = price + 1, name = 'ONE' where id = 1;
update item set notes = '[1, 2]' where id = 3;
delete from item where id = 4;
update item set id = 20 where id = 2;
insert into item values (4, 'again', 5);
"""
ROWS = "select id, name, price::text, tags, notes::text, made::text, raw from item order by id"

Load = Callable[..., TableLoader]


@pytest.fixture
def load(dsn: str, target_dsn: str, queue: str) -> Load:
    """Run the loader until there are no more changes."""

    def run(kind: type[TableLoader] = TableLoader, /, **settings: Any) -> TableLoader:
        config = {"dsn": dsn, "queue": queue, "target_dsn": target_dsn} | settings
        loader = kind.from_config(build(kind.Config, config))
        loader.run(until_empty=True)
        return loader

    return run


@pytest.fixture
def item(conn: Connection, target: Connection, queue: str, load: Load) -> None:
    """A captured table, empty on both sides, and the loader registered."""
    conn.execute(TABLE)
    target.execute(TABLE)
    conn.execute("select pgq.capture_table('item', %s)", [queue])
    load()


def rows(conn: Connection) -> list[tuple[Any, ...]]:
    return conn.execute(ROWS).fetchall()


CAPTURES = {
    "row_json": "select pgq.capture_table('item', 'test_queue')",
    "jsontriga": "create trigger t after insert or update or delete on item"
    " for each row execute function pgq.jsontriga('test_queue')",
    "logutriga": "create trigger t after insert or update or delete on item"
    " for each row execute function pgq.logutriga('test_queue')",
}


@pytest.mark.smoke
@pytest.mark.parametrize("mode", ["latest", "plain"])
@pytest.mark.parametrize("capture", CAPTURES)
def test_the_target_has_what_the_source_has(
    conn: Connection,
    target: Connection,
    queue: str,
    tick: Tick,
    load: Load,
    mode: str,
    capture: str,
) -> None:
    conn.execute(TABLE)
    target.execute(TABLE)
    conn.execute(CAPTURES[capture].encode())
    load(mode=mode)
    changes = CHANGES if capture == "row_json" else CHANGES.replace("update item set id = 20", "--")
    conn.execute(changes.encode())
    tick()
    load(mode=mode)
    expected = rows(conn)
    assert len(expected) == 4
    assert rows(target) == expected

    conn.execute("update item set raw = null, name = 'x'; delete from item where id = 3")
    tick()
    load(mode=mode)
    assert rows(target) == rows(conn) != expected


@pytest.mark.usefixtures("item")
def test_latest_makes_one_change_of_many_and_plain_makes_each(
    conn: Connection, target: Connection, tick: Tick, load: Load
) -> None:
    target.execute("create table seen (name text)")
    target.execute(
        "create function see() returns trigger language plpgsql as"
        " $$ begin insert into seen values (new.name); return new; end $$;"
        "create trigger see before insert or update on item"
        " for each row execute function see()"
    )

    def names(mode: str) -> list[str]:
        for name in ("a", "b", "c"):
            conn.execute(
                "insert into item values (1, %s) on conflict (id) do update set name = %s",
                [name, name],
            )
        tick()
        load(mode=mode)
        return [name for (name,) in target.execute("delete from seen returning name")]

    assert set(names("latest")) == {"c"}
    assert set(names("plain")) == {"a", "b", "c"}


@pytest.mark.usefixtures("item")
def test_a_truncate_is_made_and_what_came_after_stays(
    conn: Connection, target: Connection, tick: Tick, load: Load
) -> None:
    conn.execute("insert into item select n from generate_series(1, 5) n")
    tick()
    load()
    assert len(rows(target)) == 5
    conn.execute("insert into item values (6); truncate item; insert into item values (7)")
    tick()
    load()
    assert [row[0] for row in rows(target)] == [7]


def test_history_has_a_row_for_each_change(
    conn: Connection, target: Connection, queue: str, tick: Tick, load: Load
) -> None:
    conn.execute(TABLE)
    conn.execute("select pgq.capture_table('item', %s)", [queue])
    target.execute(
        "create table item (id int, name text, price numeric, tags text[], notes jsonb,"
        " made timestamptz, raw bytea, what text, at timestamptz, nr bigint, tx bigint)"
    )
    extra = {"what": "operation", "at": "event_time", "nr": "event_id", "tx": "txid"}
    load(mode="history", history_columns=extra)
    conn.execute("insert into item values (1, 'a', 1, '{x}', '{\"a\": [1]}')")
    conn.execute("update item set name = 'b'; truncate item; insert into item values (2)")
    conn.execute("delete from item")
    tick()
    load(mode="history", history_columns=extra)
    found = target.execute(
        "select what, id, name, tags, notes::text from item order by nr"
    ).fetchall()
    assert found == [
        ("INSERT", 1, "a", ["x"], '{"a": [1]}'),
        ("UPDATE", 1, "b", ["x"], '{"a": [1]}'),
        ("INSERT", 2, None, None, None),
        ("DELETE", 2, None, None, None),
    ]
    events = "select ev_id, ev_txid, ev_time from pgq.event where ev_type not like '%TRUNC%'"
    assert sorted(target.execute("select nr, tx, at from item")) == sorted(conn.execute(events))

    # Without a column that tells them apart deletions are not rows.
    target.execute("alter table item drop what, drop at, drop nr, drop tx; truncate item")
    conn.execute("insert into item values (3); delete from item")
    tick()
    load(mode="history")
    assert target.execute("select id from item").fetchall() == [(3,)]


PARTITIONED = """
create table visit (
    id int, at {type}, note text, primary key (id, at)
) {by}
"""


@pytest.mark.parametrize(
    ("mode", "kind", "every", "expected"),
    [
        ("latest", "timestamptz", "day", ["visit_2026_01_31", "visit_2026_02_01"]),
        ("plain", "timestamptz", "hour", ["visit_2026_01_31_23", "visit_2026_02_01_00"]),
        ("history", "timestamp", "month", ["visit_2026_01", "visit_2026_02"]),
        ("latest", "date", "year", ["visit_2026"]),
    ],
)
def test_partitions_are_made_when_rows_need_them(
    conn: Connection,
    target: Connection,
    target_dsn: str,
    queue: str,
    tick: Tick,
    load: Load,
    kind: str,
    every: str,
    expected: list[str],
    mode: str,
) -> None:
    conn.execute(PARTITIONED.format(type=kind, by="").encode())
    # Names and bounds are those of UTC, wherever the session thinks it is.
    target.execute(PARTITIONED.format(type=kind, by="partition by range (at)").encode())
    if mode == "history":
        target.execute("alter table visit drop constraint visit_pkey")
    target.execute(f"alter database {target.info.dbname} set timezone = 'Asia/Tokyo'".encode())
    conn.execute("select pgq.capture_table('visit', %s)", [queue])
    load(mode=mode, partitions=every)
    conn.execute("set timezone = 'UTC'")
    conn.execute("insert into visit values (1, '2026-01-31 23:59:59.9'), (2, '2026-02-01')")
    tick()
    load(mode=mode, partitions=every)
    conn.execute("insert into visit values (3, '2026-02-01 00:10')")
    conn.execute("update visit set note = 'x' where id = 1")
    tick()
    load(mode=mode, partitions=every)

    made = target.execute(
        "select relname from pg_inherits join pg_class c on c.oid = inhrelid"
        " where inhparent = 'visit'::regclass order by 1"
    ).fetchall()
    assert [name for (name,) in made] == expected
    target.execute("set timezone = 'UTC'")
    query = "select id, at::text, note from visit order by id, note nulls first"
    wanted = conn.execute(query).fetchall()
    if mode == "history":
        wanted.insert(0, (1, wanted[0][1], None))
    assert target.execute(query).fetchall() == wanted


def test_partitions_need_the_time_in_the_key(
    conn: Connection, target: Connection, queue: str, tick: Tick, load: Load
) -> None:
    conn.execute("create table visit (id int primary key, at date not null, note text)")
    target.execute(PARTITIONED.format(type="date", by="partition by range (at)").encode())
    conn.execute("select pgq.capture_table('visit', %s)", [queue])
    load(partitions="day")
    conn.execute("insert into visit values (1, '2026-01-01')")
    tick()
    with pytest.raises(ApplyError, match=r'key \(id\), without "at"') as failure:
        load(partitions="day")
    assert "key => '{id,at}'" in (failure.value.hint or "")
    target.execute("drop table visit")
    target.execute(PARTITIONED.format(type="date", by="partition by list (at)").encode())
    with pytest.raises(ApplyError, match="not partitioned by ranges"):
        load(partitions="day")


@pytest.mark.usefixtures("item")
@pytest.mark.parametrize(
    ("mode", "column", "kind", "value"),
    [
        ("latest", "name", "varchar(3)", "'long'"),
        ("latest", "price", "int", "1.5"),
        ("latest", "price", "numeric(3, 1)", "1000"),
        ("latest", "made", "timestamptz check (made > '2000-01-01')", "'1999-01-01'"),
        ("plain", "tags", "int[]", "'{x}'"),
        ("latest", "notes", "jsonb not null default '1'", "null"),
    ],
)
def test_a_row_that_does_not_fit_is_named(
    conn: Connection,
    target: Connection,
    queue: str,
    tick: Tick,
    load: Load,
    mode: str,
    column: str,
    kind: str,
    value: str,
) -> None:
    target.execute(f"alter table item drop {column}".encode())
    target.execute(f"alter table item add {column} {kind}".encode())
    conn.execute(f"alter table item alter {column} drop not null".encode())
    for number in range(10):
        bad = value if number == 6 else "default" if "not null" not in kind else "'1'"
        conn.execute(f"insert into item (id, {column}) values ({number}, {bad})".encode())
    [(bad_id,)] = conn.execute(
        "select ev_id from pgq.event where ev_data like '%\"id\":6,%'"
    ).fetchall()
    tick()
    with pytest.raises(BadRow) as failure:
        load(mode=mode)
    message = failure.value.message
    assert f"event {bad_id} " in message
    assert "table public.item" in message
    assert (f'column "{column}"' if column != "made" else "item_made_check") in message
    assert rows(target) == []

    # Put aside, it costs itself only.
    load(mode=mode, bad_rows="dead_letter")
    assert [row[0] for row in rows(target)] == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    dead = conn.execute("select ev_id, dl_reason, dl_traceback from pgq.dead_letter").fetchall()
    assert [row[0] for row in dead] == [bad_id]
    assert "does not fit" in dead[0][1]
    assert "set bad_rows" not in dead[0][1]
    # The larger pieces that it was in are not told of.
    assert dead[0][2].count("ApplyError: ") == 1


@pytest.mark.usefixtures("item")
def test_what_is_wrong_with_a_table_stops_the_loader_whatever_is_set(
    conn: Connection, target: Connection, tick: Tick, load: Load
) -> None:
    conn.execute("insert into item values (1), (2)")
    tick()
    target.execute("alter table item drop price")
    with pytest.raises(ApplyError, match='no column "price"'):
        load(bad_rows="dead_letter")
    target.execute("alter table item add price numeric; alter table item drop constraint item_pkey")
    with pytest.raises(ApplyError, match=r"no unique index on \(id\)"):
        load(bad_rows="dead_letter")
    target.execute("alter table item rename to other")
    with pytest.raises(pgqpy.PgqError, match=r"no table public\.item"):
        load(bad_rows="dead_letter")
    target.execute("alter table other rename to item; alter table item add primary key (id)")
    load()
    assert len(rows(target)) == 2
    assert conn.execute("select count(*) from pgq.dead_letter").fetchone() == (0,)


@pytest.mark.usefixtures("item")
def test_other_events_are_errors_or_left_out(
    conn: Connection, target: Connection, queue: str, tick: Tick, load: Load
) -> None:
    ev_id = Producer(queue).insert_event(conn, "mail", "hello")
    conn.execute("insert into item values (1)")
    tick()
    with pytest.raises(BadEvent, match=f"event {ev_id} of type 'mail'"):
        load()
    load(ignore_other_events=True)
    assert len(rows(target)) == 1


@pytest.mark.usefixtures("item")
def test_tables_may_be_chosen_have_other_names_and_rows_be_converted(
    conn: Connection, target: Connection, queue: str, tick: Tick, load: Load
) -> None:
    class Shout(TableLoader):
        def convert(self, change: Change) -> Change | None:
            if change.values.get("id") == "2":
                return None
            return change._replace(values=change.values | {"name": "!"})

    conn.execute("create table other (id int primary key)")
    conn.execute("select pgq.capture_table('other', %s)", [queue])
    target.execute("create schema copy; alter table item set schema copy")
    mapping = {"public.item": "copy.item"}
    conn.execute("insert into other values (1); insert into item values (1, 'a'), (2, 'b')")
    tick()
    load(Shout, tables=mapping)
    assert target.execute("select id, name from copy.item").fetchall() == [(1, "!")]

    with pytest.raises(pgqpy.PgqError, match=r"no table copy\.nope"):
        load(tables={"public.item": "copy.nope"})


@pytest.mark.usefixtures("item")
def test_the_key_may_change_within_a_batch(
    conn: Connection, target: Connection, queue: str, tick: Tick, load: Load
) -> None:
    target.execute("create unique index on item (id, name)")
    conn.execute("insert into item values (1, 'a'), (2, 'b'), (3, 'c')")
    conn.execute("alter table item alter name set not null")
    conn.execute(
        "select pgq.capture_table('item', %s, key => '{id,name}', replace => true)", [queue]
    )
    conn.execute("delete from item where id = 2")
    tick()
    load()
    assert rows(target) == rows(conn)


def test_settings_that_make_no_sense_are_refused(dsn: str, queue: str) -> None:
    base: dict[str, object] = {"dsn": dsn, "queue": queue, "target_dsn": dsn}
    cases: list[tuple[dict[str, object], str]] = [
        ({"mode": "fast"}, "latest, plain, history"),
        ({"partitions": "week"}, "hour, day, month, year"),
        ({"history_columns": {"a": "operation"}}, "are for mode history"),
        ({"batch_size": 0}, "at least 1"),
    ]
    for wrong, message in cases:
        with pytest.raises(ConfigError, match=message):
            build(TableLoader.Config, base | wrong)


@pytest.mark.usefixtures("item")
def test_a_batch_is_applied_once_and_foreign_keys_are_respected(
    conn: Connection,
    target: Connection,
    dsn: str,
    target_dsn: str,
    queue: str,
    tick: Tick,
    load: Load,
) -> None:
    class Crash(BaseException):
        pass

    class Dies(TableLoader):
        def process_batch(self, conn: pgqpy.Connection, batch: pgqpy.Batch) -> None:
            super().process_batch(conn, batch)
            raise Crash

    part = "create table part (id int primary key, item int references item, what text)"
    for database in (conn, target):
        database.execute(part)
    conn.execute("select pgq.capture_table('part', %s)", [queue])
    target.execute(
        "create table log (id int); create function log() returns trigger language plpgsql as"
        " $$ begin insert into log values (new.id); return new; end $$;"
        "create trigger log after insert on part for each row execute function log()"
    )
    conn.execute("insert into item values (1), (2)")
    conn.execute("insert into part select n, n % 2 + 1 from generate_series(1, 100) n")
    conn.execute("delete from part where item = 2; delete from item where id = 2")
    tick()
    with pytest.raises(Crash):
        Dies(dsn, target_dsn=target_dsn, queue=queue).run_once()
    load()
    assert [row[0] for row in rows(target)] == [1]
    assert target.execute("select count(*), count(distinct id) from log").fetchone() == (50, 50)


@pytest.mark.usefixtures("item")
@pytest.mark.parametrize("mode", ["latest", "history"])
def test_arrays_of_json_arrive(
    conn: Connection, target: Connection, queue: str, load: Load, tick: Tick, mode: str
) -> None:
    for each in (conn, target):
        each.execute("create table doc (id int primary key, parts jsonb[])")
    conn.execute("select pgq.capture_table('doc', %s)", [queue])
    conn.execute(
        """insert into doc values (1, array['{"a": [1.50, "}"]}', null, '"x\\\\y"', '[]']::jsonb[]),
        (2, '{}'), (3, null)"""
    )
    tick()
    load(mode=mode)
    query = "select id, parts::text from doc order by id"
    assert target.execute(query).fetchall() == conn.execute(query).fetchall()


@pytest.mark.usefixtures("item")
def test_json_inside_a_composite_is_refused_with_the_remedy(
    conn: Connection, target: Connection, queue: str, load: Load, tick: Tick
) -> None:
    for each in (conn, target):
        each.execute("create type part as (nr int, data jsonb)")
        each.execute("create table doc (id int primary key, parts part[])")
    conn.execute("select pgq.capture_table('doc', %s)", [queue])
    conn.execute("""insert into doc values (1, array[row(1, '[]')]::part[])""")
    tick()
    with pytest.raises(ApplyError, match="JSON inside a composite") as caught:
        load()
    assert "jsontriga" in str(caught.value.hint)
