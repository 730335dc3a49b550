"""Autogenerate: what the models declare, compared with what the database captures."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from alembic.autogenerate.api import AutogenContext
from alembic.autogenerate.compare import comparators
from alembic.operations.ops import DropTableOp, UpgradeOps
from alembic.util import DispatchPriority

from pgqpy.alembic.database import Captured, Database, Key
from pgqpy.alembic.operations import CaptureTableOp, CreateQueueOp, DropQueueOp, ReleaseTableOp
from pgqpy.errors import SchemaMissing
from pgqpy.sqlalchemy.capture import Capture
from pgqpy.sqlalchemy.declared import captures_of

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
                "tables are declared to be captured, and the database has no schema pgq",
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
