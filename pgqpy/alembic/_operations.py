"""The operations: their arguments, their reversal, and the statements they execute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from alembic.autogenerate.api import AutogenContext
from alembic.autogenerate.render import renderers
from alembic.operations import MigrateOperation, Operations

from pgqpy.errors import PgqError
from pgqpy.sqlalchemy import _statements as statements
from pgqpy.sqlalchemy._capture import Capture
from pgqpy.sqlalchemy._session import translate_errors
from pgqpy.sqlalchemy._statements import execute
from pgqpy.tasks import TaskColumnNames


@Operations.register_operation("create_queue")
@dataclass(eq=False)
class CreateQueueOp(MigrateOperation):
    """Creates a queue."""

    queue: str
    if_not_exists: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def create_queue(
        cls,
        operations: Operations,
        queue: str,
        *,
        if_not_exists: bool = False,
        **settings: object,
    ) -> None:
        """Create a queue; ``settings`` are pgq.set_queue_config's, such as ``ticker_max_lag``.

        Raises PgqError if it exists, unless ``if_not_exists`` (what is printed by ``--sql`` never
        does), PermissionDenied, InvalidParameter.
        """
        operations.invoke(cls(queue, if_not_exists=if_not_exists, settings=settings))

    def reverse(self) -> MigrateOperation:
        return DropQueueOp(self.queue, settings=self.settings)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        return ("create_queue", self.queue)


@Operations.register_operation("drop_queue")
@dataclass(eq=False)
class DropQueueOp(MigrateOperation):
    """Drops a queue; ``settings`` are for creating it again."""

    queue: str
    force: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def drop_queue(cls, operations: Operations, queue: str, *, force: bool = False) -> None:
        """Drop a queue and its events; with ``force`` its consumers, too.

        Raises QueueInUse if it has consumers and ``force`` is not set, QueueNotFound.
        """
        operations.invoke(cls(queue, force=force))

    def reverse(self) -> MigrateOperation:
        return CreateQueueOp(self.queue, settings=self.settings)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        return ("drop_queue", self.queue)


@Operations.register_operation("capture_table")
@dataclass(eq=False)
class CaptureTableOp(MigrateOperation):
    """Captures a table into a queue."""

    table_name: str
    capture: Capture
    schema: str | None = None
    replace: bool = False

    @classmethod
    def capture_table(
        cls,
        operations: Operations,
        /,  # so that there can be an option of this name
        table_name: str,
        queue: str,
        *,
        schema: str | None = None,
        replace: bool = False,
        **options: Any,
    ) -> None:
        """Capture a table; ``options`` are those of `pgqpy.sqlalchemy.Capture`.

        Raises QueueNotFound, NoPrimaryKey, InvalidParameter, PermissionDenied, and CaptureError
        if it is captured into this queue already, unless ``replace``.
        """
        capture = Capture(queue, **options)
        operations.invoke(cls(table_name, capture, schema=schema, replace=replace))

    def reverse(self) -> MigrateOperation:
        return ReleaseTableOp(self.table_name, self.capture, schema=self.schema)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        return ("capture_table", self.schema, self.table_name, self.capture)


@Operations.register_operation("release_table")
@dataclass(eq=False)
class ReleaseTableOp(MigrateOperation):
    """Ends the capture of a table into a queue; its options are for capturing it again."""

    table_name: str
    capture: Capture
    schema: str | None = None

    @classmethod
    def release_table(
        cls,
        operations: Operations,
        table_name: str,
        queue: str,
        *,
        schema: str | None = None,
    ) -> None:
        """End the capture of a table into a queue; what was captured stays there.

        Raises CaptureError if it is not captured into it.
        """
        operations.invoke(cls(table_name, Capture(queue), schema=schema))

    def reverse(self) -> MigrateOperation:
        return CaptureTableOp(self.table_name, self.capture, schema=self.schema)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        return ("release_table", self.schema, self.table_name, self.capture)


@Operations.register_operation("add_task_columns")
@dataclass(eq=False)
class AddTaskColumnsOp(MigrateOperation):
    """Makes the rows of a table tasks."""

    table_name: str
    schema: str | None = None
    names: TaskColumnNames = field(default_factory=TaskColumnNames)
    notify: bool = False
    options: Mapping[str, bool] = field(default_factory=dict)

    @classmethod
    def add_task_columns(
        cls,
        operations: Operations,
        table_name: str,
        *,
        schema: str | None = None,
        names: TaskColumnNames | None = None,
        queue_new: bool = True,
        queue_existing: bool = False,
        create_index: bool = True,
        notify: bool = False,
    ) -> None:
        """Call `pgq_task.add_columns`, and with ``notify`` `pgq_task.notify_workers`.

        Raises InvalidTaskTable, InvalidTask, PermissionDenied.
        """
        options = {
            "queue_new": queue_new,
            "queue_existing": queue_existing,
            "create_index": create_index,
        }
        operations.invoke(cls(table_name, schema, names or TaskColumnNames(), notify, options))

    def reverse(self) -> MigrateOperation:
        return RemoveTaskColumnsOp(self.table_name, schema=self.schema, names=self.names)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        return ("add_task_columns", self.schema, self.table_name, self.names)


@Operations.register_operation("remove_task_columns")
@dataclass(eq=False)
class RemoveTaskColumnsOp(MigrateOperation):
    """Removes the task columns of a table."""

    table_name: str
    schema: str | None = None
    names: TaskColumnNames = field(default_factory=TaskColumnNames)
    force: bool = False

    @classmethod
    def remove_task_columns(
        cls,
        operations: Operations,
        table_name: str,
        *,
        schema: str | None = None,
        names: TaskColumnNames | None = None,
        force: bool = False,
    ) -> None:
        """Call `pgq_task.remove_columns`: the columns, their index and the triggers are dropped.

        Raises TaskQueueNotEmpty if rows wait and ``force`` is not set, InvalidTaskTable,
        InvalidTask, PermissionDenied.
        """
        operations.invoke(cls(table_name, schema, names or TaskColumnNames(), force))

    def reverse(self) -> MigrateOperation:
        return AddTaskColumnsOp(self.table_name, schema=self.schema, names=self.names)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        return ("remove_task_columns", self.schema, self.table_name, self.names)


@Operations.implementation_for(CreateQueueOp)
def _create_queue(operations: Operations, operation: CreateQueueOp) -> None:
    created = _run(operations, statements.create_queue(operation.queue))
    if created == 0 and not operation.if_not_exists:
        raise PgqError(
            f"queue {operation.queue!r} exists already",
            hint="Give if_not_exists=True if this migration shall not mind.",
        )
    for parameter in sorted(operation.settings, key=_setting_order):
        value = operation.settings[parameter]
        _run(operations, statements.set_queue_config(operation.queue, parameter, value))


@Operations.implementation_for(DropQueueOp)
def _drop_queue(operations: Operations, operation: DropQueueOp) -> None:
    _run(operations, statements.drop_queue(operation.queue, force=operation.force))


@Operations.implementation_for(CaptureTableOp)
def _capture_table(operations: Operations, operation: CaptureTableOp) -> None:
    _run(
        operations,
        statements.capture_table(
            operation.table_name, operation.schema, operation.capture, replace=operation.replace
        ),
    )


@Operations.implementation_for(ReleaseTableOp)
def _release_table(operations: Operations, operation: ReleaseTableOp) -> None:
    _run(
        operations,
        statements.release_table(operation.table_name, operation.schema, operation.capture.queue),
    )


@Operations.implementation_for(AddTaskColumnsOp)
def _add_task_columns(operations: Operations, operation: AddTaskColumnsOp) -> None:
    table = operation.table_name, operation.schema, asdict(operation.names)
    _run(operations, statements.add_task_columns(*table, operation.options))
    if operation.notify:
        _run(operations, statements.notify_workers(*table))


@Operations.implementation_for(RemoveTaskColumnsOp)
def _remove_task_columns(operations: Operations, operation: RemoveTaskColumnsOp) -> None:
    table = operation.table_name, operation.schema, asdict(operation.names)
    _run(operations, statements.remove_task_columns(*table, force=operation.force))


def _run(operations: Operations, statement: str) -> Any:
    """Execute a statement and return its result; offline, print it exactly as it is."""
    context = operations.migration_context
    if context.as_sql:
        context.impl.static_output(statement + context.impl.command_terminator)
        return None
    with translate_errors():
        return execute(operations.get_bind(), statement).scalar_one()


def _setting_order(parameter: str) -> tuple[bool, str]:
    # Setting ticker_max_lag turns early ticks off, so ticker_latency comes after it.
    return parameter == "ticker_latency", parameter


# --- autogenerate's text of the operations


def register_renderers() -> None:
    """Register the text that autogenerate writes."""
    renderers.dispatch_for(CreateQueueOp, replace=True)(_create_queue_text)
    renderers.dispatch_for(DropQueueOp, replace=True)(_drop_queue_text)
    renderers.dispatch_for(CaptureTableOp, replace=True)(_capture_table_text)
    renderers.dispatch_for(ReleaseTableOp, replace=True)(_release_table_text)


def _create_queue_text(context: AutogenContext, operation: CreateQueueOp) -> str:
    options = dict(operation.settings)
    if operation.if_not_exists:
        options["if_not_exists"] = True
    return _call(context, "create_queue", operation.queue, **options)


def _drop_queue_text(context: AutogenContext, operation: DropQueueOp) -> str:
    options = {"force": True} if operation.force else {}
    return _call(context, "drop_queue", operation.queue, **options)


def _capture_table_text(context: AutogenContext, operation: CaptureTableOp) -> str:
    options = _schema(operation.schema) | operation.capture.options()
    if operation.replace:
        options["replace"] = True
    return _call(context, "capture_table", operation.table_name, operation.capture.queue, **options)


def _release_table_text(context: AutogenContext, operation: ReleaseTableOp) -> str:
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
