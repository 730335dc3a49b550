"""Description of a target's table, from the catalog."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql
from psycopg.rows import tuple_row

import pgqpy
from pgqpy.errors import PgqError
from pgqpy_consumers.apply._change import Value, json_elements, json_text, text


class TableMissing(PgqError):
    """The target has no such table."""


class NestedJson(PgqError):
    """A value's JSON cannot be told apart from the JSON around it."""


class ColumnMissing(PgqError):
    """The target's table lacks a column that the changes have."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a target."""

    name: str
    type: str
    """The type below all domains, without length: the table itself checks lengths."""
    is_json: bool
    is_json_array: bool
    has_json_inside: bool
    """Whether it is a composite, or an array of them, with JSON somewhere in it."""
    generated: bool
    """Whether it is a generated column, which cannot be written."""
    always_identity: bool
    equals: str
    """The operator of its unique index, with its schema: by name a role's own could be found."""

    def writer(self, *, nested: bool) -> Callable[[Value], str | None]:
        """The function that converts captured values to texts for this column. ``nested`` as for
        `merge`. Raises NestedJson if the JSON of the column would be ambiguous."""
        if not nested:
            return text
        if self.has_json_inside:
            raise NestedJson(
                f'column "{self.name}" of type {self.type} has JSON inside a composite type, which'
                " the format row_json does not tell apart",
                hint="Capture the table with format => 'jsontriga' and replace => true.",
            )
        if self.is_json:
            return json_text
        return json_elements if self.is_json_array else text


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the target."""

    oid: int
    schema: str
    name: str
    columns: dict[str, Column]
    keys: frozenset[frozenset[str]]
    """Columns of the unique indexes that can identify a row."""
    referenced: bool
    """Whether foreign keys point to it; then it cannot be truncated."""
    quoted: str
    """Schema and name as in SQL."""

    def __str__(self) -> str:
        return self.quoted

    @property
    def identifier(self) -> sql.Identifier:
        """Its name in a statement."""
        return sql.Identifier(self.schema, self.name)

    def writable(self, names: tuple[str, ...]) -> list[Column]:
        """The named columns without generated ones. Raises ColumnMissing."""
        found = []
        for name in names:
            column = self.columns.get(name)
            if column is None:
                raise ColumnMissing(
                    f'table {self} has no column "{name}", which the source\'s has',
                    hint=f'Add it: ALTER TABLE {self} ADD COLUMN "{name}" ..., or choose columns'
                    " without it.",
                )
            if not column.generated:
                found.append(column)
        return found


_COLUMNS: LiteralString = """
with recursive base (attnum, type, typmod) as (
    select a.attnum, a.atttypid, -1
      from pg_catalog.pg_attribute a
     where a.attrelid = %(table)s::oid and a.attnum > 0 and not a.attisdropped
     union all
    select b.attnum, t.typbasetype, -1
      from base b
      join pg_catalog.pg_type t on t.oid = b.type and t.typtype = 'd'),
inside (attnum, type) as (
    select b.attnum, b.type
      from base b
      join pg_catalog.pg_type t on t.oid = b.type and (t.typtype = 'c' or t.typcategory = 'A')
     union
    select i.attnum, u.type
      from inside i
      join pg_catalog.pg_type t on t.oid = i.type
     cross join lateral (
           select t.typbasetype where t.typtype = 'd'
            union all
           select t.typelem where t.typcategory = 'A'
            union all
           select p.atttypid from pg_catalog.pg_attribute p
            where p.attrelid = t.typrelid and p.attnum > 0 and not p.attisdropped) u (type)),
json (type) as (values ('json'::regtype::oid), ('jsonb'::regtype))
select a.attname, pg_catalog.format_type(t.oid, -1),
       t.oid in (select type from json),
       t.typcategory = 'A' and t.typelem in (select type from json),
       t.oid not in (select type from json) and t.typelem not in (select type from json)
       and exists (select from inside i join json j on j.type = i.type where i.attnum = b.attnum),
       a.attgenerated <> '', a.attidentity = 'a',
       coalesce((select pg_catalog.format('operator(%%I.%%s)', n.nspname, o.oprname)
                   from pg_catalog.pg_index i
                  cross join rows from (pg_catalog.unnest(i.indkey),
                                        pg_catalog.unnest(i.indclass)) k (attnum, class)
                   join pg_catalog.pg_opclass c on c.oid = k.class
                   join pg_catalog.pg_amop m
                     on m.amopfamily = c.opcfamily and m.amopstrategy = 3
                    and m.amoplefttype = c.opcintype and m.amoprighttype = c.opcintype
                   join pg_catalog.pg_operator o on o.oid = m.amopopr
                   join pg_catalog.pg_namespace n on n.oid = o.oprnamespace
                  where i.indrelid = a.attrelid and i.indisunique and k.attnum = b.attnum
                  limit 1), 'operator(pg_catalog.=)')
  from base b
  join pg_catalog.pg_type t on t.oid = b.type and t.typtype <> 'd'
  join pg_catalog.pg_attribute a on a.attrelid = %(table)s::oid and a.attnum = b.attnum
 order by a.attnum
"""

_KEYS: LiteralString = """
select array(select a.attname::text
               from pg_catalog.unnest(i.indkey[0:i.indnkeyatts - 1]) k
               join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = k)
  from pg_catalog.pg_index i
 where i.indrelid = %(table)s::oid and i.indisunique and i.indimmediate and i.indisvalid
   and i.indpred is null and i.indexprs is null
"""


def describe(conn: pgqpy.Connection, schema: str, name: str) -> Table:
    """The table as it is now. Raises TableMissing, also for a table of the system, which a
    superuser may write: any event can name one."""
    if schema.startswith("pg_"):
        raise TableMissing(
            f"{schema}.{name} is a table of the system, into which nothing is loaded"
        )
    with conn.cursor(row_factory=tuple_row) as cursor:
        found = cursor.execute(
            "select c.oid, exists (select from pg_catalog.pg_constraint f"
            " where f.confrelid = c.oid and f.conrelid <> c.oid and f.contype = 'f'),"
            " pg_catalog.format('%%I.%%I', n.nspname, c.relname)"
            "  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace"
            " where n.nspname = %s and c.relname = %s and c.relkind in ('r', 'p')",
            [schema, name],
        ).fetchone()
        if found is None:
            raise TableMissing(
                f"the target database has no table {schema}.{name}",
                hint="Create it there, with the same key; pg_dump --schema-only prints how.",
            )
        oid, referenced, quoted = found
        columns = [Column(*row) for row in cursor.execute(_COLUMNS, {"table": oid})]
        keys = frozenset(frozenset(row[0]) for row in cursor.execute(_KEYS, {"table": oid}))
    by_name = {each.name: each for each in columns}
    return Table(oid, schema, name, by_name, keys, referenced, quoted)
