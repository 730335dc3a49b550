"""CREATE EXTENSION pgqpy: a dump carries the data, and the extension looks after itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg
import pytest

from pgqpy import schema
from pgqpy.embedded import Server
from pgqpy.schema import SchemaError
from tests.fixtures.fix_db import Connection, create_database, drop_database

from .catalog import catalog, data

pytestmark = pytest.mark.usefixtures("extension_installed")


def fill(conn: Connection) -> None:
    """A queue with a consumer, a few ticks and events, and an open batch."""
    conn.execute("select pgq.create_queue('dumped')")
    conn.execute("select pgq.register_consumer('dumped', 'reader')")
    conn.execute("select pgq.insert_event('dumped', 'type', 'data')")
    conn.execute("select pgq.ticker('dumped')")
    conn.execute("select pgq.next_batch('dumped', 'reader')")


def test_dump_and_restore_keep_queues_and_events(
    server: Server, empty_dsn: str, other: Connection, tmp_path: Path
) -> None:
    other.execute("create extension pgqpy")
    fill(other)
    dump = tmp_path / "dump"
    subprocess.run(
        [server.bin_dir / "pg_dump", "--format=custom", f"--file={dump}", empty_dsn], check=True
    )
    copy = create_database(server, "template0")
    try:
        subprocess.run(
            [
                server.bin_dir / "pg_restore",
                "--exit-on-error",
                f"--dbname={server.dsn_of(copy)}",
                dump,
            ],
            check=True,
        )
        with psycopg.connect(server.dsn_of(copy), autocommit=True) as restored:
            assert data(restored) == data(other)
            assert catalog(restored) == catalog(other)
    finally:
        drop_database(server, copy)


def test_migrate_leaves_an_extension_to_itself(empty_dsn: str, other: Connection) -> None:
    other.execute("create extension pgqpy")
    for change in (schema.migrate, lambda dsn: schema.downgrade(dsn, "base")):
        with pytest.raises(SchemaError, match="ALTER EXTENSION pgqpy UPDATE"):
            change(empty_dsn)


def test_drop_extension_removes_everything(other: Connection) -> None:
    other.execute("create extension pgqpy")
    other.execute("drop extension pgqpy")
    assert other.execute("select to_regnamespace('pgq')").fetchone() == (None,)
