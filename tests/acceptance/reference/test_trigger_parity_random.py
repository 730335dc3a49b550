"""Random tables, trigger arguments and DML: PgQ's row triggers and ours make the same events."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from tests.acceptance.reference.test_trigger_parity import Side, compare, sides

pytestmark = pytest.mark.reference

__all__ = ["sides"]  # the fixture

# By type: literals, some of them equal but written differently. None contains a semicolon.
VALUES = {
    "int": ["0", "-1", "2147483647"],
    "bigint": ["0", "9223372036854775807"],
    "smallint": ["1", "-32768"],
    "oid": ["1", "4294967295"],
    "boolean": ["t", "f"],
    "numeric": ["1.5", "1.50", "NaN", "-0.000001", "1e40"],
    "double precision": ["0", "-0", "0.1", "NaN", "Infinity", "1e-300"],
    "real": ["0", "-0", "1.1", "-Infinity"],
    "text": [
        *("", " ", "a", "A", "NULL", "it's", 'q"q', "b\\s", "(,)", "{}", "é €", "日本"),
        *("\x01\t\n", "a&b=c+d%e"),
    ],
    "varchar(20)": ["", "x", "two words"],
    "char(4)": ["a", "abcd", ""],
    "bpchar": ["a", "a  "],
    "name": ["n", "N n"],
    "bytea": ["", "\\xdeadbeef00"],
    "date": ["2020-02-29", "infinity", "0044-03-15 BC", "12345-01-01"],
    "timestamp": ["2020-01-02 03:04:05.678", "-infinity", "0044-03-15 01:02:03 BC", "2020-01-01"],
    "timestamptz": [
        "2020-07-01 12:00+02",
        "infinity",
        "1850-01-01 00:00+00",
        "0044-03-15 01:02:03+00 BC",
    ],
    "time": ["01:02:03.5", "24:00"],
    "timetz": ["01:02:03+02", "00:02:03+01"],
    "interval": ["1 mon", "30 days", "-1 day 02:03", "1 year 2 mon"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "json": ['{"a" : [1, null]}', '"s"', "null", ' {"b":"\\u00e9"}'],
    "jsonb": ['{"a":1.0}', '{"a":1.00}', '"s"'],
    "int[]": ["{}", "{1,NULL}", "{{1,2},{3,4}}", "[0:1]={7,8}"],
    "text[]": ['{a,"b c",NULL,"NULL"}', "{}"],
    "numeric[]": ["{1.0}", "{1.00}"],
    "numrange": ["[1.0,2)", "[1.00,2)", "empty"],
    "bit(3)": ["101"],
    "inet": ["1.2.3.4", "::1/64"],
    "money": ["12.5", "-1"],
    "point": ["(1,2)", "(-0,1e10)"],
    "pair": ['(1,"a b",)', '(1.0,"a b",)', "(,,)"],
    "mood": ["ok", "not ok"],
    "ratio": ["0.5", "0.50"],
}

TYPES = """
create type pair as (n numeric, t text, d date);
create type mood as enum ('ok', 'not ok');
create domain ratio as numeric check (value < 1)"""

NAMES = [
    *("a", "B", "c d", "order", "é", "x&y=z", "q'q", 'd"q', "p%s", "_x", "$y", "sel.ect", "id2"),
    *("time", "back\\s"),
]
SETTINGS = {
    "datestyle": ["ISO", "German", "SQL, DMY", "Postgres"],
    "intervalstyle": ["postgres", "iso_8601", "postgres_verbose"],
    "timezone": ["UTC", "Asia/Kolkata", "America/St_Johns", "Africa/Monrovia"],
    "bytea_output": ["hex", "escape"],
    "extra_float_digits": ["1", "0", "-10"],
}
CONDITIONS = ["id > 1", "id is not null and id % 2 = 1", "(select false)"]
FIELDS = ["ev_type", "ev_data", "ev_extra1", "ev_extra2", "ev_extra3", "ev_extra4"]
EXPRESSIONS = [
    *("id", "id * 1.50", "null", "'id'", "array[id]", "id > 1", "date '2020-01-01' + id"),
]
MAGIC = ["_pgq_ev_type", "_pgq_ev_data", "_pgq_ev_extra1", "_pgq_ev_extra4"]


@dataclass(frozen=True)
class Column:
    name: str
    type: str

    @property
    def quoted(self) -> str:
        return sql.Identifier(self.name).as_string()


def literal(column: Column, value: str | None) -> str:
    if value is None:
        return "null"
    # As an escape string in any case: what the literal looks like must not depend on a setting.
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'::{column.type}"


@st.composite
def columns(draw: st.DrawFn) -> list[Column]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=12, unique=True))
    names += draw(st.lists(st.sampled_from(MAGIC), max_size=1))
    return [Column(name, draw(st.sampled_from(sorted(VALUES)))) for name in names]


@st.composite
def arguments(draw: st.DrawFn, table: list[Column]) -> str:
    some = st.lists(
        st.sampled_from([c.name for c in table if "," not in c.name]), max_size=3, unique=True
    )
    chosen: list[str] = []
    if draw(st.booleans()):
        chosen.append("pkey=" + ",".join(["id", *draw(some)]))
    if draw(st.booleans()):
        chosen.append("ignore=" + ",".join(draw(some)))
    if draw(st.booleans()):
        chosen.append("backup")
    if draw(st.integers(0, 3)) == 0:
        chosen.append("when=" + draw(st.sampled_from(CONDITIONS)))
    if draw(st.integers(0, 3)) == 0:
        field = draw(st.sampled_from(FIELDS))
        chosen.append(f"{field}={draw(st.sampled_from(EXPRESSIONS))}")
    return "".join(", " + sql.Literal(argument).as_string() for argument in chosen)


@st.composite
def scripts(draw: st.DrawFn) -> str:
    """Statements that create a table with triggers and then change its rows."""
    table = draw(columns())
    name = sql.Identifier(draw(st.sampled_from(["t1", "T 1", "order", 'é"t']))).as_string()
    definition = ", ".join(f"{c.quoted} {c.type}" for c in table)
    primary = draw(st.sampled_from(["id int primary key, ", "id int, "]))
    timing = draw(st.sampled_from(["after", "before"]))
    statements = [
        TYPES.strip(),
        f"create table {name} ({primary}{definition})",
        f"select t($t${name}$t$, $t${draw(arguments(table))}$t$, '{timing}')",
    ]
    chosen = draw(st.lists(st.sampled_from(sorted(SETTINGS)), unique=True, max_size=3))
    statements += [f"set {key} = '{draw(st.sampled_from(SETTINGS[key]))}'" for key in chosen]
    for number in range(1, draw(st.integers(2, 4))):
        values = [literal(c, draw(st.none() | st.sampled_from(VALUES[c.type]))) for c in table]
        statements.append(f"insert into {name} values ({number}, {', '.join(values)})")
    statements += [draw(changes(name, table)) for _ in range(draw(st.integers(1, 6)))]
    return ";\n".join(statements)


@st.composite
def changes(draw: st.DrawFn, name: str, table: list[Column]) -> str:
    kind = draw(st.sampled_from(["update", "update", "update", "delete", "alter"]))
    if kind == "update":
        changed = draw(st.lists(st.sampled_from(table), min_size=1, max_size=3, unique=True))
        assignments = [
            f"{c.quoted} = {literal(c, draw(st.none() | st.sampled_from(VALUES[c.type])))}"
            for c in changed
        ]
        if draw(st.integers(0, 5)) == 0:
            assignments.append(f"id = {draw(st.integers(1, 2))}")
        return f"update {name} set {', '.join(assignments)} where id <= {draw(st.integers(1, 3))}"
    if kind == "delete":
        return f"delete from {name} where id = {draw(st.integers(1, 3))}"
    column = draw(st.sampled_from(table))
    alterations = [
        f"drop column {column.quoted}",
        f"rename column {column.quoted} to renamed",
        f"alter column {column.quoted} type text",
        "add column added date default '2020-01-01'",
    ]
    return f"alter table {name} {draw(st.sampled_from(alterations))}"


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(script=scripts())
def test_random_changes_make_identical_events(sides: tuple[Side, Side], script: str) -> None:
    compare(*sides, script)
