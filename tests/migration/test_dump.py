"""pg_dump and pg_restore carry a database over with its queues and events, however installed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from pgqpy import schema
from pgqpy.embedded import Server
from tests.fixtures.fix_db import Connect, Connection, create_database, drop_database

from .catalog import catalog, data


@pytest.fixture(params=["migration", "extension"])
def original(request: pytest.FixtureRequest, empty_dsn: str, other: Connection) -> Connection:
    """A database with a queue, a consumer, a few ticks and events, and an open batch."""
    if request.param == "extension":
        request.getfixturevalue("extension_installed")
        other.execute("create extension pgqpy; create extension pgqpy_node")
    else:
        schema.migrate(empty_dsn, node=True)
    other.execute("select pgq.create_queue('dumped')")
    other.execute("select pgq.register_consumer('dumped', 'reader')")
    other.execute("select pgq.create_group('dumped', 'group', 2, 'lower(ev_data)')")
    other.execute("select pgq.insert_event('dumped', 'type', 'data')")
    other.execute("select pgq.ticker('dumped')")
    other.execute("select pgq.next_batch('dumped', 'reader')")
    other.execute("select pgq.grant_queue('dumped', '{consume}', 'pgq_writer', 'reader')")
    other.execute("select pgq.restrict_queue('dumped')")
    other.execute("select pgq.set_contract('dumped', 'x', '{}', enforced => true)")
    other.execute("select pgq_task.create_queue('dumped'), pgq_task.restrict_queue('dumped')")
    other.execute("select pgq_node.register_location('dumped', 'a', 'dbname=a', false)")
    other.execute("select pgq_node.create_node('dumped', 'root', 'a', 'w', null, null, null)")
    return other


@pytest.fixture
def copy_dsn(server: Server, original: Connection, tmp_path: Path) -> Iterator[str]:
    """A connection string for what a dump of `original` was restored into."""
    name = create_database(server, "template0")
    database = original.info.dbname
    file = tmp_path / "dump"
    for program, *options in (
        ("pg_dump", "--format=custom", f"--file={file}", server.dsn_of(database)),
        ("pg_restore", "--exit-on-error", f"--dbname={server.dsn_of(name)}", str(file)),
    ):
        subprocess.run([server.bin_dir / program, *options], check=True)
    yield server.dsn_of(name)
    drop_database(server, name)


def test_restored_database_is_the_same(
    original: Connection, copy_dsn: str, connect: Connect
) -> None:
    restored = connect(copy_dsn)
    assert data(restored) == data(original)
    expected, found = catalog(original), catalog(restored)
    for kind in expected:
        assert found[kind] == expected[kind], kind


@pytest.mark.any_pg
@pytest.mark.parametrize("original", ["migration"], indirect=True)
@pytest.mark.parametrize("member", [False, True])
def test_a_dump_is_restored_by_members_of_the_owner(
    original: Connection, server: Server, tmp_path: Path, connect: Connect, member: bool
) -> None:
    name = create_database(server, "template0")
    file = tmp_path / "dump"
    dump = [str(server.bin_dir / "pg_dump"), f"--file={file}"]
    subprocess.run([*dump, server.dsn_of(original.info.dbname)], check=True)
    original.execute("create role restorer login")
    try:
        if member:
            original.execute("grant pgq_owner to restorer")
        original.execute(f"alter database {name} owner to restorer".encode())
        dsn = make_conninfo(server.dsn_of(name), user="restorer")
        restore = [str(server.bin_dir / "psql"), "-qX", f"--file={file}", dsn]
        done = subprocess.run([*restore, "--set=ON_ERROR_STOP=1"], check=False, capture_output=True)
        assert (done.returncode == 0) is member, done.stderr
        if member:
            restored = connect(server.dsn_of(name))
            assert (data(restored), catalog(restored)) == (data(original), catalog(original))
        else:
            subprocess.run(restore, check=True, capture_output=True)
            with pytest.raises(schema.SchemaError, match="restore a dump as a superuser"):
                schema.migrate(dsn)
    finally:
        drop_database(server, name)
        original.execute("drop role restorer")
