"""pgq_coop has the functions of PgQ's, and answers what that answered to the same statements."""

from __future__ import annotations

import ast
from pathlib import Path

import psycopg
import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection

MEMBER = "i_queue_name text, i_consumer_name text, i_subconsumer_name text"
SIZE = "i_min_lag interval, i_min_count integer, i_min_interval interval"
DEAD = "i_dead_interval interval"
#: Of PgQ 3.5: names, arguments and results.
FUNCTIONS = {
    ("register_subconsumer", MEMBER, "integer"),
    ("unregister_subconsumer", f"{MEMBER}, i_batch_handling integer", "integer"),
    ("next_batch", MEMBER, "bigint"),
    ("next_batch", f"{MEMBER}, {DEAD}", "bigint"),
    ("next_batch_custom", f"{MEMBER}, {SIZE}", "bigint"),
    ("next_batch_custom", f"{MEMBER}, {SIZE}, {DEAD}", "bigint"),
    ("finish_batch", "i_batch_id bigint", "integer"),
    ("version", "", "text"),
}


def scripts() -> dict[str, list[tuple[str, str]]]:
    """Scenarios by name: statements, each with its answer; ``tick`` has none."""
    found: dict[str, list[tuple[str, str]]] = {}
    text = Path(__file__).with_name("pgq_coop_answers.sql").read_text()
    for block in text.split("\n\n")[1:]:
        title, *lines = block.splitlines()
        script = found.setdefault(title.removeprefix("-- "), [])
        for line in lines:
            if line.startswith("--> "):
                script[-1] = (script[-1][0], line.removeprefix("--> "))
            else:
                script.append((line, ""))
    return found


def answer(conn: Connection, statement: str) -> object:
    try:
        cursor = conn.execute(statement.encode())
    except psycopg.Error:
        return "error"
    return cursor.fetchall() if cursor.description else cursor.rowcount


def test_the_functions_of_pgq_are_there(conn: Connection) -> None:
    rows = conn.execute(
        "select proname, pg_get_function_arguments(oid), pg_get_function_result(oid)"
        "  from pg_proc where pronamespace = 'pgq_coop'::regnamespace"
    ).fetchall()
    assert set(rows) >= FUNCTIONS
    assert ops.value(conn, "select pgq_coop.version() = pgq.version()")


@pytest.mark.parametrize("name", scripts())
def test_the_same_statements_get_the_same_answers(conn: Connection, name: str) -> None:
    for statement, expected in scripts()[name]:
        if statement == "tick":
            ops.tick(conn, "q")
            continue
        wanted = expected if expected == "error" else ast.literal_eval(expected)
        assert answer(conn, statement) == wanted, statement
