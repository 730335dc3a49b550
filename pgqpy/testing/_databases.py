"""A database for each test: copied from a template, and always dropped."""

from __future__ import annotations

from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgqpy.connection import connect
from pgqpy.errors import translate_errors


def dsn_of(server: str, database: str) -> str:
    """Return the connection string of another database on the same server."""
    return make_conninfo(server, dbname=database)


def create_database(server: str, name: str, *, template: str | None = None) -> None:
    """Create a database, as a copy of ``template`` if given; the template's sessions are ended.

    Raises ConnectionFailed, PermissionDenied.
    """
    statement = sql.SQL("create database {}").format(sql.Identifier(name))
    with translate_errors(), connect(server, autocommit=True) as conn:
        if template is not None:
            statement += sql.SQL(" template {}").format(sql.Identifier(template))
            conn.execute(_DISCONNECT, [template])
            if conn.execute(_BY_FILES).fetchone() == (True,):
                statement += sql.SQL(" strategy file_copy")
        conn.execute(statement)


def drop_database(server: str, name: str) -> None:
    """Drop a database with all its sessions and prepared transactions, if it is there.

    Raises ConnectionFailed, PermissionDenied.
    """
    with translate_errors(), connect(server, autocommit=True) as conn:
        prepared = conn.execute(_PREPARED, [name]).fetchall()
        if prepared:
            # Prepared transactions can only be ended in their own database.
            with connect(dsn_of(server, name), autocommit=True) as inside:
                for (gid,) in prepared:
                    inside.execute(sql.SQL("rollback prepared {}").format(sql.Literal(gid)))
        conn.execute(
            sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
        )


#: Without fsync several times faster than through the WAL; PostgreSQL 14 has no other way.
_BY_FILES = """
select current_setting('fsync') = 'off' and current_setting('server_version_num')::int4 >= 150000
"""

_DISCONNECT = """
select pg_catalog.pg_terminate_backend(pid, 10000)
  from pg_catalog.pg_stat_activity
 where datname = %s
   and backend_type = 'client backend'
"""

_PREPARED = "select gid from pg_catalog.pg_prepared_xacts where database = %s"
