"""Contracts: what does not fit does not get in, and versions replace each other safely."""

from __future__ import annotations

from typing import LiteralString

import pytest
from psycopg.types.json import Jsonb

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Calls, Connect, Connection, with_snapshot

ORDER = {
    "type": "object",
    "properties": {
        "lines": {"type": "array", "items": {"properties": {"price": {"type": "number"}}}}
    },
    "required": ["lines"],
}
GOOD = '{"lines": [{"price": 1}, {"price": 2.5}]}'
BAD = '{"lines": [{"price": 1}, {"price": "2"}]}'


def set_contract(
    conn: Connection,
    queue: str,
    schema: object,
    ev_type: str | None = "order",
    compatibility: str | None = None,
    enforced: bool | None = None,
) -> int:
    version: int = ops.value(
        conn,
        "select pgq.set_contract(%s, %s, %s, %s, %s)",
        *(queue, ev_type, Jsonb(schema), compatibility, enforced),
    )
    return version


WAYS: dict[str, LiteralString] = {
    "relation": "insert into pgq_queue.test_queue (ev_type, ev_data) values ('order', %(data)s)",
    "relation, rows": "insert into pgq_queue.test_queue (ev_type, ev_data)"
    " select 'order', d from unnest(array[%(good)s, %(data)s]) d",
    "insert_event": "select pgq.insert_event('test_queue', 'order', %(data)s)",
    "insert_event, all": "select pgq.insert_event('test_queue', 'order', %(data)s, '', '', '', '')",
    "insert_events": "select pgq.insert_events('test_queue', '{a,b}', array[%(good)s, %(data)s])",
    "insert_events, all": "select pgq.insert_events('test_queue', '{o}', array[%(data)s], '{x}')",
    "insert_event_raw": "select pgq.insert_event_raw('test_queue', 7, now(), 1, 1, 'order',"
    " %(data)s, '', '', '', '')",
    "insert_event_once": "select pgq.insert_event_once('test_queue', 'k', 'order', %(data)s)",
    "insert_events_once": "select pgq.insert_events_once('test_queue', '{k}', '{o}',"
    " array[%(data)s])",
    "once, later": "select pgq.insert_event_once('test_queue', 'k', 'order', %(data)s,"
    " deliver_at => now() + '1 h')",
    "many once, later": "select pgq.insert_events_once('test_queue', '{k}', '{o}',"
    " array[%(data)s], i_times => array[now() + '1 h'])",
    "insert_event_at": "select pgq.insert_event_at('test_queue', now() + '1 h', 'order', %(data)s)",
    "insert_events_at": "select pgq.insert_events_at('test_queue', array[now()], '{o}',"
    " array[%(data)s])",
    "COPY": "insert into pgq.event_1_0 (ev_type, ev_data) values ('order', %(data)s)",
    "partitioned table": "insert into pgq.event (ev_id, ev_type, ev_data, ev_slot)"
    " values (1, 'order', %(data)s, 0)",
    "capture": "insert into captured values (1, %(data)s::jsonb -> 'lines')",
}


@pytest.mark.parametrize("guarded", [False, True])
def test_what_does_not_fit_never_gets_in(conn: Connection, queue: str, guarded: bool) -> None:
    conn.execute("select pgq.set_queue_config(%s, 'key_window', '1 day')", [queue])
    conn.execute("create table captured (id int primary key, lines jsonb)")
    conn.execute("select pgq.capture_table('captured', 'test_queue')")
    set_contract(conn, queue, ORDER, None, enforced=True)
    if guarded:
        assert ops.value(conn, "select pgq._guard_queues()")
    for way, statement in WAYS.items():
        with ops.refused("PQ054", "at /lines/1/price: expected number, found string"):
            conn.execute(statement, {"good": GOOD, "data": BAD})
        with conn.transaction(force_rollback=True):
            conn.execute(statement, {"good": GOOD, "data": GOOD})
            stored: LiteralString = (
                "select (select count(*) from pgq.event where ev_txid > 0)"
                " + (select count(*) from pgq.delayed)"
            )
            assert ops.value(conn, stored), way
    with ops.refused("PQ054"):
        ops.copy(conn, "pgq.event_1_0", [GOOD, BAD])
    assert ops.value(conn, "select count(*) from pgq.waiting_event") == 0
    assert ops.value(conn, "select count(*) from pgq_queue.test_queue") == 0


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "at the top: expected JSON, found NULL"),
        ("<xml/>", "invalid input syntax for type json"),
        (r'"\ud800"', "invalid input syntax for type json"),
        (r'"\u0000"', "unsupported Unicode escape sequence"),
        ('{"lines": 1e999999}', "overflow"),
        ("[" * 100_000, "stack depth limit exceeded"),
        ("[1]", "at the top: expected object, found array"),
        ("{}", 'at the top: expected property "lines"'),
        ('{"a/b~c": 1, "lines": []}', "at /a~1b~0c: expected string, found number"),
    ],
)
def test_an_error_names_the_place_and_what_is_expected(
    conn: Connection, data: str | None, said: str
) -> None:
    conn.execute("select pgq.create_queue('q')")
    more = {"a/b~c": {"type": "string"}}
    set_contract(conn, "q", ORDER | {"properties": more}, enforced=True)
    with ops.refused("PQ054", f"type 'order' .* version 1 .* queue 'q' .*{said}"):
        conn.execute("insert into pgq_queue.q (ev_type, ev_data) values ('order', %s)", [data])
    conn.execute("select pgq.insert_event('q', 'other', %s)", [data])


def test_versions_types_and_rules(conn: Connection, queue: str) -> None:
    assert set_contract(conn, queue, {"type": "object"}, None) == 1
    assert set_contract(conn, queue, ORDER) == 1
    wider = ORDER | {"required": []}
    assert set_contract(conn, queue, wider) == 2
    assert set_contract(conn, queue, wider, compatibility="full", enforced=True) == 2
    assert set_contract(conn, queue, wider) == 2
    get: LiteralString = (
        "select ev_type, version, schema->'required', compatibility, enforced"
        " from pgq.get_contract(%s, %s, %s)"
    )
    assert conn.execute(get, [queue, "order", None]).fetchall() == [("order", 2, [], "full", True)]
    assert conn.execute(get, [queue, "order", 1]).fetchall() == [
        ("order", 1, ["lines"], "full", True)
    ]
    assert conn.execute(get, [queue, "x", None]).fetchall() == [(None, 1, None, "backward", False)]
    info: LiteralString = "select ev_type, version from pgq.get_contract_info(%s)"
    assert conn.execute(info, [queue]).fetchall() == [("order", 2), (None, 1)]
    with ops.refused("PQ055", "no version 3 of a contract for type 'order'"):
        conn.execute(get, [queue, "order", 3])
    conn.execute("select pgq.drop_contract(%s, null)", [queue])
    assert conn.execute(get, [queue, "x", None]).fetchall() == []
    ops.insert(conn, queue, "not JSON")


def test_an_incompatible_version_changes_nothing(conn: Connection, queue: str) -> None:
    set_contract(conn, queue, ORDER, enforced=True)
    before = conn.execute("select * from pgq.contract").fetchall()
    narrower = ORDER | {"required": ["lines", "buyer"]}
    with ops.refused("PQ057", 'not backward compatible .* 1: at /required: property "buyer"'):
        set_contract(conn, queue, narrower, enforced=False)
    with ops.refused("PQ057", "at /type: .*by the last version"):
        set_contract(conn, queue, {"required": ["lines"]}, compatibility="full")
    with ops.refused("PQ057", "at /unevaluatedItems: the keyword .* not understood"):
        set_contract(conn, queue, ORDER | {"unevaluatedItems": True}, enforced=False)
    assert conn.execute("select * from pgq.contract").fetchall() == before
    with ops.refused("PQ054"):
        conn.execute("select pgq.insert_event(%s, 'order', '{}')", [queue])
    assert set_contract(conn, queue, narrower, compatibility="none") == 2


BAD_INPUT: dict[LiteralString, tuple[str, str]] = {
    "'q', 't', '[]'": ("PQ056", "at the top: expected an object"),
    "'q', 't', null": ("PQ056", "expected an object"),
    '\'q\', \'t\', \'{"properties": {"a": {"type": "int"}}}\'': (
        "PQ056",
        "at /properties/a/type: ",
    ),
    "'q', 't', '{\"minLength\": -1}'": ("PQ056", "not a JSON Schema: at /minLength: expected 0, 1"),
    "'q', 't', '{\"$ref\": \"#/$defs/a\"}'": ("PQ056", "at /\\$ref: there is no"),
    "'q', 't', '{\"$ref\": \"#\"}'": ("PQ056", "at /\\$ref: the reference leads back to itself"),
    """'q', 't', '{"properties": {"a": {"$ref": "#/$defs/a"}},
                 "$defs": {"a": {"allOf": [{}, {"not": {"$ref": "#/$defs/b"}}]},
                           "b": {"if": true, "then": {"$ref": "#/$defs/a"}}}}'""": (
        "PQ056",
        "at /\\$defs/a/allOf/1/not/\\$ref: the reference leads back to itself",
    ),
    "'q', 't', '{\"unevaluatedItems\": true}', null, true": (
        "PQ056",
        "PostgreSQL cannot check this .* at /unevaluatedItems: the keyword",
    ),
    "'q', 't', '{\"pattern\": \"(a)\\\\1\"}', null, true": ("PQ056", "at /pattern: the pattern"),
    "'q', 't', '{\"pattern\": \"(?=a)\"}', null, true": ("PQ056", "at /pattern: the pattern"),
    "'q', 't', '{\"pattern\": \"\\\\uD83D\\\\uDE00\"}', null, true": (
        "PQ056",
        "at /pattern: the pattern",
    ),
    "'q', '', '{}'": ("PQ011", "the type of a contract is empty"),
    "'q', 't', '{}', 'forward'": ("PQ011", "no compatibility 'forward'"),
    "'nosuch', 't', '{}'": ("PQ001", "queue 'nosuch' does not exist"),
    "null, 't', '{}'": ("PQ001", "queue NULL does not exist"),
}


@pytest.mark.one_database
@pytest.mark.parametrize("arguments", BAD_INPUT)
def test_bad_input_is_refused(conn: Connection, arguments: LiteralString) -> None:
    conn.execute("select pgq.create_queue('q')")
    with ops.refused(*BAD_INPUT[arguments]):
        conn.execute("select pgq.set_contract(" + arguments + ")")
    assert conn.execute("select from pgq.contract").fetchall() == []
    with ops.refused("PQ055", "queue 'q' has no contract for type 't'"):
        conn.execute("select pgq.drop_contract('q', 't')")
    with ops.refused("PQ001"):
        conn.execute("select pgq.get_contract('nosuch', 't')")


def test_a_pattern_cannot_take_long(conn: Connection, queue: str) -> None:
    """PostgreSQL matches it with an automaton. A backtracking matcher needs 2^40 steps."""
    set_contract(conn, queue, {"pattern": "^(a+)+$"}, None, enforced=True)
    conn.execute("set statement_timeout = '1min'")
    with ops.refused("PQ054", "expected text that matches"):
        conn.execute("select pgq.insert_event(%s, 't', %s)", [queue, f'"{"a" * 40}!"'])


def test_references_cannot_take_long(conn: Connection, queue: str) -> None:
    """Each level of the payload is checked in two ways, so thirty would take 2^30 checks."""
    ways = [{"properties": {"n": {"$ref": "#"}}, "required": [name]} for name in "vw"]
    set_contract(conn, queue, {"anyOf": ways}, None, enforced=True)
    conn.execute("set statement_timeout = '1min'")
    insert: LiteralString = "select pgq.insert_event(%s, 't', %s)"
    nested = '{"v": 1, "n": '
    conn.execute(insert, [queue, nested * 3 + '{"w": 1}' + "}" * 3])
    with ops.refused("PQ054", "references lead to too many checks"):
        conn.execute(insert, [queue, nested * 30 + '{"w": 1}' + "}" * 30])


def test_settings_of_the_session_change_no_check(
    conn: Connection, queue: str, connect: Connect
) -> None:
    set_contract(conn, queue, {"pattern": r"^[A-Z]{3}\d+$"}, None, enforced=True)
    producer = connect()
    producer.execute("set standard_conforming_strings = off")
    with ops.refused("PQ054", "expected text that matches"):
        producer.execute("select pgq.insert_event(%s, 't', %s)", [queue, '"bad"'])
    producer.execute("select pgq.insert_event(%s, 't', %s)", [queue, '"ABC1"'])


def test_a_captured_table_changes_no_contract(conn: Connection, queue: str) -> None:
    """Any producer can have one, of any type with a dot."""
    set_contract(conn, queue, {"type": "object"}, None, enforced=True)
    set_contract(conn, queue, {"type": "object"}, "order.placed", enforced=True)
    tables = ['"order".placed', "public.note", "pg_temp.note"]
    conn.execute('create schema "order"')
    for table in tables:
        conn.execute(f"create table {table} (id int primary key)".encode())
        conn.execute("select pgq.capture_table(%s, %s)", [table, queue])
    info: LiteralString = (
        "select ev_type, version, enforced, captured from pgq.get_contract_info(%s)"
    )
    assert conn.execute(info, [queue]).fetchall() == [
        ("order.placed", 1, True, False),
        ("public.note", 1, False, True),
        (None, 1, True, False),
    ]
    insert: LiteralString = "select pgq.insert_event(%s, %s, %s)"
    for ev_type in ("order.placed", "public.note"):
        with ops.refused("PQ054", "expected object, found array"):
            conn.execute(insert, [queue, ev_type, "[]"])
    # set_contract() takes the type over, by its own rules.
    assert set_contract(conn, queue, {"type": "array"}, "public.note", enforced=True) == 2
    conn.execute(insert, [queue, "public.note", "[]"])
    conn.execute("alter table note add more text; insert into public.note values (1)")
    with ops.refused("PQ057", "not backward compatible"):
        set_contract(conn, queue, {"type": "null"}, "public.note")


INSERTS: list[LiteralString] = [
    "insert into pgq_queue.test_queue (ev_type, ev_data) values ('order', '{}')",
    "select pgq.insert_event_at('test_queue', now(), 'order', '{}')",
    "select pgq.insert_events_at('test_queue', array[now()], '{order}', array['{}'])",
    "select pgq.insert_event_once('test_queue', null, 'order', '{}', deliver_at => now())",
    (
        "select pgq.insert_events_once('test_queue', '{null}', '{order}', array['{}'],"
        " i_times => '{now}')"
    ),
]


@pytest.mark.parametrize("insert", INSERTS)
@pytest.mark.parametrize("before", [False, True])
def test_a_change_and_inserts_wait_for_each_other(
    conn: Connection,
    queue: str,
    connect: Connect,
    calls: Calls,
    insert: LiteralString,
    before: bool,
) -> None:
    conn.execute("select pgq.set_queue_config(%s, 'key_window', '1 day')", [queue])
    if before:
        set_contract(conn, queue, {"type": "object"}, enforced=True, compatibility="none")
    old = with_snapshot(connect)
    producer = connect(autocommit=False)
    producer.execute(insert)
    change = connect(autocommit=False)
    waiting = calls.blocked(lambda c: set_contract(c, queue, ORDER, enforced=True), change)
    producer.commit()
    assert waiting.result() == 1 + before
    late = calls.blocked(lambda c: c.execute(insert), producer)
    change.commit()
    with ops.refused("PQ054"):
        late.result()
    # An event of a snapshot from before the change would be checked against the version of then.
    with ops.refused("40001"):
        old.execute(insert)
    old = with_snapshot(connect)
    assert set_contract(conn, queue, {}) == 2 + before
    with ops.refused("40001"):
        old.execute(insert)
    stored: LiteralString = (
        "select (select count(*) from pgq_queue.test_queue) + (select count(*) from pgq.delayed)"
    )
    assert ops.value(conn, stored) == 1


def test_delayed_events_are_checked_once(conn: Connection, queue: str) -> None:
    ops.register(conn, queue, "c")
    set_contract(conn, queue, ORDER, enforced=True)
    at: LiteralString = "select pgq.insert_event_at(%s, now(), 'order', %s)"
    conn.execute(at, [queue, GOOD])
    set_contract(conn, queue, {"maxProperties": 0}, compatibility="none")
    with ops.refused("PQ054"):
        conn.execute(at, [queue, GOOD])
    with conn.transaction():
        assert ops.value(conn, "select moved from pgq.maint_delayed_events()") == 1
        with ops.refused("PQ054"), conn.transaction():
            conn.execute("select pgq.insert_event(%s, 'order', %s)", [queue, GOOD])
    assert ops.deliver(conn, queue, "c") == [GOOD]


def test_a_pass_that_fails_lets_nothing_in(conn: Connection, queue: str, connect: Connect) -> None:
    set_contract(conn, queue, ORDER, enforced=True)
    conn.execute("select pgq.insert_event_at(%s, now(), 'order', %s)", [queue, GOOD])
    other = connect(autocommit=False)
    other.execute("lock table pgq.event_1_0, pgq.event_1_1, pgq.event_1_2")
    with conn.transaction():
        with ops.refused("55P03"), conn.transaction():
            conn.execute("set local lock_timeout = '50ms'")
            conn.execute("select pgq.maint_delayed_events()")
        other.rollback()
        with ops.refused("PQ054"), conn.transaction():
            conn.execute("select pgq.insert_event(%s, 'order', %s)", [queue, BAD])


def test_a_queue_without_an_enforced_contract_pays_nothing(conn: Connection, queue: str) -> None:
    triggers: LiteralString = (
        "select count(*) from pg_trigger where not tgisinternal and tgrelid in"
        " (select oid from pg_class where relname ~ '^event_(spare_)?[0-9]+')"
        " and tgname ~ 'contract'"
    )
    explain: LiteralString = (
        "explain (costs off) insert into pgq_queue.test_queue (ev_type) values ('')"
    )
    plan = conn.execute(explain).fetchall()
    set_contract(conn, queue, ORDER, enforced=False)
    assert ops.value(conn, triggers) == 0
    unenforce: LiteralString = (
        "select pgq.set_contract('test_queue', 'order', schema, null, false)"
        " from pgq.get_contract('test_queue', 'order')"
    )
    for undo in (
        unenforce,
        "select pgq.drop_contract('test_queue', 'order')",
        "select pgq.drop_queue('test_queue', true)",
    ):
        set_contract(conn, queue, ORDER, enforced=True)
        assert conn.execute(explain).fetchall() == plan
        assert ops.value(conn, triggers) == 3
        conn.execute(undo.encode())
        assert ops.value(conn, triggers) == 0
    # Its contracts are dropped with it, its tables are used again.
    conn.execute("select pgq.create_queue(%s)", [queue])
    assert conn.execute("select * from pgq.get_contract_info()").fetchall() == []
    conn.execute("select pgq.insert_event(%s, 'order', 'not JSON')", [queue])
