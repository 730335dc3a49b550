"""Where benchmarks run: a server of their own, and databases with ours or with PgQ in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import click
import psycopg
from psycopg import sql

from pgqpy.embedded import EmbeddedError, Server, find_bin_dir
from pgqpy.schema import schema_sql

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

PGQ_C = "create extension pgq"

# What an event table is without a queue, for those who do the work by hand.
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


def options(command: Callable[..., None]) -> Callable[..., None]:
    """What all benchmarks can be told."""
    quick = click.option("--quick", is_flag=True, help="See that it works; the figures say little.")
    version = click.option(
        "--pg",
        "version",
        type=int,
        help="Major version of PostgreSQL. [default: 15, whose PgQ is in Debian, or else 18]",
    )
    return quick(version(command))


@contextmanager
def start(version: int | None, **settings: str | int | bool) -> Iterator[Server]:
    """A server that is gone afterwards. It does not wait for disks: those are not compared."""
    if version is None:
        try:
            find_bin_dir(15)
            version = 15
        except EmbeddedError:
            version = 18
    defaults: dict[str, str | int | bool] = {
        "synchronous_commit": False,
        "autovacuum": False,
        "shared_buffers": "512MB",
        "max_wal_size": "4GB",
    }
    with Server(version=version, settings=defaults | settings) as server:
        click.echo(f"PostgreSQL {version}", err=True)
        yield server


def database(server: Server, name: str, *scripts: str) -> str:
    """A new database in which the scripts were run; returns how to connect to it."""
    with connect(server.dsn) as conn:
        conn.execute(sql.SQL("create database {} template template0").format(sql.Identifier(name)))
    with connect(server.dsn_of(name)) as conn:
        for script in scripts:
            with conn.transaction():
                conn.execute(script.encode())
    return server.dsn_of(name)


def ours() -> str:
    """The script that installs our schema."""
    return schema_sql()


def pgq_c(server: Server) -> str | None:
    """The script that installs PgQ with its C code; None where that is not to be had."""
    with connect(server.dsn) as conn:
        found = conn.execute("select from pg_available_extensions where name = 'pgq'").fetchone()
    return None if found is None else PGQ_C


def pgq_without_c(server: Server) -> str | None:
    """The script that installs PgQ's own PL/pgSQL instead; None where that is not to be had."""
    with connect(server.dsn) as conn:
        [share] = conn.execute("select setting from pg_config where name = 'SHAREDIR'").fetchall()
    script = Path(share[0]) / "contrib" / "pgq_pl_only.sql"
    return script.read_text() if script.exists() else None


def connect(dsn: str) -> Connection:
    """Autocommit."""
    return psycopg.connect(dsn, autocommit=True)
