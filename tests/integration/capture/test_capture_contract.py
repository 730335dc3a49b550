"""A captured table's columns are a contract, with a version for each ALTER."""

from __future__ import annotations

import json
from typing import Any, LiteralString

import jsonschema_rs
import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import AsRole, Calls, Connect, Connection, MakeRole

pytestmark = pytest.mark.any_pg

ROWS = """
    insert into item values (1, 1.50, 'a', '2026-11-23', now(), now(), '{1,null}', '{"a": [1]}',
                             true, 0.5, 'x', 3);
    insert into item (id, day) values (2, '2026-11-23')
"""


@pytest.fixture
def item(conn: Connection) -> None:
    conn.execute(
        "create domain positive as numeric(8, 3) check (value > 0);"
        "create table item (id int8 primary key, price numeric(10, 2), note text,"
        " day date not null, made timestamptz, local timestamp, sizes int[], more jsonb, good bool,"
        " share float8, kind varchar(3), weight positive)"
    )


def contract(conn: Connection, queue: str, kind: str = "public.item") -> tuple[int, Any] | None:
    found = conn.execute(
        "select version, schema, enforced from pgq.get_contract(%s, %s)", [queue, kind]
    ).fetchone()
    assert found is None or found[2] is False
    return found and found[:2]


@pytest.mark.usefixtures("item")
@pytest.mark.parametrize("form", ["row_json", "jsontriga"])
def test_every_row_fits_the_contract_of_its_table(conn: Connection, queue: str, form: str) -> None:
    conn.execute("select pgq.capture_table('item', %s, format => %s)", [queue, form])
    conn.execute(ROWS)
    conn.execute("update item set price = null; delete from item")
    version, schema = contract(conn, queue) or (0, {})
    assert version == 1
    check = jsonschema_rs.validator_for(schema)
    rows = conn.execute("select ev_data from pgq.event_template where ev_data <> '{}'").fetchall()
    assert len(rows) == 6
    for (data,) in rows:
        check.validate(json.loads(data))
        # The columns are in their order.
        assert schema["required"] == list(json.loads(data))
    for wrong in ({"day": None}, {"good": "yes"}, {"id": None}, {"note": 1}):
        assert not check.is_valid(json.loads(rows[0][0]) | wrong)
    assert schema["properties"]["price"]["format"] == "decimal(10,2)"
    assert schema["properties"]["made"]["format"] == "date-time"


@pytest.mark.parametrize("options", ["", ", exclude => '{secret}'"])
def test_each_alteration_is_a_version_with_the_next_change(
    conn: Connection, connect: Connect, queue: str, options: str
) -> None:
    conn.execute("create table t (id int primary key, note text, secret text)")
    conn.execute(f"select pgq.capture_table('t', %s{options})".encode(), [queue])
    writer = connect()
    seen = []
    for number, change in enumerate(
        [
            "alter table t rename id to n",
            "alter table t add extra numeric(5, 1)",
            "alter table t alter extra type numeric(6, 1)",
            "alter table t alter note set not null",
            "alter table t drop extra",
            "analyze t",
            "alter table t rename to u",
        ]
    ):
        conn.execute(change.encode())
        table = "u" if "to u" in change else "t"
        writer.execute(f"insert into {table} values ({number}, '')".encode())
        seen.append(contract(conn, queue, f"public.{table}"))
    assert [version for version, _ in filter(None, seen)] == [2, 3, 4, 5, 6, 6, 1]
    names = [schema["required"] for _, schema in filter(None, seen)]
    secret = [] if options else ["secret"]
    assert names[:2] == [["n", "note", *secret], ["n", "note", *secret, "extra"]]
    assert names[4:] == [["n", "note", *secret]] * 3
    # Nothing that captures the same columns is an alteration, and none is one that is rolled back.
    again = f"select pgq.capture_table('u', %s, replace => true{options})"
    conn.execute(again.encode(), [queue])
    with conn.transaction(force_rollback=True):
        conn.execute("alter table u add other int; insert into u (n, note) values (-1, '')")
        assert (contract(conn, queue, "public.u") or (0,))[0] == 2
    assert contract(conn, queue, "public.u") == seen[-1]


def test_a_change_never_waits_for_the_queue(conn: Connection, connect: Connect, queue: str) -> None:
    conn.execute("create table t (id int primary key)")
    conn.execute("select pgq.capture_table('t', %s)", [queue])
    conn.execute("alter table t add note text")
    holder = connect(autocommit=False)
    holder.execute("select from pgq.queue for update")
    conn.execute("set lock_timeout = '1s'; insert into t values (1)")
    assert (contract(conn, queue, "public.t") or (0,))[0] == 1
    holder.rollback()
    conn.execute("insert into t values (2)")
    assert (contract(conn, queue, "public.t") or (0,))[0] == 2
    assert ops.value(conn, "select count(*) from pgq.event_template") == 2


def test_a_contract_that_is_taken_over_meanwhile_gets_no_version(
    conn: Connection, connect: Connect, queue: str, calls: Calls
) -> None:
    conn.execute("create table t (id int primary key)")
    function = ops.value(conn, "select pgq.capture_table('t', %s)", queue)
    owner, other = connect(autocommit=False), connect()
    take_over = (
        "select pgq.set_contract(%s, 'public.t',"
        " (select schema from pgq.get_contract(%s, 'public.t')), enforced => true)"
    )
    owner.execute(take_over, [queue, queue])
    conn.execute("alter table t add note text")
    add: LiteralString = "select pgq._capture_contract(%s::regproc, true)"
    added = calls.blocked(ops.value, other, add, function)
    owner.commit()
    added.result()
    info: LiteralString = "select version, enforced, captured from pgq.get_contract_info(%s)"
    assert conn.execute(info, [queue]).fetchall() == [(1, True, False)]


def test_a_table_that_is_altered_often_has_its_newest_versions(
    conn: Connection, queue: str
) -> None:
    conn.execute("create table t (id int primary key)")
    conn.execute("select pgq.capture_table('t', %s)", [queue])
    conn.execute(
        "insert into pgq.contract (contract_queue, contract_type, contract_version,"
        " contract_schema, contract_compatibility, contract_enforced, contract_captured)"
        " select contract_queue, contract_type, n, '{}', 'none', false, true"
        " from pgq.contract, generate_series(2, 200) n"
    )
    conn.execute("alter table t add note text; insert into t values (1)")
    assert (contract(conn, queue, "public.t") or (0,))[0] == 201
    assert ops.value(conn, "select min(contract_version) from pgq.contract") == 102


def test_settings_of_the_session_do_not_change_a_trigger_function(
    conn: Connection, queue: str, connect: Connect
) -> None:
    conn.execute("create table t (id int primary key, note text)")
    conn.execute("select pgq.capture_table('t', %s)", [queue])
    version: LiteralString = (
        "select p.xmin::text from pg_proc p join pg_trigger t on tgfoid = p.oid"
        " where tgrelid = 't'::regclass order by 1 limit 1"
    )
    made = ops.value(conn, version)
    connect().execute("set quote_all_identifiers = on; insert into t values (1)")
    assert ops.value(conn, version) == made


@pytest.mark.usefixtures("item")
def test_what_is_no_json_or_forged_has_no_contract(
    conn: Connection, queue: str, make_role: MakeRole, as_role: AsRole
) -> None:
    conn.execute("select pgq.capture_table('item', %s, format => 'logutriga')", [queue])
    assert contract(conn, queue) is None
    # A role that may not insert, with a function that looks like a capture's.
    conn.execute("select pgq.restrict_queue(%s)", [queue])
    role = make_role("forger", "pgq_writer")
    conn.execute(f"create schema forger authorization {role}")
    options = {"queue": queue, "format": "row_json", "operations": ["insert"], "table_oid": 0}
    forger = as_role(role)
    forger.execute(
        f"create table forger.t (id int);"
        f"create function forger.f() returns trigger language plpgsql security definer as"
        f" $$-- pgq.capture {json.dumps(options)}\nbegin return null; end$$;"
        f"create trigger t after insert on forger.t execute function forger.f();"
    )
    add = "select pgq._capture_contract('forger.f'::regproc, true)"
    forger.execute(add)
    assert contract(conn, queue, "forger.t") is None
    conn.execute("select pgq.grant_queue(%s, '{insert}', %s)", [queue, role])
    conn.execute(add)
    assert contract(conn, queue, "forger.t") is not None
    # A trigger on another role's table captures nothing of it.
    conn.execute(f"grant trigger on item to {role}")
    forger.execute("create trigger t after insert on public.item execute function forger.f()")
    forger.execute("drop table forger.t")
    forger.execute(add)
    assert contract(conn, queue) is None
