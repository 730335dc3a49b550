"""A schema's description from the catalog, in a form that two databases can share.

No oids, no order of creation: only what makes a difference to users.
"""

from __future__ import annotations

from typing import Any

from pgqpy.schema._database import SCHEMAS, with_node
from tests.fixtures.fix_db import Connection


def privileges(acl: str, kind: str | None = None, owner: str = "") -> str:
    """An ACL as an array of texts, sorted, since the order of grants means nothing.

    Where none is stored, those that PostgreSQL has built in for that kind of
    object count: a dump stores none where they are what was granted.
    """
    if kind is not None:
        acl = f"coalesce({acl}, acldefault('{kind}', {owner}))"
    return f"""
        (select array_agg(p order by p)
           from (select concat_ws(' ', grantee::regrole, privilege_type, is_grantable) as p
                   from aclexplode({acl})) as each)
    """


QUERIES: dict[str, str] = {
    "schema": f"""
        select nspname, nspowner::regrole::text, {privileges("nspacl", "n", "nspowner")}
          from pg_namespace
         where nspname = %(schema)s
    """,
    "relation": f"""
        select relname, relkind, relpersistence, relowner::regrole::text, reloptions,
               relispartition, pg_get_partkeydef(oid), pg_get_expr(relpartbound, oid),
               case when relkind in ('v', 'm') then pg_get_viewdef(oid) end,
               relrowsecurity, relreplident, {privileges("relacl", "r", "relowner")},
               case when relname <> 'alembic_version' then obj_description(oid) end
          from pg_class
         where relnamespace = %(schema)s::regnamespace
           and relkind in ('r', 'p', 'v', 'm', 'f')
    """,
    "inheritance": """
        select c.relname, i.inhparent::regclass::text, i.inhseqno
          from pg_inherits as i
          join pg_class as c on c.oid = i.inhrelid
         where c.relnamespace = %(schema)s::regnamespace
    """,
    "column": f"""
        select c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
               a.attnotnull, a.attidentity, a.attgenerated, a.attcollation::regcollation::text,
               a.attstorage, a.attstattarget,
               -- by name, as some servers keep a version of their own here
               (select array_agg(o order by o) from unnest(a.attoptions) as o
                 where o like 'n_distinct%%'),
               pg_get_expr(d.adbin, d.adrelid), {privileges("a.attacl")},
               col_description(c.oid, a.attnum)
          from pg_attribute as a
          join pg_class as c on c.oid = a.attrelid
          left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
         where c.relnamespace = %(schema)s::regnamespace
           and c.relkind in ('r', 'p', 'v', 'm', 'f')
           and a.attnum > 0
           and not a.attisdropped
    """,
    "constraint": """
        select conrelid::regclass::text, contypid::regtype::text, conname, contype,
               pg_get_constraintdef(oid), convalidated, coninhcount
          from pg_constraint
         where connamespace = %(schema)s::regnamespace
    """,
    "index": """
        select indexrelid::regclass::text, pg_get_indexdef(indexrelid), indisvalid,
               indisclustered, indisreplident, c.relowner::regrole::text
          from pg_index
          join pg_class as c on c.oid = indexrelid
         where c.relnamespace = %(schema)s::regnamespace
    """,
    "sequence": f"""
        select c.relname, format_type(s.seqtypid, null), seqstart, seqincrement, seqmax,
               seqmin, seqcache, seqcycle, c.relowner::regrole::text,
               {privileges("c.relacl", "s", "c.relowner")},
               d.refobjid::regclass::text, d.refobjsubid
          from pg_sequence as s
          join pg_class as c on c.oid = s.seqrelid
          left join pg_depend as d
            on d.classid = 'pg_class'::regclass
           and d.objid = c.oid
           and d.refclassid = 'pg_class'::regclass
           and d.deptype in ('a', 'i')
         where c.relnamespace = %(schema)s::regnamespace
    """,
    "function": f"""
        select p.oid::regprocedure::text, pg_get_functiondef(p.oid),
               proowner::regrole::text, {privileges("proacl", "f", "proowner")},
               obj_description(p.oid)
          from pg_proc as p
         where pronamespace = %(schema)s::regnamespace
           and prokind in ('f', 'p')
    """,
    "other function": """
        select p.oid::regprocedure::text
          from pg_proc as p
         where pronamespace = %(schema)s::regnamespace
           and prokind not in ('f', 'p')
    """,
    "trigger": """
        select tgrelid::regclass::text, pg_get_triggerdef(t.oid), tgenabled
          from pg_trigger as t
          join pg_class as c on c.oid = tgrelid
         where relnamespace = %(schema)s::regnamespace
           and not tgisinternal
    """,
    "policy": """
        select polrelid::regclass::text, polname, polcmd, pg_get_expr(polqual, polrelid)
          from pg_policy
          join pg_class as c on c.oid = polrelid
         where relnamespace = %(schema)s::regnamespace
    """,
    "event trigger": """
        select evtname, evtevent, evtfoid::regprocedure::text, evtenabled, evttags
          from pg_event_trigger
          join pg_proc as p on p.oid = evtfoid
         where pronamespace = %(schema)s::regnamespace
    """,
    "rule": """
        select ev_class::regclass::text, rulename, pg_get_ruledef(r.oid)
          from pg_rewrite as r
          join pg_class as c on c.oid = ev_class
         where relnamespace = %(schema)s::regnamespace
    """,
    "type": f"""
        select typname, typtype, typcategory, typowner::regrole::text,
               format_type(typbasetype, typtypmod), typnotnull, typdefault,
               {privileges("typacl", "T", "typowner")},
               (select array_agg(enumlabel order by enumsortorder)
                  from pg_enum where enumtypid = t.oid)
          from pg_type as t
         where typnamespace = %(schema)s::regnamespace
    """,
    "default privilege": f"""
        select defaclrole::regrole::text, defaclnamespace::regnamespace::text, defaclobjtype,
               {privileges("defaclacl")}
          from pg_default_acl
    """,
    "membership": """
        select roleid::regrole::text, member::regrole::text
          from pg_auth_members
         where roleid::regrole::text like 'pgq\\_%%'
           and member::regrole::text like 'pgq\\_%%'
    """,
}


def catalog(conn: Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Kind of object -> its rows in all of our schemas, sorted."""
    # Names are printed with or without schema depending on the search path.
    conn.execute("set search_path = pg_catalog")
    return {
        kind: sorted(
            (
                (schema, *row)
                for schema in with_node(conn, SCHEMAS)
                for row in conn.execute(query.encode(), {"schema": schema})
            ),
            key=repr,
        )
        for kind, query in QUERIES.items()
    }


def data(conn: Connection) -> dict[str, list[str]]:
    """Table -> its rows as text; sequence -> its last value and whether it was used."""
    tables = conn.execute(
        """
        select oid::regclass::text, relkind
          from pg_class
         where relnamespace = any (%s::regnamespace[])
           and relkind in ('r', 'S')
        """,
        [with_node(conn, SCHEMAS)],
    ).fetchall()
    found = {}
    for name, kind in tables:
        columns = "last_value, is_called" if kind == "S" else "*"
        rows = conn.execute(
            f"select t::text from (select {columns} from {name}) as t".encode()
        ).fetchall()
        found[name] = sorted(text for (text,) in rows)
    return found
