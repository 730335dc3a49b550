"""The loss if the schema were removed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
from psycopg import sql

from pgqpy._runtime.words import plural, printable
from pgqpy.schema._database import ALL_SCHEMAS, driver_of, with_node

if TYPE_CHECKING:
    import sqlalchemy as sa

_MOST = 100_000
"""Larger tables are not counted to their end."""


@dataclass(frozen=True)
class Kept:
    """Rows of a table that matter to users."""

    noun: str
    source: LiteralString | None = None
    """A view that has these rows; None: all rows of the table."""
    name: LiteralString | None = None
    """An expression that names a row; None: a number is enough."""


KEPT: dict[str, Kept] = {
    "pgq.queue": Kept("queue", name="queue_name"),
    "pgq.registration": Kept("subscription", source="pgq.subscription"),
    "pgq.event": Kept("event"),
    "pgq.delayed": Kept("waiting event", source="pgq.waiting_event"),
    "pgq._dead_letter": Kept("dead letter", name="dl_queue || '/' || dl_consumer"),
    "pgq._parked_event": Kept("parked event"),
    "pgq.action_log": Kept("logged action"),
    "pgq_node.node_info": Kept("node", name="queue_name || '/' || node_name"),
    "pgq_node.handed_over": Kept("event handed over"),
    "pgq_ext.tracker": Kept("remote consumer", name="consumer_id"),
    "pgq_ext.replica_table": Kept(
        "replicated table", name="rpt_target_schema || '.' || rpt_target_table"
    ),
    "pgq_ext.replica_sequence": Kept(
        "replicated sequence", name="rps_target_schema || '.' || rps_target_sequence"
    ),
    "pgq_ext.replica_event": Kept("replicated change"),
    "pgq_task.queue": Kept("task queue", name="queue_name"),
    "pgq_task.task": Kept("task"),
    "pgq_task.finished": Kept("finished task"),
    "pgq_task.periodic": Kept("periodic task", name="periodic_name"),
}
"""Tables of which users have filled or use the rows."""

OURS = re.compile(
    r"""
    pgq\.(alembic_version
        | cluster | spare_slots | log | late_write | forced_tick
        | (tick|position|moved)_[01]                                    # bookkeeping
        | event_(spare_\d+ | key_\d+_[01])                              # goes with a queue
        | restricted_queue | queue_grant                                # rights on queues
        | contract                                                      # goes with a queue
        | shard                                                         # goes with a queue
        | limit_log | stream_writer | ticker_failure | consumer_failure | _consumer_move
        | consumer                                                      # only names
        | consumer_group | group_member | group_partition | _parked_key # goes with subscriptions
        | counted_table | row_count_log                                 # can be counted again
        | row_layout | group_key_check)
    | pgq_ext\.(log | (progress|event)_[01])                            # goes with a tracker
    | pgq_task\.(lane | mark | sweep | to_release | key_low             # goes with a task queue
        | progress | cancellation | flow(_step)? | station
        | queue_grant | queue_limit | unique_period | reserved_id | limit_log | limit_\d+_[01]
        | counted | count_log_(even | odd))
    | pgq_node\.(node_location | local_state | subscriber_info | root_epoch) # goes with a node
    | pgq_staging\..*                                                   # its stream writes it anew
    """,
    re.VERBOSE,
)
"""Tables whose rows are no loss by themselves."""


def what_is_lost_with(connection: sa.Connection) -> str | None:
    """Describe users' data in our schemas, and dependent objects outside; None if there is none.

    In that case none can be added until the transaction ends.
    """
    driver = driver_of(connection)
    lost = "; ".join(_lost(driver))
    if not lost:
        # A concurrent transaction may be writing.
        for table in _tables(driver):
            driver.execute(sql.SQL("lock table {}").format(_quoted(table)))
        lost = "; ".join(_lost(driver))
    return lost or None


def _lost(driver: psycopg.Connection[Any]) -> Iterator[str]:
    for table in _tables(driver):
        if not OURS.fullmatch(table):
            # A table that is in neither list is a loss, too, if it has rows.
            yield from _rows(driver, table, KEPT.get(table) or Kept(f"{table} row"))
    others = (
        ("unknown object", _UNKNOWN),
        ("captured table", _TRIGGERS),
        ("dependent object", _DEPENDENT),
    )
    schemas = with_node(driver, ALL_SCHEMAS)
    for noun, statement in others:
        names = [name for (name,) in driver.execute(statement, {"schemas": schemas})]
        if names:
            yield f"{plural(len(names), noun)} ({_some(names)})"


def _rows(driver: psycopg.Connection[Any], table: str, kept: Kept) -> Iterator[str]:
    source = sql.SQL(kept.source) if kept.source else _quoted(table)
    counting = sql.SQL("select count(*) from (select from {} limit {}) as counted")
    ((number,),) = driver.execute(counting.format(source, _MOST + 1)).fetchall()
    if not number:
        return
    found = f"more than {_MOST:,} {kept.noun}s" if number > _MOST else plural(number, kept.noun)
    if kept.name:
        naming = sql.SQL("select distinct {} from {} order by 1 limit 11")
        named = driver.execute(naming.format(sql.SQL(kept.name), source)).fetchall()
        found += f" ({_some([name for (name,) in named])})"
    yield found


def _tables(driver: psycopg.Connection[Any]) -> list[str]:
    schemas = with_node(driver, ALL_SCHEMAS)
    return [name for (name,) in driver.execute(_TABLES, {"schemas": schemas})]


def _quoted(table: str) -> sql.Composable:
    schema, name = table.split(".", 1)
    return sql.Identifier(schema, name)


def _some(names: list[str], most: int = 10) -> str:
    return ", ".join(map(printable, names[:most])) + (", ..." if len(names) > most else "")


# Partitions and children are counted with their parents.
_TABLES: LiteralString = """
select n.nspname || '.' || c.relname
  from pg_catalog.pg_class as c
  join pg_catalog.pg_namespace as n
    on n.oid = c.relnamespace
 where n.nspname = any (%(schemas)s)
   and c.relkind in ('r', 'p', 'm', 'f')
   and pg_catalog.pg_get_userbyid(c.relowner) = 'pgq_owner'
   and not exists (
        select
          from pg_catalog.pg_inherits
         where inhrelid = c.oid)
 order by c.oid
"""
_INSIDE: LiteralString = """
select 'pg_catalog.pg_class'::regclass as classid, oid, relowner as owner
  from pg_catalog.pg_class
 where relnamespace::regnamespace::text = any (%(schemas)s)
   and relkind <> 'i'
union all
select 'pg_catalog.pg_proc'::regclass, oid, proowner
  from pg_catalog.pg_proc
 where pronamespace::regnamespace::text = any (%(schemas)s)
union all
select 'pg_catalog.pg_type'::regclass, oid, typowner
  from pg_catalog.pg_type
 where typnamespace::regnamespace::text = any (%(schemas)s)
"""
# A row type belongs to its table, an array type to its element type.
_UNKNOWN: LiteralString = f"""
select pg_catalog.pg_describe_object(classid, oid, 0)
  from ({_INSIDE}) as inside
 where pg_catalog.pg_get_userbyid(owner) <> 'pgq_owner'
   and not exists (
        select
          from pg_catalog.pg_depend
         where classid = inside.classid
           and objid = inside.oid
           and deptype = 'i')
 order by 1
"""
_TRIGGERS: LiteralString = """
select distinct t.tgrelid::regclass::text
  from pg_catalog.pg_trigger as t
  join pg_catalog.pg_proc as p
    on p.oid = t.tgfoid
  join pg_catalog.pg_class as c
    on c.oid = t.tgrelid
 where (p.pronamespace::regnamespace::text = any (%(schemas)s)
        or p.oid in (select capture_function from pgq.capture))
   and c.relnamespace::regnamespace::text <> all (%(schemas)s)
 order by 1
"""
# Outside of our schemas. A view is its rule here, a default or a constraint stands for itself.
_DEPENDENT: LiteralString = f"""
with inside as ({_INSIDE})
select distinct pg_catalog.pg_describe_object(
           case when r.oid is null then d.classid else 'pg_catalog.pg_class'::regclass end,
           coalesce(r.ev_class, d.objid), d.objsubid)
  from pg_catalog.pg_depend as d
  join inside as i
    on i.classid = d.refclassid
   and i.oid = d.refobjid
  left join pg_catalog.pg_rewrite as r
    on d.classid = 'pg_catalog.pg_rewrite'::regclass
   and r.oid = d.objid
  left join pg_catalog.pg_attrdef as f
    on d.classid = 'pg_catalog.pg_attrdef'::regclass
   and f.oid = d.objid
  left join pg_catalog.pg_constraint as k
    on d.classid = 'pg_catalog.pg_constraint'::regclass
   and k.oid = d.objid
  left join pg_catalog.pg_index as x
    on d.classid = 'pg_catalog.pg_class'::regclass
   and x.indexrelid = d.objid
  left join pg_catalog.pg_policy as l
    on d.classid = 'pg_catalog.pg_policy'::regclass
   and l.oid = d.objid
 where d.deptype in ('n', 'a')
   and d.classid <> 'pg_catalog.pg_trigger'::regclass
   and coalesce(r.ev_class, f.adrelid, k.conrelid, x.indrelid, l.polrelid, d.objid)
       not in (select oid from inside)
 order by 1
"""
