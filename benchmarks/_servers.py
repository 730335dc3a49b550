"""The servers and databases of benchmarks, with pgqpy or with PgQ in them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

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
LSN = "select pg_current_wal_insert_lsn() - '0/0'"
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


_number = itertools.count(1)


def database(server: Server, *scripts: str) -> str:
    """A new database with the scripts executed; returns its DSN."""
    name = f"benchmark_{next(_number)}"
    with connect(server.dsn) as conn:
        conn.execute(sql.SQL("create database {} template template0").format(sql.Identifier(name)))
    with connect(server.dsn_of(name)) as conn:
        for script in scripts:
            with conn.transaction():
                conn.execute(script.encode())
    return server.dsn_of(name)


def pgqpy_database(server: Server, *scripts: str) -> str:
    """A new database with pgqpy in it, and the scripts executed then."""
    return database(server, schema_sql(), *scripts)


def fill(conn: Connection, inserts: Iterable[str]) -> None:
    """Execute each, with a tick after it. The events are not analyzed, as in production."""
    for insert in inserts:
        conn.execute(insert.encode())
        conn.execute(TICK)


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
