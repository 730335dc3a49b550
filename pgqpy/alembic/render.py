"""Autogenerate's text of the operations."""

from __future__ import annotations

from typing import Any

from alembic.autogenerate.api import AutogenContext
from alembic.autogenerate.render import renderers

from pgqpy.alembic.operations import CaptureTableOp, CreateQueueOp, DropQueueOp, ReleaseTableOp


def register() -> None:
    """Register the renderers with Alembic."""
    renderers.dispatch_for(CreateQueueOp, replace=True)(_create_queue)
    renderers.dispatch_for(DropQueueOp, replace=True)(_drop_queue)
    renderers.dispatch_for(CaptureTableOp, replace=True)(_capture_table)
    renderers.dispatch_for(ReleaseTableOp, replace=True)(_release_table)


def _create_queue(context: AutogenContext, operation: CreateQueueOp) -> str:
    options = dict(operation.settings)
    if operation.if_not_exists:
        options["if_not_exists"] = True
    return _call(context, "create_queue", operation.queue, **options)


def _drop_queue(context: AutogenContext, operation: DropQueueOp) -> str:
    options = {"force": True} if operation.force else {}
    return _call(context, "drop_queue", operation.queue, **options)


def _capture_table(context: AutogenContext, operation: CaptureTableOp) -> str:
    options = _schema(operation.schema) | operation.capture.options()
    if operation.replace:
        options["replace"] = True
    return _call(context, "capture_table", operation.table_name, operation.capture.queue, **options)


def _release_table(context: AutogenContext, operation: ReleaseTableOp) -> str:
    return _call(
        context,
        "release_table",
        operation.table_name,
        operation.capture.queue,
        **_schema(operation.schema),
    )


def _schema(schema: str | None) -> dict[str, Any]:
    return {} if schema is None else {"schema": schema}


def _call(context: AutogenContext, function: str, *names: str, **options: object) -> str:
    # SQLAlchemy's names may be a string subclass with another repr().
    arguments = [repr(str(name)) for name in names]
    arguments += [f"{name}={value!r}" for name, value in options.items()]
    prefix = context.opts["alembic_module_prefix"] or ""
    return f"{prefix}{function}({', '.join(arguments)})"
