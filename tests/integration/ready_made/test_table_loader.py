"""table_loader: changes of captured tables in tables of another database, in three ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, LiteralString

import pytest

import pgqpy
from pgqpy import Producer
from pgqpy_consumers.apply import ApplyError, BadEvent, Change, TableMissing
from pgqpy_consumers.settings import ConfigError, build
from pgqpy_consumers.table_loader import BadRow, TableLoader
from tests.fixtures import queue_ops as ops
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
ROWS: LiteralString = (
    "select id, name, price::text, tags, notes::text, made::text, raw from item order by id"
)


@dataclass
class Sides:
    """A database whose changes are captured, and one that they are loaded into."""

    conn: Connection
    target: Connection
    config: dict[str, Any]

    def both(self, statement: LiteralString) -> None:
        self.conn.execute(statement)
        self.target.execute(statement)

    def capture(self, table: str) -> None:
        self.conn.execute("select pgq.capture_table(%s, 'test_queue')", [table])

    def load(self, kind: type[TableLoader] = TableLoader, /, **settings: Any) -> None:
        """Tick, and run the loader until there are no more changes."""
        ops.tick(self.conn, "test_queue")
        kind.from_config(build(kind.Config, self.config | settings)).run(until_empty=True)

    def rows(self, query: LiteralString = ROWS) -> list[tuple[Any, ...]]:
        """What a query finds in the target."""
        return self.target.execute(query).fetchall()

    def same(self, query: LiteralString = ROWS) -> None:
        assert self.rows(query) == self.conn.execute(query).fetchall()

    def ids(self) -> list[int]:
        return [row[0] for row in self.rows("select id from item order by id")]


@pytest.fixture
def sides(conn: Connection, target: Connection, dsn: str, target_dsn: str, queue: str) -> Sides:
    return Sides(conn, target, {"dsn": dsn, "queue": queue, "target_dsn": target_dsn})


@pytest.fixture
def item(sides: Sides) -> Sides:
    """A captured table, empty on both sides, and the loader registered."""
    sides.both(TABLE)
    sides.capture("item")
    sides.load()
    return sides


CAPTURES = {
    "row_json": "select pgq.capture_table('item', 'test_queue')",
    "jsontriga": "create trigger t after insert or update or delete on item"
    " for each row execute function pgq.jsontriga('test_queue')",
    "logutriga": "create trigger t after insert or update or delete on item"
    " for each row execute function pgq.logutriga('test_queue')",
}


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("mode", "capture"),
    [
        ("latest", "row_json"),
        ("plain", "row_json"),
        ("latest", "jsontriga"),
        ("plain", "logutriga"),
    ],
)
def test_the_target_has_what_the_source_has(sides: Sides, mode: str, capture: str) -> None:
    sides.both(TABLE)
    sides.conn.execute(CAPTURES[capture].encode())
    sides.load(mode=mode)
    changes = CHANGES if capture == "row_json" else CHANGES.replace("update item set id = 20", "--")
    sides.conn.execute(changes.encode())
    sides.load(mode=mode)
    before = sides.rows()
    assert len(before) == 4
    sides.same()

    sides.conn.execute("update item set raw = null, name = 'x'; delete from item where id = 3")
    sides.load(mode=mode)
    sides.same()
    assert sides.rows() != before


def test_latest_makes_one_change_of_many_and_plain_makes_each(item: Sides) -> None:
    item.target.execute("create table seen (name text)")
    item.target.execute(
        "create function see() returns trigger language plpgsql as"
        " $$ begin insert into seen values (new.name); return new; end $$;"
        "create trigger see before insert or update on item"
        " for each row execute function see()"
    )
    for mode, expected in (("latest", {"c"}), ("plain", {"a", "b", "c"})):
        for name in ("a", "b", "c"):
            item.conn.execute(
                "insert into item values (1, %s) on conflict (id) do update set name = %s",
                [name, name],
            )
        item.load(mode=mode)
        seen = item.target.execute("delete from seen returning name").fetchall()
        assert {name for (name,) in seen} == expected


def test_a_truncate_is_made_and_what_came_after_stays(item: Sides) -> None:
    item.conn.execute("insert into item select n from generate_series(1, 5) n")
    item.load()
    assert len(item.ids()) == 5
    item.conn.execute("insert into item values (6); truncate item; insert into item values (7)")
    item.load()
    assert item.ids() == [7]


def test_history_has_a_row_for_each_change(sides: Sides) -> None:
    sides.conn.execute(TABLE)
    sides.capture("item")
    sides.target.execute(
        "create table item (id int, name text, price numeric, tags text[], notes jsonb,"
        " made timestamptz, raw bytea, what text, at timestamptz, nr bigint, tx bigint)"
    )
    extra = {"what": "operation", "at": "event_time", "nr": "event_id", "tx": "txid"}
    sides.load(mode="history", history_columns=extra)
    sides.conn.execute("insert into item values (1, 'a', 1, '{x}', '{\"a\": [1]}')")
    sides.conn.execute("update item set name = 'b'; truncate item; insert into item values (2)")
    sides.conn.execute("delete from item")
    sides.load(mode="history", history_columns=extra)
    assert sides.rows("select what, id, name, tags, notes::text from item order by nr") == [
        ("INSERT", 1, "a", ["x"], '{"a": [1]}'),
        ("UPDATE", 1, "b", ["x"], '{"a": [1]}'),
        ("INSERT", 2, None, None, None),
        ("DELETE", 2, None, None, None),
    ]
    events = "select ev_id, ev_txid, ev_time from pgq.event where ev_type not like '%TRUNC%'"
    found = sides.rows("select nr, tx, at from item")
    assert sorted(found) == sorted(sides.conn.execute(events))

    # Without a column that tells them apart deletions are not rows.
    sides.target.execute("alter table item drop what, drop at, drop nr, drop tx; truncate item")
    sides.conn.execute("insert into item values (3); delete from item")
    sides.load(mode="history")
    assert sides.ids() == [3]


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
    sides: Sides, mode: str, kind: str, every: str, expected: list[str]
) -> None:
    conn, target = sides.conn, sides.target
    conn.execute(PARTITIONED.format(type=kind, by="").encode())
    # Names and bounds are those of UTC, wherever the session thinks it is.
    target.execute(PARTITIONED.format(type=kind, by="partition by range (at)").encode())
    if mode == "history":
        target.execute("alter table visit drop constraint visit_pkey")
    target.execute(f"alter database {target.info.dbname} set timezone = 'Asia/Tokyo'".encode())
    sides.capture("visit")
    sides.load(mode=mode, partitions=every)
    conn.execute("set timezone = 'UTC'")
    conn.execute("insert into visit values (1, '2026-01-31 23:59:59.9'), (2, '2026-02-01')")
    sides.load(mode=mode, partitions=every)
    conn.execute("insert into visit values (3, '2026-02-01 00:10')")
    conn.execute("update visit set note = 'x' where id = 1")
    sides.load(mode=mode, partitions=every)

    made = sides.rows(
        "select relname from pg_inherits join pg_class c on c.oid = inhrelid"
        " where inhparent = 'visit'::regclass order by 1"
    )
    assert [name for (name,) in made] == expected
    target.execute("set timezone = 'UTC'")
    query: LiteralString = "select id, at::text, note from visit order by id, note nulls first"
    wanted = conn.execute(query).fetchall()
    if mode == "history":
        wanted.insert(0, (1, wanted[0][1], None))
    assert sides.rows(query) == wanted


def test_partitions_need_the_time_in_the_key(sides: Sides) -> None:
    sides.conn.execute("create table visit (id int primary key, at date not null, note text)")
    by_range, by_list = (
        PARTITIONED.format(type="date", by=f"partition by {kind} (at)").encode()
        for kind in ("range", "list")
    )
    sides.target.execute(by_range)
    sides.capture("visit")
    sides.load(partitions="day")
    sides.conn.execute("insert into visit values (1, '2026-01-01')")
    with pytest.raises(ApplyError, match=r'key \(id\), without "at"') as failure:
        sides.load(partitions="day")
    assert "key => '{id,at}'" in (failure.value.hint or "")
    sides.target.execute("drop table visit")
    sides.target.execute(by_list)
    with pytest.raises(ApplyError, match="not partitioned by ranges"):
        sides.load(partitions="day")


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
    item: Sides, mode: str, column: str, kind: str, value: str
) -> None:
    item.target.execute(f"alter table item drop {column}".encode())
    item.target.execute(f"alter table item add {column} {kind}".encode())
    item.conn.execute(f"alter table item alter {column} drop not null".encode())
    for number in range(10):
        bad = value if number == 6 else "default" if "not null" not in kind else "'1'"
        item.conn.execute(f"insert into item (id, {column}) values ({number}, {bad})".encode())
    [(bad_id,)] = item.conn.execute(
        "select ev_id from pgq.event where ev_data like '%\"id\":6,%'"
    ).fetchall()
    with pytest.raises(BadRow) as failure:
        item.load(mode=mode)
    message = failure.value.message
    assert f"event {bad_id} " in message
    assert "table public.item" in message
    assert (f'column "{column}"' if column != "made" else "item_made_check") in message
    assert item.ids() == []

    # Put aside, it costs itself only.
    item.load(mode=mode, bad_rows="dead_letter")
    assert item.ids() == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    letters = item.conn.execute("select ev_id, dl_reason, dl_traceback from pgq.dead_letter")
    [(ev_id, reason, traceback)] = letters.fetchall()
    assert ev_id == bad_id
    assert "does not fit" in reason
    assert "set bad_rows" not in reason
    # The larger pieces that it was in are not told of.
    assert traceback.count("ApplyError: ") == 1


def test_what_is_wrong_with_a_table_stops_the_loader_whatever_is_set(item: Sides) -> None:
    item.conn.execute("insert into item values (1), (2)")
    for change, said in (
        ("drop price", 'no column "price"'),
        ("add price numeric, drop constraint item_pkey", r"no unique index on \(id\)"),
        ("rename to other", r"no table public\.item"),
    ):
        item.target.execute(f"alter table item {change}".encode())
        with pytest.raises(pgqpy.PgqError, match=said):
            item.load(bad_rows="dead_letter")
    item.target.execute("alter table other rename to item; alter table item add primary key (id)")
    item.load()
    assert item.ids() == [1, 2]
    assert ops.value(item.conn, "select count(*) from pgq.dead_letter") == 0


@pytest.mark.parametrize("mode", ["latest", "history"])
def test_no_event_changes_a_table_of_the_system(item: Sides, mode: str) -> None:
    """The loader is a superuser here."""
    kind = '{"op": "DELETE", "table": ["pg_catalog", "pg_description"], "pkey": ["description"]}'
    if mode == "history":
        kind = kind.replace("DELETE", "INSERT").replace('"description"', "")
    row = '{"objoid": 1, "classoid": 1, "objsubid": 0, "description": "forged"}'
    Producer("test_queue").insert_event(item.conn, kind, row, extra1="pg_catalog.pg_description")
    with pytest.raises(TableMissing, match=r"pg_catalog\.pg_description is a table of the system"):
        item.load(mode=mode)
    assert item.rows("select from pg_description where description = 'forged'") == []


def test_other_events_are_errors_or_left_out(item: Sides) -> None:
    ev_id = Producer("test_queue").insert_event(item.conn, "mail", "hello")
    item.conn.execute("insert into item values (1)")
    with pytest.raises(BadEvent, match=f"event {ev_id} of type 'mail'"):
        item.load()
    item.load(ignore_other_events=True)
    assert item.ids() == [1]


def test_tables_may_be_chosen_have_other_names_and_rows_be_converted(item: Sides) -> None:
    class Shout(TableLoader):
        def convert(self, change: Change) -> Change | None:
            if change.values.get("id") == "2":
                return None
            return change._replace(values=change.values | {"name": "!"})

    item.conn.execute("create table other (id int primary key)")
    item.capture("other")
    item.target.execute("create schema copy; alter table item set schema copy")
    item.conn.execute("insert into other values (1); insert into item values (1, 'a'), (2, 'b')")
    item.load(Shout, tables={"public.item": "copy.item"})
    assert item.rows("select id, name from copy.item") == [(1, "!")]
    with pytest.raises(pgqpy.PgqError, match=r"no table copy\.nope"):
        item.load(tables={"public.item": "copy.nope"})


def test_the_key_may_change_within_a_batch(item: Sides) -> None:
    item.target.execute("create unique index on item (id, name)")
    item.conn.execute("insert into item values (1, 'a'), (2, 'b'), (3, 'c')")
    item.conn.execute("alter table item alter name set not null")
    item.conn.execute(
        "select pgq.capture_table('item', 'test_queue', key => '{id,name}', replace => true)"
    )
    item.conn.execute("delete from item where id = 2")
    item.load()
    item.same()


def test_settings_that_make_no_sense_are_refused() -> None:
    base: dict[str, object] = {"queue": "q", "target_dsn": "postgresql:///x"}
    cases: list[tuple[dict[str, object], str]] = [
        ({"mode": "fast"}, "latest, plain, history"),
        ({"partitions": "week"}, "hour, day, month, year"),
        ({"history_columns": {"a": "operation"}}, "are for mode history"),
        ({"batch_size": 0}, "at least 1"),
    ]
    for wrong, message in cases:
        with pytest.raises(ConfigError, match=message):
            build(TableLoader.Config, base | wrong)


def test_a_batch_is_applied_once_and_foreign_keys_are_respected(item: Sides) -> None:
    class Crash(BaseException):
        pass

    class Dies(TableLoader):
        def process_batch(self, conn: pgqpy.Connection, batch: pgqpy.Batch) -> None:
            super().process_batch(conn, batch)
            raise Crash

    item.both("create table part (id int primary key, item int references item, what text)")
    item.capture("part")
    item.target.execute(
        "create table log (id int); create function log() returns trigger language plpgsql as"
        " $$ begin insert into log values (new.id); return new; end $$;"
        "create trigger log after insert on part for each row execute function log()"
    )
    item.conn.execute("insert into item values (1), (2)")
    item.conn.execute("insert into part select n, n % 2 + 1 from generate_series(1, 100) n")
    item.conn.execute("delete from part where item = 2; delete from item where id = 2")
    with pytest.raises(Crash):
        item.load(Dies)
    item.load()
    assert item.ids() == [1]
    assert item.rows("select count(*), count(distinct id) from log") == [(50, 50)]


def test_arrays_of_json_arrive_but_json_inside_a_composite_is_refused(item: Sides) -> None:
    item.both("create table doc (id int primary key, parts jsonb[])")
    item.capture("doc")
    item.load(mode="history", consumer="history")
    item.conn.execute(
        """insert into doc values (1, array['{"a": [1.50, "}"]}', null, '"x\\\\y"', '[]']::jsonb[]),
        (2, '{}'), (3, null)"""
    )
    docs: LiteralString = "select id, parts::text from doc order by id"
    item.load(mode="latest")
    item.same(docs)
    item.target.execute("truncate doc")
    item.load(mode="history", consumer="history")
    item.same(docs)

    item.both(
        "create type part as (nr int, data jsonb); create table odd (id int, parts part[]);"
        "alter table odd add primary key (id)"
    )
    item.capture("odd")
    item.conn.execute("""insert into odd values (1, array[row(1, '[]')]::part[])""")
    with pytest.raises(ApplyError, match="JSON inside a composite") as caught:
        item.load()
    assert "jsontriga" in str(caught.value.hint)


def test_a_row_of_deeply_nested_json_does_not_stop_the_others(sides: Sides) -> None:
    """PostgreSQL's limit is greater than that of a program in Python."""
    sides.both("create table doc (id int primary key, body jsonb)")
    sides.capture("doc")
    sides.load()
    for row_id, depth in enumerate((1, 700, 3000, 1), 1):
        body = "[" * depth + "]" * depth
        sides.conn.execute("insert into doc values (%s, %s)", [row_id, body])
    Producer("test_queue").insert_event(
        sides.conn, '{"op": ["INSERT"], "table": ["public", {}], "pkey": [{}]}', "{}", extra1="x.y"
    )
    sides.load(bad_rows="dead_letter")
    assert sides.rows("select id from doc order by id") == [(1,), (4,)]
    reasons = sides.conn.execute("select dl_reason from pgq.dead_letter order by ev_id").fetchall()
    assert 'does not fit into column "body" of table public.doc' in reasons[0][0]
    assert ["nested" in reasons[0][0], "recursion" in reasons[1][0], len(reasons)] == [1, 1, 3]


def test_a_key_is_compared_as_its_index_does_and_not_by_an_operator_of_others(sides: Sides) -> None:
    """One in a schema on the search_path can fit better, and would have the loader's rights."""
    sides.both("create table item (id varchar primary key)")
    sides.capture("item")
    sides.load()
    sides.conn.execute("insert into item values ('one')")
    sides.load()
    sides.conn.execute("delete from item where id = 'one'")
    sides.target.execute(
        "create table hit (); create function public.equal(varchar, varchar) returns boolean"
        " language sql as $$ insert into hit default values; select $1::text = $2::text $$;"
        " create operator public.= (leftarg = varchar, rightarg = varchar, function = equal)"
    )
    sides.load()
    assert sides.rows("select from item union all select from hit") == []
