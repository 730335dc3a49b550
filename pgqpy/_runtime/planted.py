"""Schemas with our names that another role has made."""

from __future__ import annotations

from typing import LiteralString

from pgqpy._runtime.fetch import fetch
from pgqpy._runtime.fetch_async import async_fetch
from pgqpy.connection import Connection
from pgqpy.connection_async import AsyncConnection
from pgqpy.errors import PgqError

#: The schemas that all programs use; only those of nodes use `NODE`.
OURS = ["pgq", "pgq_ext", "pgq_coop", "pgq_task"]
NODE = "pgq_node"
PLANTED: LiteralString = """
    select n.nspname, r.rolname
      from pg_catalog.pg_namespace n
      join pg_catalog.pg_roles r
        on r.oid operator(pg_catalog.=) n.nspowner
     where n.nspname::pg_catalog.text operator(pg_catalog.=)
           any (%s::pg_catalog.text[])
       and not r.rolsuper
       and r.rolname::pg_catalog.text operator(pg_catalog.<>) 'pgq_owner'
       and not pg_catalog.pg_has_role(r.oid, current_user, 'member')
     limit 1
"""


def refuse_planted(conn: Connection, *others: str) -> None:
    """Raise if another role has made one of our schemas: its functions would run as the user."""
    for schema, owner in fetch(conn, PLANTED.encode(), ([*OURS, *others],)):
        raise planted_schema(schema, owner)


async def async_refuse_planted(conn: AsyncConnection, *others: str) -> None:
    """Do the same for asyncio."""
    for schema, owner in await async_fetch(conn, PLANTED.encode(), ([*OURS, *others],)):
        raise planted_schema(schema, owner)


def planted_schema(schema: str, owner: str) -> PgqError:
    """Return the error for a row of `PLANTED`."""
    return PgqError(
        f"schema {schema} belongs to role {owner}: it is not ours, and not used",
        hint="choose another database, or drop or rename that schema; "
        "restore a dump as a superuser, or as a member of pgq_owner",
    )
