"""PgQ's row triggers and ours make byte-identical events for the same DML.

Each script runs on Debian's PgQ and on our schema, statement by statement; after
each, the events it made are compared, field by field, and whether it failed.
Messages and SQLSTATEs are ours and differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from pgqpy.embedded import Server
from tests.fixtures.fix_db import create_database, drop_database

pytestmark = pytest.mark.reference

QUEUE = "q"

SCRIPTS = Path(__file__).parent / "trigger_parity"
HELPERS = (SCRIPTS / "helpers.sql").read_text()
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.sql") if path.stem != "helpers")

# Features that some builds of PostgreSQL lack: statements that detect them.
OPTIONAL = {
    "xml": "select '<a/>'::xml",
    "nondeterministic_collation": "create collation probe"
    " (provider = icu, locale = 'und', deterministic = false)",
    "citext": "create extension citext schema public",
}

# Widths around the limits of each way there is to take a row apart.
WIDTHS = [1, 15, 16, 17, 63, 64, 65, 100, 300]
WIDE_TYPES = ["int", "text", "bool", "numeric", "timestamptz", "date", "json", "int[]"]
WIDE_VALUES = [
    "5",
    "'a \"q\" , (x)'",
    "true",
    "1.50",
    "'2020-01-01 12:00'",
    "'2020-01-01'",
    "'{\"a\":[1,2]}'",
    "'{1,2}'",
]


@dataclass(frozen=True)
class Outcome:
    """The result of a statement: whether it failed, and the events it made."""

    statement: str
    failed: bool
    events: list[tuple[str | None, ...]]


class Side:
    """One of the two schemas; statements run on `conn`, events are read on another connection."""

    def __init__(self, dsn: str) -> None:
        self.conn = psycopg.connect(dsn, autocommit=True)
        self._reader = psycopg.connect(dsn, autocommit=True)
        self.conn.execute("select pgq.create_queue(%s)", [QUEUE])
        self.conn.execute("set client_min_messages = warning")
        self._seen = 0

    def close(self) -> None:
        self.conn.close()
        self._reader.close()

    def start_over(self) -> None:
        """An empty schema ``t``, first on the search_path."""
        self.conn.execute("reset all")
        self.conn.execute("set client_min_messages = warning")
        self.conn.execute("set timezone = 'UTC'")
        self.conn.execute("drop schema if exists t cascade")
        self.conn.execute("create schema t")
        self.conn.execute("set search_path = t, public")
        self.conn.execute(HELPERS)

    def run(self, statement: str) -> Outcome:
        failed = False
        try:
            self.conn.execute(statement.encode())
        except psycopg.Error:
            failed = True
        rows = self._reader.execute(
            "select ev_id, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
            " from pgq.event_template where ev_id > %s order by ev_id",
            [self._seen],
        ).fetchall()
        if rows:
            self._seen = rows[-1][0]
        return Outcome(statement, failed, [row[1:] for row in rows])


def compare(theirs: Side, ours: Side, script: str) -> int:
    """Run a script on both; returns the number of events."""
    total = 0
    for side in (theirs, ours):
        side.start_over()
    for statement in filter(None, map(str.strip, script.split(";\n"))):
        expected = theirs.run(statement)
        assert ours.run(statement) == expected
        total += len(expected.events)
    return total


@pytest.fixture(scope="module")
def sides(reference_server: Server, server: Server) -> Iterator[tuple[Side, Side]]:
    """PgQ and ours; each script begins with an empty schema."""
    databases = [
        (reference_server, create_database(reference_server, "template0")),
        (server, create_database(server)),
    ]
    with psycopg.connect(reference_server.dsn_of(databases[0][1])) as conn:
        conn.execute("create extension pgq")
    theirs, ours = (Side(where.dsn_of(name)) for where, name in databases)
    yield theirs, ours
    for side, (where, name) in zip((theirs, ours), databases, strict=True):
        side.close()
        drop_database(where, name)


@pytest.mark.parametrize("name", NAMES)
def test_events_are_identical(name: str, sides: tuple[Side, Side]) -> None:
    events = compare(*sides, (SCRIPTS / f"{name}.sql").read_text())
    assert (events > 0) == (name != "wrong_arguments")


@pytest.mark.parametrize("name", OPTIONAL)
def test_events_are_identical_for_optional_features(
    name: str, server: Server, sides: tuple[Side, Side]
) -> None:
    for side in sides:
        try:
            side.conn.execute(OPTIONAL[name].encode())
        except psycopg.errors.FeatureNotSupported:
            pytest.skip(f"PostgreSQL {server.version} here is built without it")
    assert compare(*sides, (SCRIPTS / "optional" / f"{name}.sql").read_text()) > 0


@pytest.mark.parametrize("width", WIDTHS)
def test_events_of_wide_tables_are_identical(width: int, sides: tuple[Side, Side]) -> None:
    types = [WIDE_TYPES[n % len(WIDE_TYPES)] for n in range(width - 1)]
    columns = "".join(f", c{n} {type_}" for n, type_ in enumerate(types))
    values = "".join(f", {value}" for value in WIDE_VALUES)
    script = f"""
        create table w (id int primary key{columns});
        select t('w', $$, 'backup'$$);
        insert into w values (1{values if width > 8 else ""});
        insert into w (id) values (2);
        update w set id = id;
        """
    if width > 2:
        script += """
        update w set c0 = 7, c1 = 'x&y';
        update w set c0 = 7, c1 = null where id = 1;
        select t('w', $$, 'ignore=c0'$$);
        insert into w (id, c1) values (3, 'x');
        """
    assert compare(*sides, script + "delete from w;") > 0
