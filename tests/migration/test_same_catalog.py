"""However the schema gets into a database, it is the same schema; with pgq_node, too."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgqpy import schema
from pgqpy.embedded import Server
from tests.fixtures.fix_db import Connection, create_database, drop_database

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


@cache
def expected(server: Server, *, node: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The catalog and the data of the tests' databases."""
    name = create_database(server)
    with psycopg.connect(server.dsn_of(name), autocommit=True) as conn:
        if node:
            conn.execute(schema.node_sql().encode())
        found = catalog(conn), data(conn)
    drop_database(server, name)
    return found


@pytest.mark.parametrize(
    ("install", "node"),
    [
        ("migration", False),
        ("printed migration", False),
        ("migration again", False),
        ("single file", False),
        ("extension", False),
        ("node migration", True),
        ("node migration later", True),
        ("printed node migration", True),
        ("node file", True),
        ("node extension", True),
    ],
    indirect=["install"],
)
def test_every_way_to_install_gives_the_same_catalog(
    install: Install, node: bool, server: Server, empty_dsn: str, other: Connection
) -> None:
    install(empty_dsn)
    found, (of_all, rows) = catalog(other), expected(server, node=node)
    assert node is any(row[0] == "pgq_node" for row in found["relation"])
    for kind in of_all:
        assert found[kind] == of_all[kind], kind
    assert data(other) == rows


@pytest.mark.any_pg
def test_the_comparison_sees_a_difference(
    server: Server, empty_dsn: str, other: Connection
) -> None:
    schema.migrate(empty_dsn)
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
    before = catalog(other)
    for kind, change in changes.items():
        other.execute(change.encode())
        found = catalog(other)
        assert found[kind] != before[kind], kind
        before = found
    assert before["schema"] == expected(server, node=False)[0]["schema"]
