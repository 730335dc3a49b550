"""Autogenerate: what the models declare, compared with what the database captures."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import sqlalchemy as sa
from alembic.autogenerate.api import AutogenContext
from alembic.autogenerate.compare import comparators
from alembic.operations.ops import DropTableOp, UpgradeOps
from alembic.util import DispatchPriority

from pgqpy.alembic._operations import CaptureTableOp, CreateQueueOp, DropQueueOp, ReleaseTableOp
from pgqpy.errors import SchemaMissing
from pgqpy.sqlalchemy._capture import Capture, captures_of

Key: TypeAlias = tuple[str, str, str]
"""Schema, table and queue of a capture."""


@dataclass(frozen=True, slots=True)
class Captured:
    """An existing capture; ``key`` is set only if it is not the table's ``primary_key``."""

    schema: str
    table_name: str
    capture: Capture
    primary_key: tuple[str, ...]


class Database:
    """Reads only what every role may read."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self.default_schema = connection.dialect.default_schema_name or "public"

    def installed(self) -> bool:
        """Whether the schema is installed."""
        return self._connection.scalar(sa.text(_INSTALLED)) is True

    def schemas(self) -> set[str]:
        """PgQ's own schemas."""
        return set(self._connection.scalars(sa.text(_SCHEMAS)))

    def queues(self) -> set[str]:
        """The names of all queues."""
        return set(self._connection.scalars(sa.text("select queue_name from pgq.queue")))

    def has_consumers(self, queue: str) -> bool:
        """Whether a queue has consumers."""
        return self._connection.scalar(sa.text(_HAS_CONSUMERS), {"queue": queue}) is True

    def settings(self, queue: str) -> dict[str, Any]:
        """Return the settings of a queue that differ from the defaults, for
        pgq.set_queue_config."""
        columns = [f"queue_{parameter}" for parameter in SETTINGS]
        rows = self._connection.execute(_SETTINGS, {"queue": queue, "columns": columns}).all()
        settings = {row.parameter: row.value for row in rows if row.changed}
        if "ticker_max_lag" in settings:
            # Setting ticker_max_lag turns early ticks off.
            settings |= {row.parameter: row.value for row in rows if row.parameter == _LATENCY}
        return settings

    def captured(self) -> dict[Key, Captured]:
        """Return the captures."""
        found = {}
        for row in self._connection.execute(sa.text(_CAPTURED)).mappings():
            schema, table_name = row["names"]
            options = {option: row[option] for option in _OPTIONS}
            if row["key"] == row["primary_key"]:
                options["key"] = None
            capture = Capture(row["queue_name"], **options)
            found[schema, table_name, capture.queue] = Captured(
                schema, table_name, capture, tuple(row["primary_key"])
            )
        return found


#: The parameters of pgq.set_queue_config.
SETTINGS = (
    *("ticker_max_count", "ticker_max_lag", "ticker_idle_period", "ticker_paused"),
    *("ticker_latency", "rotation_period", "external_ticker", "per_tx_limit"),
    *("disable_insert", "key_window", "keep", "keep_bytes"),
)

_LATENCY = "ticker_latency"

_OPTIONS = (
    *("operations", "columns", "exclude", "key"),
    *("old_values", "condition", "format", "key_changes"),
)

_INSTALLED = "select to_regclass('pgq.queue') is not null"

_SCHEMAS = """
select nspname
  from pg_catalog.pg_namespace
 where nspname in ('pgq', 'pgq_ext', 'pgq_coop', 'pgq_node', 'pgq_task')
    or nspowner = pg_catalog.to_regrole('pgq_owner')
"""

_HAS_CONSUMERS = "select exists (select from pgq.get_consumer_info(:queue))"

_CAPTURED = """
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
"""

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


def register() -> None:
    """Register the comparisons with Alembic."""
    # Queues before Alembic compares tables, captures after it.
    for function, priority in (
        (leave_pgq_out, DispatchPriority.FIRST),
        (compare_captures, DispatchPriority.LAST),
    ):
        comparators.dispatch_for("schema", qualifier="postgresql", priority=priority)(function)


def leave_pgq_out(
    context: AutogenContext, upgrade_ops: UpgradeOps, schemas: set[str | None]
) -> None:
    """Exclude PgQ's schemas with ``include_schemas``."""
    schemas.difference_update(_database(context).schemas())


def compare_captures(
    context: AutogenContext, upgrade_ops: UpgradeOps, schemas: set[str | None]
) -> None:
    """Add the operations that make the captures match the models."""
    database = _database(context)
    declared = _declared(context, database.default_schema)
    if not database.installed():
        if declared:
            raise SchemaMissing(
                "tables are declared to be captured, and the database has no schema pgq"
            )
        return
    there = database.captured()
    ours = _ours(context, upgrade_ops, there, database.default_schema)

    kept = {key for key, op in declared.items() if key in ours and _alike(ours[key], op.capture)}
    added = {key: op for key, op in declared.items() if key not in kept}
    gone = {key: captured for key, captured in ours.items() if key not in kept}
    for key in sorted(added.keys() | gone.keys()):
        what = "added" if key not in gone else "removed" if key not in added else "changed"
        logger.info("Detected %s capture of %s.%s into queue %r", what, *key)

    queues = {queue for _, _, queue in declared}
    upgrade_ops.ops[:0] = [
        *(CreateQueueOp(queue) for queue in sorted(queues - database.queues())),
        *(_release(captured, database.default_schema) for captured in gone.values()),
    ]
    # Queues whose last capture ends here, and that have no consumers.
    queues |= {queue for _, _, queue in there.keys() - gone.keys()}
    unused = sorted({queue for _, _, queue in gone} - queues)
    upgrade_ops.ops += [
        *added.values(),
        *(
            DropQueueOp(queue, settings=database.settings(queue))
            for queue in unused
            if not database.has_consumers(queue)
        ),
    ]


def _declared(context: AutogenContext, default_schema: str) -> dict[Key, CaptureTableOp]:
    """The captures that the models declare."""
    declared = {}
    for table in context.sorted_tables:
        name = str(table.name)
        if context.run_object_filters(table, name, "table", False, None):
            for capture in captures_of(table):
                key = (table.schema or default_schema, name, capture.queue)
                declared[key] = CaptureTableOp(name, capture, schema=table.schema)
    return declared


def _ours(
    context: AutogenContext,
    upgrade_ops: UpgradeOps,
    there: Mapping[Key, Captured],
    default_schema: str,
) -> dict[Key, Captured]:
    """Return the captures of the application's tables, including tables dropped now."""
    tables = {
        (table.schema or default_schema, str(table.name))
        for table in context.sorted_tables
        if context.run_object_filters(table, str(table.name), "table", False, None)
    }
    tables |= {
        (op.schema or default_schema, str(op.table_name))
        for op in upgrade_ops.ops
        if isinstance(op, DropTableOp)
    }

    def wanted(schema: str, table: str, queue: str) -> bool:
        parents = {"schema_name": schema, "table_name": table}
        filters: Any = context.run_name_filters
        return (schema, table) in tables and filters(queue, "pgq_queue", parents)

    return {key: captured for key, captured in there.items() if wanted(*key)}


def _alike(captured: Captured, capture: Capture) -> bool:
    """Whether a capture matches its declaration; the order of column names does not matter."""

    def comparable(each: Capture) -> Capture:
        return replace(
            each,
            columns=each.columns and sorted(each.columns),
            exclude=each.exclude and sorted(each.exclude),
            key=None if each.key == captured.primary_key else each.key,
        )

    return comparable(captured.capture) == comparable(capture)


def _release(captured: Captured, default_schema: str) -> ReleaseTableOp:
    schema = None if captured.schema == default_schema else captured.schema
    return ReleaseTableOp(captured.table_name, captured.capture, schema=schema)


def _database(context: AutogenContext) -> Database:
    connection = context.connection
    assert isinstance(connection, sa.Connection)
    return Database(connection)
