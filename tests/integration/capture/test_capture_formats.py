"""Formats jsontriga and logutriga: the bytes that PgQ's own row triggers write."""

from __future__ import annotations

import pytest

from tests.fixtures.fix_capture import last_event, raw_events
from tests.fixtures.fix_db import Connect, Connection

pytestmark = [pytest.mark.reference, pytest.mark.smoke]

COLUMNS = {
    "b": ("bool", ["true", "false"]),
    "i2": ("int2", ["-1"]),
    "i4": ("int4", ["2147483647"]),
    "i8": ("int8", ["-9223372036854775808"]),
    "n": ("numeric", ["1.50", "'NaN'"]),
    "r": ("float4", ["1.1", "'infinity'"]),
    "f": ("float8", ["0.1", "1e300"]),
    "t": ("text", ["''", "e'q\"\\\\/\\n\\t\\r\\b\\f\\x01\\x1f\\x7f é ~-_.!*()&=+%?'"]),
    "v": ("varchar(9)", ["'v w'"]),
    "c": ("char(5)", ["'ab'"]),
    "c1": ('"char"', ["'x'"]),
    "na": ("name", ["'nn'"]),
    "o": ("oid", ["16384"]),
    "ts": ("timestamp", ["'2020-02-03 04:05:06.789'", "'0044-03-15 12:00 BC'", "'infinity'"]),
    "tz": ("timestamptz", ["'2020-06-01 12:00+00'", "'-infinity'"]),
    "d": ("date", ["'2020-02-03'", "'0044-03-15 BC'"]),
    "ti": ("time", ["'12:00:00.5'"]),
    "iv": ("interval", ["'1 day 2:03'"]),
    "by": ("bytea", ["'\\xdead00'"]),
    "j": ("json", ["""'{"a": [1, "x"]}'"""]),
    "jb": ("jsonb", ["""'{"a": [1, "x"]}'"""]),
    "u": ("uuid", ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"]),
    "ip": ("inet", ["'10.0.0.1'", "'10.0.0.0/8'"]),
    "bi": ("bit(3)", ["'101'"]),
    "ar": ("int[]", ["'{1,null,3}'", "'{}'"]),
    "ta": ("text[]", ["""array['a b', 'c"d', null]"""]),
    "rg": ("int4range", ["'[1,3)'"]),
    "en": ("mood", ["'so \"so\"'"]),
    "dm": ("small", ["3"]),
    "dt": ("moment", ["'2020-01-01 00:00+00'"]),
    "co": ("pair", ["row(1, 'a b')", "row(null, null)"]),
    "W k=&": ("text", ["'w'"]),
}

TYPES = """
    create type mood as enum ('so "so"');
    create domain small as int;
    create domain moment as timestamptz;
    create type pair as (x int, y text);
"""

SETTINGS = [
    "set datestyle = 'ISO'",
    (
        "set datestyle = 'German'; set timezone = 'Europe/Berlin'; set bytea_output = 'escape';"
        "set intervalstyle = 'iso_8601'; set extra_float_digits = 0;"
    ),
]


def table_sql(schema: str, key: str) -> str:
    columns = ", ".join(f'"{name}" {kind}' for name, (kind, _) in COLUMNS.items())
    return f"create table {schema} (id int, {columns}{key and ', '}{key})"


def row_statements(table: str) -> list[str]:
    """Rows with each of the values, and then changes of them."""
    longest = max(len(values) for _, values in COLUMNS.values())
    rows = [
        ", ".join(values[n % len(values)] for _, values in COLUMNS.values()) for n in range(longest)
    ]
    return [
        *[f"insert into {table} values ({n}, {row})" for n, row in enumerate(rows)],
        f"insert into {table} (id) values (100), (101)",
        f"update {table} set t = 'new', b = not b where id < 100",
        f"update {table} set id = id where id = 100",
        f"update {table} set v = 'only' where id >= 100",
        f"delete from {table} where id in (0, 100)",
        f"delete from {table} where id in (0, 100)",
        f"truncate {table}",
    ]


CASES = [
    # (key, option of the row trigger, options of the capture)
    ("primary key (id)", "", ""),
    ('primary key ("W k=&", id)', "'backup'", "old_values => 'row'"),
    ("", "'pkey=id,i4'", "key => '{id,i4}'"),
    ("primary key (id)", "'ignore=v,t'", "exclude => '{v,t}'"),
    ("primary key (id)", "'ignore=v', 'backup'", "exclude => '{v}', old_values => 'row'"),
]


@pytest.mark.parametrize(("key", "trigger_options", "capture_options"), CASES)
@pytest.mark.parametrize("form", ["jsontriga", "logutriga"])
def test_events_are_byte_for_byte_those_of_pgqs_row_trigger(
    connect: Connect,
    conn: Connection,
    pgq_reference_dsn: str,
    form: str,
    key: str,
    trigger_options: str,
    capture_options: str,
) -> None:
    theirs = connect(pgq_reference_dsn)
    key = key.replace('"W k=&", id', 'id, "W k=&"') if "W k" in key else key
    for database in (conn, theirs):
        database.execute("select pgq.create_queue('q')")
        database.execute(TYPES)
        database.execute(table_sql("odd", key))
        if "W k" in key:
            database.execute("alter table odd alter \"W k=&\" set default 'w'")
    conn.execute(
        f"select pgq.capture_table('odd', 'q', format => '{form}'"
        f"{capture_options and ', '}{capture_options})"
    )
    arguments = f"'q'{trigger_options and ', '}{trigger_options}"
    theirs.execute(
        f"create trigger a after insert or update or delete on odd for each row"
        f" execute function pgq.{form}({arguments});"
        # It takes no options here, so it can't be compared where they would show in ev_type.
        f"create trigger b after truncate on odd execute function pgq.{form}('q')"
    )
    for settings in SETTINGS:
        before = [last_event(database) for database in (conn, theirs)]
        for database in (conn, theirs):
            database.execute(settings)
            for statement in row_statements("odd"):
                database.execute(statement)
        ours = raw_events(conn, before[0])
        assert len(ours) >= 9
        without_truncate = slice(None, -1 if "pkey" in trigger_options else None)
        assert ours[without_truncate] == raw_events(theirs, before[1])[without_truncate]


@pytest.mark.parametrize("form", ["jsontriga", "logutriga"])
def test_names_that_need_quotes_and_dropped_columns_are_the_same(
    connect: Connect, conn: Connection, pgq_reference_dsn: str, form: str
) -> None:
    theirs = connect(pgq_reference_dsn)
    for database in (conn, theirs):
        database.execute("select pgq.create_queue('q')")
        database.execute(
            'create schema "S.x"; create table "S.x"."T""y" (gone int, "a ""b\\" int, "é%s" text,'
            ' primary key ("é%s", "a ""b\\"));'
            'alter table "S.x"."T""y" drop column gone'
        )
    conn.execute("""select pgq.capture_table('"S.x"."T""y"', 'q', format => %s)""", [form])
    theirs.execute(
        'create trigger a after insert or update or delete on "S.x"."T""y" for each row'
        f" execute function pgq.{form}('q')"
    )
    for database in (conn, theirs):
        database.execute("""insert into "S.x"."T""y" values (1, 'x'); delete from "S.x"."T""y" """)
    assert raw_events(conn) == raw_events(theirs)
