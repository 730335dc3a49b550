"""Whether a database has the schema of this release already: most migrations have nothing to do.

A migration ends by noting, as a comment on Alembic's table, which sources it has applied and what
the catalog then held. If both are still so, nothing would change. What a migration does not bring
back, such as a column that was dropped, is no part of it.
"""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from typing import Any

import psycopg

from pgqpy.connection import connect
from pgqpy.schema._database import NODE_SCHEMA, SCHEMAS, VERSION_SCHEMA, VERSION_TABLE, has_node
from pgqpy.schema._sources import MIGRATIONS_DIR, SQL_DIR

_SCHEMAS = (*SCHEMAS, NODE_SCHEMA)
_TABLE = f"{VERSION_SCHEMA}.{VERSION_TABLE}"

# All that a migration brings back. A function has another xmin when it was replaced, altered or
# granted, and after a restore. Of _shown and inbox, which change when queues are restricted, only
# what stays counts. Relations of single queues have numbers in their names.
_CATALOG = f"""
select pg_catalog.md5(pg_catalog.string_agg(each, chr(10) order by each))
  from (select concat_ws(' ', 'function', oid,
                         case proname when '_shown'
                             then concat_ws(' ', prosrc, proowner, proacl)
                             else xmin::text end)
          from pg_catalog.pg_proc
         where pronamespace in (select oid from pg_catalog.pg_namespace where nspname in {_SCHEMAS})
        union all
        select concat_ws(' ', 'relation', oid, relowner,
                         case relname when 'inbox'
                             then array_remove(relacl::text[], 'pgq_writer=a/pgq_owner')
                             else relacl::text[] end)
          from pg_catalog.pg_class
         where relnamespace in (select oid from pg_catalog.pg_namespace where nspname in {_SCHEMAS})
           and relkind in ('r', 'p', 'v', 'S')
           and relname !~ '[0-9]'
        union all
        select concat_ws(' ', 'schema', oid, nspowner, nspacl)
          from pg_catalog.pg_namespace
         where nspname ~ '^pgq(_|$)'
        union all
        select concat_ws(' ', 'defaults', oid, defaclacl)
          from pg_catalog.pg_default_acl
         where defaclrole = 'pgq_owner'::regrole
        union all
        select concat_ws(' ', 'member', roleid, member)
          from pg_catalog.pg_auth_members
         where roleid in ('pgq_reader'::regrole, 'pgq_writer'::regrole)
           and member = 'pgq_admin'::regrole) as catalog (each)
"""


def note_sql() -> str:
    """Return the SQL at the end of a migration to the newest revision."""
    return f"""
do $$
begin
    execute pg_catalog.format('comment on table {_TABLE} is %L', '{sources()} ' || ({_CATALOG}));
end;
$$;
"""


def catalog_of(conn: psycopg.Connection[Any]) -> str:
    """Return the digest of what a migration would bring back, as it is now."""
    [(digest,)] = conn.execute(_CATALOG.encode())
    return str(digest)


def revision_if_current(dsn: str, *, node: bool) -> str | None:
    """Return the database's revision if a migration would change nothing, else None."""
    with connect(dsn, autocommit=True) as conn:
        try:
            # Operators on the user's path must not be called with the user's rights.
            conn.execute("set search_path = pg_catalog, pg_temp")
            noted = conn.execute(
                f"""
                select obj_description(oid, 'pg_class') = %s || ' ' || ({_CATALOG})
                  from pg_class
                 where oid = to_regclass('{_TABLE}')
                   and relkind = 'r'
                   and relowner = 'pgq_owner'::regrole
                """.encode(),
                [sources()],
            ).fetchone()
            if noted != (True,) or (node and not has_node(conn)):
                return None
            at = conn.execute(f"select version_num from {_TABLE}".encode()).fetchall()
        except psycopg.Error:
            # Such as missing roles, or a missing right: the migration finds better words.
            return None
    return at[0][0] if len(at) == 1 else None


@cache
def sources() -> str:
    """Return a digest of everything that a migration executes."""
    digest = blake2b(digest_size=16)
    for path in sorted([*SQL_DIR.rglob("*"), *MIGRATIONS_DIR.rglob("*.*")]):
        if path.suffix in (".sql", ".txt", ".py"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
