"""Which database a connection leads to, whatever its connection string is."""

from __future__ import annotations

from typing import Any, TypeAlias

from pgqpy._runtime.fetch import fetch
from pgqpy.connection import Connection

#: Equal for two connections only if both lead to one database of one server.
Identity: TypeAlias = tuple[Any, ...]

# Not by the system identifier: a server that began as a copy of another one has the same.
IDENTITY = b"""
select pg_catalog.pg_postmaster_start_time(), oid
  from pg_catalog.pg_database
 where datname = pg_catalog.current_database()
"""


def identify(conn: Connection) -> Identity:
    """Return which database of which server it is."""
    return tuple(fetch(conn, IDENTITY)[0])
