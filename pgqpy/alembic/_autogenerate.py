"""Autogenerate: what the models declare, compared with what the database captures."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Any, TypeAlias

import sqlalchemy as sa
from alembic.autogenerate.api import AutogenContext
from alembic.autogenerate.compare import comparators
from alembic.operations.ops import DropTableOp, UpgradeOps
from alembic.util import DispatchPriority

from pgqpy.alembic._operations import capture_op, queue_op
from pgqpy.errors import SchemaMissing
from pgqpy.sqlalchemy._capture import Capture, captures_of

Key: TypeAlias = tuple[str, str, str]
"""Schema, table and queue of a capture."""

#: The parameters of pgq.set_queue_config.
SETTINGS = (
    *("ticker_max_count", "ticker_max_lag", "ticker_idle_period", "ticker_paused"),
    *("ticker_latency", "rotation_period", "external_ticker", "per_tx_limit"),
    *("disable_insert", "key_window", "keep", "keep_bytes"),
)

_OPTIONS = (
    *("operations", "columns", "exclude", "key"),
    *("old_values", "condition", "format", "key_changes"),
)

_INSTALLED = sa.text("select to_regclass('pgq.queue') is not null")

_SCHEMAS = sa.text("""
select nspname
  from pg_catalog.pg_namespace
 where nspname in ('pgq', 'pgq_ext', 'pgq_coop', 'pgq_node', 'pgq_task')
    or nspowner = pg_catalog.to_regrole('pgq_owner')
""")

_QUEUES = sa.text("select queue_name from pgq.queue")

_HAS_CONSUMERS = sa.text("select exists (select from pgq.get_consumer_info(:queue))")

_CAPTURED = sa.text("""
select n.names, i.*,
       array(select a.attname::text
               from pg_catalog.pg_class t
               join pg_catalog.pg_namespace s on s.oid = t.relnamespace
               join pg_catalog.pg_index x on x.indrelid = t.oid and x.indisprimary
              cross join pg_catalog.unnest(x.indkey::int2[]) with ordinality as k (attnum, n)
               join pg_catalog.pg_attribute a on a.attrelid = t.oid and a.attnum = k.attnum
              where t.relname = n.names[2]
                and s.nspname = n.names[1]
                and k.n <= x.indnkeyatts
              order by k.n) as primary_key
  from pgq.capture_info() i
 cross join lateral (select parse_ident(i.table_name) as names) n
""")

# Values in the form of set_queue_config. A setting without a default is null by default.
_SETTINGS = sa.text("""
select substr(a.attname, 7) as parameter, v.value,
       v.value is distinct from case a.atttypid
           when 'interval'::regtype then substring(pg_get_expr(d.adbin, d.adrelid) from '''(.*)''')
           else pg_get_expr(d.adbin, d.adrelid) end as changed
  from pgq.queue q
 cross join lateral jsonb_each_text(pg_catalog.to_jsonb(q)) as v (name, value)
  join pg_catalog.pg_attribute a on a.attrelid = 'pgq.queue'::regclass and a.attname = v.name
  left join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
 where q.queue_name = :queue
   and v.name = any (:columns)
 order by a.attnum
""").bindparams(sa.bindparam("columns", type_=sa.ARRAY(sa.Text)))

logger = logging.getLogger(__name__)


# Before Alembic compares tables.
@comparators.dispatch_for("schema", qualifier="postgresql", priority=DispatchPriority.FIRST)
def leave_pgq_out(
    context: AutogenContext, upgrade_ops: UpgradeOps, schemas: set[str | None]
) -> None:
    """Exclude PgQ's schemas with ``include_schemas``."""
    schemas.difference_update(_connection(context).scalars(_SCHEMAS))


# After it.
@comparators.dispatch_for("schema", qualifier="postgresql", priority=DispatchPriority.LAST)
def compare_captures(
    context: AutogenContext, upgrade_ops: UpgradeOps, schemas: set[str | None]
) -> None:
    """Add the operations that make the captures match the models."""
    connection = _connection(context)
    default = connection.dialect.default_schema_name or "public"
    tables = [
        table
        for table in context.sorted_tables
        if context.run_object_filters(table, str(table.name), "table", False, None)
    ]
    declared = {
        (table.schema or default, str(table.name), capture.queue): (table.schema, capture)
        for table in tables
        for capture in captures_of(table)
    }
    if not connection.scalar(_INSTALLED):
        if declared:
            raise SchemaMissing(
                "tables are declared to be captured, and the database has no schema pgq"
            )
        return
    there = _captured(connection)
    # The captures of the application's tables, including tables dropped now.
    dropped = (op for op in upgrade_ops.ops if isinstance(op, DropTableOp))
    ours = {(table.schema or default, str(table.name)) for table in tables}
    ours |= {(op.schema or default, str(op.table_name)) for op in dropped}
    filters: Any = context.run_name_filters
    found = {
        (schema, table, queue): capture
        for (schema, table, queue), capture in there.items()
        if (schema, table) in ours
        and filters(queue, "pgq_queue", {"schema_name": schema, "table_name": table})
    }
    kept = {key for key in declared.keys() & found.keys() if _alike(*found[key], declared[key][1])}
    added, gone = declared.keys() - kept, found.keys() - kept
    for key in sorted(added | gone):
        what = "added" if key not in gone else "removed" if key not in added else "changed"
        logger.info("Detected %s capture of %s.%s into queue %r", what, *key)

    queues = {queue for _, _, queue in declared}
    upgrade_ops.ops[:0] = [
        *(queue_op(queue) for queue in sorted(queues - {*connection.scalars(_QUEUES)})),
        *(
            capture_op(key[1], None if key[0] == default else key[0], found[key][0]).reverse()
            for key in found
            if key in gone
        ),
    ]
    # Queues whose last capture ends here, and that have no consumers.
    queues |= {queue for _, _, queue in there.keys() - gone}
    upgrade_ops.ops += [
        *(capture_op(key[1], *declared[key]) for key in declared if key in added),
        *(
            queue_op(queue, **_settings(connection, queue)).reverse()
            for queue in sorted({queue for _, _, queue in gone} - queues)
            if not connection.scalar(_HAS_CONSUMERS, {"queue": queue})
        ),
    ]


def _connection(context: AutogenContext) -> sa.Connection:
    connection = context.connection
    assert isinstance(connection, sa.Connection)
    return connection


def _settings(connection: sa.Connection, queue: str) -> dict[str, Any]:
    """Return the settings of a queue that differ from the defaults, for pgq.set_queue_config."""
    columns = [f"queue_{parameter}" for parameter in SETTINGS]
    rows = connection.execute(_SETTINGS, {"queue": queue, "columns": columns}).all()
    settings = {row.parameter: row.value for row in rows if row.changed}
    if "ticker_max_lag" in settings:
        # Setting ticker_max_lag turns early ticks off.
        settings |= {row.parameter: row.value for row in rows if row.parameter == "ticker_latency"}
    return settings


def _captured(connection: sa.Connection) -> dict[Key, tuple[Capture, Collection[str]]]:
    """Return all captures, with the primary keys of their tables; a key that is no other is not
    given."""
    found: dict[Key, tuple[Capture, Collection[str]]] = {}
    for row in connection.execute(_CAPTURED).mappings():
        schema, table = row["names"]
        options = {option: row[option] for option in _OPTIONS}
        if row["key"] == row["primary_key"]:
            options["key"] = None
        capture = Capture(row["queue_name"], **options)
        found[schema, table, capture.queue] = capture, tuple(row["primary_key"])
    return found


def _alike(there: Capture, primary_key: Collection[str], declared: Capture) -> bool:
    """Whether a capture matches its declaration; the order of column names does not matter."""

    def comparable(each: Capture) -> Capture:
        return replace(
            each,
            columns=each.columns and sorted(each.columns),
            exclude=each.exclude and sorted(each.exclude),
            key=None if each.key == primary_key else each.key,
        )

    return comparable(there) == comparable(declared)
