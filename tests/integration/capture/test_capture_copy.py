"""Applying the events by key, in order, gives the table: for any sequence of statements."""

from __future__ import annotations

import contextlib
from typing import TypeAlias

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fixtures.fix_capture import changes, contents, follow
from tests.fixtures.fix_db import Connection

Statement: TypeAlias = str

KEYS = st.integers(0, 12)
VALUES = st.sampled_from(["'a'", "'b'", "null", "part::text", "v || 'x'"])

INSERTS = st.builds(
    lambda keys, action: (
        "insert into t (id, part) values "
        + ", ".join(f"({key}, {key % 2})" for key in keys)
        + f" on conflict {action}"
    ),
    st.lists(KEYS, min_size=1, max_size=6, unique=True),
    st.sampled_from(["do nothing", "(id, part) do update set v = coalesce(t.v, '') || 'c'"]),
)
UPDATES = st.builds(
    lambda key, part, value, low, high: (
        f"update t set id = {key}, part = {part}, v = {value} where id between {low} and {high}"
    ),
    st.sampled_from(["id", "id", "id + 100", "12 - id", "id - 1"]),
    st.sampled_from(["part", "part", "1 - part", "0"]),
    VALUES,
    KEYS,
    KEYS,
)
DELETES = st.builds(lambda key: f"delete from t where id % 3 = {key % 3}", KEYS)
OTHERS = st.sampled_from(
    [
        "truncate t",
        "alter table t add column if not exists extra int default 7",
        "alter table t drop column if exists extra",
        "update t_1 set v = 'direct'",
        "insert into t_0 (id, part) values (50, 0) on conflict do nothing",
    ]
)
STATEMENTS = st.lists(st.one_of(INSERTS, UPDATES, UPDATES, DELETES, OTHERS), max_size=15)

PLAIN = """
    create table t (id int, part int, v text, primary key (id, part));
    create view t_0 as select * from t where part = 0;
    create view t_1 as select * from t where part = 1;
"""
PARTITIONED = """
    create table t (id int, part int, v text, primary key (id, part)) partition by list (part);
    create table t_0 partition of t for values in (0);
    create table t_1 (v text, part int not null, id int not null);
    alter table t attach partition t_1 for values in (1);
"""


@pytest.mark.parametrize("shape", [PLAIN, PARTITIONED], ids=["plain", "partitioned"])
@pytest.mark.parametrize(
    ("options", "isolation"),
    [
        ("", "read committed"),
        ("", "repeatable read"),
        ("old_values => 'changed'", "read committed"),
        ("exclude => '{v}'", "read committed"),
    ],
)
def test_a_copy_that_follows_the_events_is_the_table(
    conn: Connection, shape: str, options: str, isolation: str
) -> None:
    conn.execute("select pgq.create_queue('q')")
    conn.execute(f"set default_transaction_isolation = '{isolation}'")

    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(STATEMENTS)
    def run(statements: list[Statement]) -> None:
        conn.execute("drop table if exists t cascade; truncate pgq.event")
        conn.execute(shape)
        conn.execute(f"select pgq.capture_table('t', 'q'{options and ', '}{options})")
        for statement in statements:
            # Then the statement has no effect, so it must have no event.
            with contextlib.suppress(psycopg.errors.UniqueViolation):
                conn.execute(statement)
        copied = follow([c for c in changes(conn) if c.op != "TRUNCATE" or c.table[1] == "t"])
        table = contents(conn, "t", "id", "part")
        assert copied.keys() == table.keys()
        if "exclude" not in options:
            for key, row in table.items():
                # Columns added with a default, or dropped, are no change of any row.
                both = row.keys() & copied[key].keys()
                assert {c: row[c] for c in both} == {c: copied[key][c] for c in both}

    run()
