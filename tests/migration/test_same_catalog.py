"""However the schema gets into a database, it is the same schema; with pgq_node, too."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from pgqpy import schema
from pgqpy.embedded import Server
from tests.fixtures.fix_db import Connect, Connection

from .catalog import catalog, data

pytestmark = [pytest.mark.smoke, pytest.mark.slow]

Install = Callable[[str], None]


@pytest.fixture
def install(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> Install:
    """One of the ways to install, into the database with the given connection string."""

    def by_migration(dsn: str) -> None:
        schema.migrate(dsn)

    def by_printed_migration(dsn: str) -> None:
        execute(dsn, schema.upgrade_sql())

    def by_migration_again(dsn: str) -> None:
        schema.migrate(dsn)
        schema.downgrade(dsn, "base")
        schema.migrate(dsn)
        schema.migrate(dsn)

    def by_single_file(dsn: str, *, node: bool = False) -> None:
        file = tmp_path / "pgq.sql"
        file.write_text(schema.single_file(node=node), encoding="utf-8")
        subprocess.run([server.bin_dir / "psql", "-qf", file, dsn], check=True)

    def by_extension(dsn: str) -> None:
        request.getfixturevalue("extension_installed")
        execute(dsn, "create extension pgqpy")

    def by_node_migration(dsn: str) -> None:
        schema.migrate(dsn, node=True)

    def by_node_migration_later(dsn: str) -> None:
        for node in (False, True, False):
            schema.migrate(dsn, node=node)

    def by_printed_node_migration(dsn: str) -> None:
        execute(dsn, schema.upgrade_sql(node=True))

    def by_node_file(dsn: str) -> None:
        by_single_file(dsn)
        by_single_file(dsn, node=True)
        by_single_file(dsn, node=True)

    def by_node_extension(dsn: str) -> None:
        request.getfixturevalue("extension_installed")
        execute(dsn, "create extension pgqpy_node cascade")

    ways = {
        "migration": by_migration,
        "printed migration": by_printed_migration,
        "migration again": by_migration_again,
        "single file": by_single_file,
        "extension": by_extension,
        "node migration": by_node_migration,
        "node migration later": by_node_migration_later,
        "printed node migration": by_printed_node_migration,
        "node file": by_node_file,
        "node extension": by_node_extension,
    }
    way: Install = ways[request.param]
    return way


def execute(dsn: str, script: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(script.encode())


@pytest.mark.parametrize(
    "install",
    ["migration", "printed migration", "migration again", "single file", "extension"],
    indirect=True,
)
def test_every_way_to_install_gives_the_same_catalog(
    install: Install, conn: Connection, empty_dsn: str, connect: Connect
) -> None:
    install(empty_dsn)
    other = connect(empty_dsn)
    expected, found = catalog(conn), catalog(other)
    for kind in expected:
        assert found[kind] == expected[kind], kind
    assert data(other) == data(conn)


@pytest.mark.parametrize(
    "install",
    [
        "node migration",
        "node migration later",
        "printed node migration",
        "node file",
        "node extension",
    ],
    indirect=True,
)
def test_every_way_to_install_pgq_node_gives_the_same_catalog(
    install: Install, node: Connection, empty_dsn: str, connect: Connect
) -> None:
    install(empty_dsn)
    other = connect(empty_dsn)
    assert [row for row in catalog(node)["relation"] if row[0] == "pgq_node"] != []
    assert catalog(other) == catalog(node)
    assert data(other) == data(node)


def test_the_comparison_sees_a_difference(
    conn: Connection, empty_dsn: str, connect: Connect
) -> None:
    schema.migrate(empty_dsn)
    other = connect(empty_dsn)
    changes = {
        "relation": "grant truncate on pgq.queue to pgq_reader",
        "column": "alter table pgq.queue alter queue_ticker_max_count set default 7",
        "constraint": "alter table pgq.consumer add constraint c check (co_id > 0)",
        "index": "create index on pgq.consumer (co_id)",
        "sequence": "alter sequence pgq.batch_id_seq increment 2",
        "function": "alter function pgq.version() cost 77",
        "trigger": "create trigger t before insert on pgq.consumer"
        " for each row execute function suppress_redundant_updates_trigger()",
    }
    for kind, change in changes.items():
        before = catalog(other)[kind]
        other.execute(change.encode())
        assert catalog(other)[kind] != before, kind
    assert catalog(other)["schema"] == catalog(conn)["schema"]
