"""pgq_node has the functions, tables and grants of PgQ's, and answers what that answers."""

from __future__ import annotations

from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

from tests.fixtures.fix_db import Connect, Connection

pytestmark = pytest.mark.reference

#: What there is only in ours: nodes that were taken over, copies without a superuser.
OURS = {
    *(
        "advance_subscriber",
        "begin_copy",
        "fence_root",
        "get_epoch",
        "get_rest_events",
        "learn_epoch",
        "leave_gap",
    ),
    "take_delayed",
}
FUNCTIONS: LiteralString = """
    select proname, pg_get_function_arguments(oid), pg_get_function_result(oid),
           array(select a.grantee::regrole::text from aclexplode(proacl) as a
                  where a.grantee not in (0, proowner) order by 1),
           exists (select from aclexplode(proacl) as a where a.grantee = 0)
      from pg_proc
     where pronamespace = 'pgq_node'::regnamespace
       and proname !~ '^_'
"""
COLUMNS: LiteralString = """
    select attrelid::regclass::text, attnum, attname, format_type(atttypid, null),
           array(select a.grantee::regrole || ' ' || a.privilege_type
                   from (select * from aclexplode(relacl)
                         union all
                         select * from aclexplode(attacl)) as a
                  where a.grantee <> relowner
                    and a.privilege_type in ('SELECT', 'INSERT', 'UPDATE', 'DELETE') order by 1)
      from pg_attribute
      join pg_class on pg_class.oid = attrelid
     where relnamespace = 'pgq_node'::regnamespace
       and relkind = 'r'
       and relname not in ('root_epoch', 'handed_over')
       and attnum > 0
       -- here only functions show it, for it may quote an event
       and attname <> 'cur_error'
"""
EAGER: LiteralString = """
    update pgq.queue set queue_ticker_max_lag = '0', queue_ticker_idle_period = '0'
     where not queue_external_ticker
"""


def scripts() -> dict[str, list[tuple[str, str]]]:
    """Scenarios by name: statements, each with our answer if that differs."""
    text = Path(__file__).with_name("pgq_node_calls.sql").read_text()
    found = {}
    for block in text.split("\n\n")[1:]:
        title, *lines = block.splitlines()
        calls = [line.partition(" -- ") for line in lines]
        found[title.removeprefix("-- ")] = [(call, ours) for call, _, ours in calls]
    return found


@pytest.fixture
def theirs(pgq_reference_dsn: str, connect: Connect) -> Connection:
    conn = connect(pgq_reference_dsn)
    conn.execute("create extension pgq_node")
    return conn


def answer(conn: Connection, statement: str) -> object:
    if statement == "tick":
        conn.execute(EAGER)
        statement = "select pgq.ticker('q')"
    try:
        return conn.execute(statement.encode()).fetchall()
    except psycopg.Error:
        return "error"


def test_functions_tables_and_grants_are_those_of_pgq(node: Connection, theirs: Connection) -> None:
    found = sorted(node.execute(FUNCTIONS), key=repr)
    assert {name for name, *_ in found} >= OURS
    expected = sorted(theirs.execute(FUNCTIONS), key=repr)
    assert [row for row in found if row[0] not in OURS] == expected
    assert sorted(node.execute(COLUMNS), key=repr) == sorted(theirs.execute(COLUMNS), key=repr)


@pytest.mark.parametrize("name", scripts())
def test_the_same_statements_get_the_same_answers(
    node: Connection, theirs: Connection, name: str
) -> None:
    for statement, different in scripts()[name]:
        found, expected = answer(node, statement), answer(theirs, statement)
        if different:
            assert different.partition(":")[0] in str(found), statement
            assert found != expected, statement
        else:
            assert found == expected, statement
