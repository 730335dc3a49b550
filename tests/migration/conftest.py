"""Fixtures that only the installation tests need."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from pgqpy.embedded import Server
from pgqpy.schema import extension_files
from tests.fixtures.fix_db import Connect, Connection


@pytest.fixture
def other(empty_dsn: str, connect: Connect) -> Connection:
    """An autocommit connection to `empty_dsn`."""
    return connect(empty_dsn)


@pytest.fixture
def extension_installed(server: Server) -> Iterator[None]:
    """The extension's files lie where this server looks for them, during the test.

    That place is shared with every suite on this machine that uses the same
    binaries, so it is locked meanwhile.
    """
    sharedir = subprocess.run(
        [server.bin_dir / "pg_config", "--sharedir"], capture_output=True, text=True, check=True
    )
    directory = Path(sharedir.stdout.strip()) / "extension"
    if not os.access(directory, os.W_OK):
        pytest.skip(f"{directory} is not writable: run as root to test CREATE EXTENSION")
    files = {directory / name: content for name, content in extension_files().items()}
    lock = os.open(directory, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        for path, content in files.items():
            path.write_text(content, encoding="utf-8")
        yield
    finally:
        for path in files:
            path.unlink(missing_ok=True)
        os.close(lock)


@dataclass(frozen=True)
class Cluster:
    """A server without our roles: its database ``app``, as an installer and as a superuser."""

    dsn: str
    admin: Connection


@pytest.fixture
def new_cluster(server: Server, connect: Connect) -> Iterator[Cluster]:
    """A server of its own, since roles belong to the cluster; the installer is no superuser."""
    with Server(version=server.version) as fresh:
        admin = connect(fresh.dsn)
        admin.execute("create role installer login createrole")
        admin.execute("create database app")
        admin.execute("grant create on database app to installer")
        yield Cluster(fresh.dsn_of("app", user="installer"), connect(fresh.dsn_of("app")))


@pytest.fixture
def newcomer(server: Server, empty_dsn: str) -> Iterator[str]:
    """A connection string for `empty_dsn` as a new role without any privileges."""
    database = psycopg.conninfo.conninfo_to_dict(empty_dsn)["dbname"]
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute("create role newcomer login")
        yield server.dsn_of(str(database), user="newcomer")
        conn.execute(f"alter database {database} owner to postgres".encode())
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute("drop owned by newcomer cascade")
        conn.execute("drop role newcomer")
