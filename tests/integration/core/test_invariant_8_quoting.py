"""Everything dynamic is quoted; no function can be made to read or write outside the queue it was
called for.
"""

from __future__ import annotations

import psycopg
import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection

pytestmark = pytest.mark.smoke

NASTY_NAMES = [
    """it's "quoted"; drop schema pgq cascade; --""",
    "back\\slash\\' and %s %I {} $1 $$",
    "pgq.queue",
    "line\nbreak\ttab",
    "ünïcödé ☃ 漢字",
    " ",
    "x" * 255,
]


@pytest.mark.one_database
@pytest.mark.parametrize("name", NASTY_NAMES)
def test_any_name_works_for_a_queue_a_consumer_and_a_cursor(conn: Connection, name: str) -> None:
    assert ops.value(conn, "select pgq.create_queue(%s)", name) == 1
    assert ops.value(conn, "select pgq.create_queue(%s)", name) == 0
    for parameter, setting in (("ticker_max_count", "10"), ("rotation_period", "0")):
        conn.execute("select pgq.set_queue_config(%s, %s, %s)", [name, parameter, setting])
    ops.register(conn, name, name)
    ops.insert(conn, name, name)
    ops.copy(conn, ops.value(conn, "select pgq.current_event_table(%s)", name), ["copied"])
    ops.tick(conn, name)
    batch = ops.next_batch(conn, name, name)
    assert ops.payloads(conn, batch) == [name, "copied"]
    with conn.transaction():
        rows = conn.execute(
            "select ev_data from pgq.get_batch_cursor(%s, %s, 10)", [batch, name[:63]]
        ).fetchall()
    assert rows == [(name,), ("copied",)]
    assert ops.value(conn, "select pgq.batch_retry(%s, -1)", batch) == 2
    ops.finish(conn, batch)
    info = conn.execute("select queue_name from pgq.get_queue_info(%s)", [name]).fetchall()
    assert info == [(name,)]
    seen = conn.execute("select * from pgq.get_consumer_info(%s, %s)", [name, name]).fetchall()
    assert [row[:2] for row in seen] == [(name, name)]
    assert ops.rotate(conn, name)
    assert ops.value(conn, "select pgq.unregister_consumer(%s, %s)", name, name) == 1
    assert ops.value(conn, "select pgq.drop_queue(%s)", name) == 1


def cursor(conn: Connection, batch: int, condition: str) -> list[str]:
    """The payloads that a cursor with this condition gives."""
    rows = conn.execute(
        "select ev_data from pgq.get_batch_cursor(%s, 'x', 10, %s)", [batch, condition]
    )
    return [data for (data,) in rows]


NO_CONDITIONS = [
    "true) union select 0, null, 0, 0, rolname, null, null, null, null, null from pg_authid --",
    "ev_id in (select 1)",
    "exists (table pg_authid)",
    "true; drop schema pgq cascade",
    "true order by 2",
    "true limit 1",
    "true /* hidden",
    "ev_data = $$x$$",
    "ev_data = E'a\\'' or true",
    "ev_data = E'a\\'' union select null from pg_authid where 'x' = 'y'",
    "(true",
    "true) or (true",
    "ev_data = 'open",
    "ev_data = E'\\' || ' or (select true) or true /*'*/",
    "ev_data = U&'x\\0027'",
    'ev_data = u&"x" or true',
    "ev_data ~ '[' -- ' or true",
    "1E'\\' or ' is not null --'",
    "ev_data = $1",
    "größe(ev_data)",
    "",
]


def test_the_condition_of_a_cursor_cannot_leave_its_parentheses(
    conn: Connection, queue: str, subtests: pytest.Subtests
) -> None:
    ops.register(conn, queue, "c")
    batch = ops.open_batch(conn, queue, "c", "event")
    for condition in NO_CONDITIONS:
        with subtests.test(condition), ops.refused("PQ011"), conn.transaction():
            cursor(conn, batch, condition)
    # Not, by some accident of name resolution, a variable of the function.
    with pytest.raises(psycopg.errors.UndefinedColumn), conn.transaction():
        cursor(conn, batch, "i_batch_id > 0")


def test_the_condition_of_a_cursor_may_be_what_conditions_are(conn: Connection, queue: str) -> None:
    conn.execute(
        "create function public.is_wanted(text) returns boolean language sql"
        " as $$ select $1 = 'plain' $$"
    )
    ops.register(conn, queue, "c")
    batch = ops.open_batch(conn, queue, "c", "it's select; -- $$ \" (", "plain")
    for condition, found in (
        ("ev_data = 'it''s select; -- $$ \" ('", ["it's select; -- $$ \" ("]),
        ("ev_type = 'test' and (ev_data like 'plain%' or ev_id < 0)", ["plain"]),
        ("lower(ev_data) in ('plain', 'x') and ev_extra1 is null", ["plain"]),
        (r"ev_data ~ '^\w+$' and ev_id >= .5e0 and - 1 < (array[1, 2])[1]", ["plain"]),
        ("events.\"ev_data\" = 'plain' and ev_time::timestamptz > '2001-01-01'\n", ["plain"]),
        # A function of the caller's own.
        ("is_wanted(ev_data)", ["plain"]),
    ):
        with conn.transaction():
            assert cursor(conn, batch, condition) == found, condition


def test_a_backslash_that_may_be_an_escape_is_refused(conn: Connection, queue: str) -> None:
    conn.execute("set standard_conforming_strings = off; set backslash_quote = on")
    with ops.refused("PQ011"):
        conn.execute("select pgq.check_event_condition('ev_data = '||chr(39)||chr(92)||chr(39))")


def test_the_names_of_a_queues_tables_cannot_be_changed_into_sql(
    conn: Connection, connect: Connect, queue: str
) -> None:
    """Functions of the owner paste them into their statements; pgq_admin must not rule it.

    Nor which functions the ticker's role runs.
    """
    admin = connect(autocommit=True)
    admin.execute("set role pgq_admin")
    names = ("queue_data_pfx", "queue_event_seq", "queue_tick_seq", "queue_slot0")
    for column in (*names, "queue_extra_maint"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            admin.execute(f"update pgq.queue set {column} = {column}".encode())
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        admin.execute("insert into pgq.queue select * from pgq.queue")
    # Texts that PgQ's tools do write:
    admin.execute(
        "update pgq.queue set queue_ticker_paused = false, queue_disable_insert = false,"
        " queue_external_ticker = false, queue_ticker_max_lag = '1 s', queue_ticker_max_count = 1,"
        " queue_ticker_idle_period = '1 s', queue_rotation_period = '1 h',"
        " queue_per_tx_limit = null where queue_name = %s",
        [queue],
    )
