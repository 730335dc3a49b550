"""The servers and databases of benchmarks, with pgqpy or with PgQ in them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import psutil
import psycopg
from psycopg import sql

from pgqpy.embedded import EmbeddedError, Server, find_bin_dir
from pgqpy.schema import schema_sql

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

OURS, PGQ_C, PGQ_PL = "pgqpy", "PgQ, C", "PgQ, PL/pgSQL"

CREATE_QUEUE = "select pgq.create_queue('q')"

# A registered consumer keeps the events, and with them the first tick.
KEEPER = "select pgq.register_consumer('q', 'keeper')"
TICK = "select pgq.force_tick('q'), pgq.ticker('q')"
# Events with payloads of 110 bytes.
FLIGHTS = """
select count(pgq.insert_event('q', 'flight', '{"id": ' || 1000000 + n || repeat('x', 94) || '}'))
  from generate_series(1, %d) n
"""

# An event table without a queue, for work by hand.
PLAIN_TABLE = """
create sequence plain_id;
create table plain (
    ev_id       bigint      not null default nextval('plain_id'),
    ev_time     timestamptz not null default now(),
    ev_txid     bigint      not null default txid_current(),
    ev_owner    int4,
    ev_retry    int4,
    ev_type     text,
    ev_data     text,
    ev_extra1   text,
    ev_extra2   text,
    ev_extra3   text,
    ev_extra4   text
);
create index plain_txid on plain (ev_txid);
"""


# Settings of a medium server, with waits for disks: those of a temporary `Server` are not
# synced. No setting adds work to a commit.
SETTINGS: dict[str, str | int | bool] = {
    "fsync": True,
    "full_page_writes": True,
    "synchronous_commit": False,
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
}


def default_version() -> int:
    """15, whose PgQ is in Debian, or else 18."""
    try:
        find_bin_dir(15)
    except EmbeddedError:
        return 18
    return 15


@contextmanager
def start(version: int | None, **settings: str | int | bool) -> Iterator[Server]:
    """A temporary server, with `SETTINGS` unless ``settings`` override them."""
    with Server(version=version or default_version(), settings=SETTINGS | settings) as server:
        yield server


def describe(server: Server, names: Iterable[str] = ()) -> dict[str, str]:
    """The values of the settings changed here, as the server reports them."""
    with connect(server.dsn) as conn:
        shown = conn.execute(
            "select name, current_setting(name) from pg_settings where name = any(%s)",
            [[*SETTINGS, *names]],
        )
        return dict(shown.fetchall())


def versions(server: Server) -> dict[str, str]:
    """The versions of the server's components."""
    with connect(server.dsn) as conn:
        found = conn.execute(
            "select 'PostgreSQL', current_setting('server_version')"
            " union all select 'PgQ', default_version from pg_available_extensions"
            " where name = 'pgq'"
        )
        return dict(found.fetchall())


def database(server: Server, name: str, *scripts: str) -> str:
    """A new database with the scripts executed; returns its DSN."""
    with connect(server.dsn) as conn:
        conn.execute(sql.SQL("create database {} template template0").format(sql.Identifier(name)))
    with connect(server.dsn_of(name)) as conn:
        for script in scripts:
            with conn.transaction():
                conn.execute(script.encode())
    return server.dsn_of(name)


def fill(conn: Connection, inserts: Iterable[str]) -> None:
    """Execute each, with a tick after it. A registered consumer keeps the events.

    The events are not analyzed, as in production.
    """
    conn.execute(KEEPER)
    for insert in inserts:
        conn.execute(insert.encode())
        conn.execute(TICK)


def with_settings(dsn: str, **settings: str | bool) -> str:
    """The DSN with other session settings."""
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    return f"{dsn}&options={quote(options)}"


def implementations(server: Server) -> dict[str, str]:
    """The scripts that install the schema, by name: pgqpy's, and PgQ's if available."""
    scripts = {OURS: schema_sql()}
    with connect(server.dsn) as conn:
        found = conn.execute("select from pg_available_extensions where name = 'pgq'").fetchone()
        [(share,)] = conn.execute("select setting from pg_config where name = 'SHAREDIR'")
    if found is not None:
        scripts[PGQ_C] = "create extension pgq"
    without_c = Path(share) / "contrib" / "pgq_pl_only.sql"
    if without_c.exists():
        scripts[PGQ_PL] = without_c.read_text()
    return scripts


def connect(dsn: str) -> Connection:
    """Connect in autocommit."""
    return psycopg.connect(dsn, autocommit=True)


PGQD = """
[pgqd]
logfile = {directory}/pgqd.log
pidfile = {directory}/pgqd.pid
base_connstr = host={socket_dir} port=5432 user=postgres
initial_database = postgres
database_list = {database}
syslog = 0
"""


OTHERS = """
select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
"""


@contextmanager
def ticker(dsn: str, **settings: float) -> Iterator[psutil.Process]:
    """Run the ticker; it leads when the block begins. ``settings`` are those of a database."""
    lines = "\n".join(f"{key} = {float(value)}" for key, value in settings.items())
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "ticker.toml")
        config.write_text(f"[defaults]\n{lines}\n")
        log = Path(directory, "log")
        command = [sys.executable, "-m", "pgqpy_ticker", "--config", str(config), "--dsn", dsn]
        with log.open("w") as output, subprocess.Popen(command, stderr=output) as process:
            try:
                while "message=leading" not in log.read_text():
                    if process.poll() is not None:
                        raise RuntimeError(f"the ticker ended: {log.read_text()}")
                    time.sleep(0.05)
                yield psutil.Process(process.pid)
            finally:
                process.terminate()


@contextmanager
def pgqd(server: Server, dsn: str) -> Iterator[psutil.Process]:
    """Run pgqd; it is connected when the block begins."""
    program = shutil.which("pgqd")
    if program is None:
        raise FileNotFoundError("pgqd")
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "pgqd.ini")
        with connect(dsn) as conn:
            database = conn.info.dbname
        config.write_text(
            PGQD.format(directory=directory, socket_dir=server.socket_dir, database=database)
        )
        with subprocess.Popen([program, "-q", str(config)]) as process:
            try:
                with connect(dsn) as conn:
                    while not conn.execute(OTHERS).fetchone():
                        time.sleep(0.05)
                yield psutil.Process(process.pid)
            finally:
                process.terminate()
