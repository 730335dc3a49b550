"""The operations: their arguments, their reversal, and the statements they execute."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from alembic.autogenerate.api import AutogenContext
from alembic.autogenerate.render import renderers
from alembic.operations import MigrateOperation, Operations

from pgqpy.errors import PgqError
from pgqpy.sqlalchemy._capture import Capture, call, capture_table, execute, quoted
from pgqpy.sqlalchemy._session import translate_errors
from pgqpy.tasks import TaskColumnNames

_SUBJECT = ("queue", "schema", "table_name", "capture", "names")


class PgqOp(MigrateOperation):
    """Base of the operations."""

    function = ""
    """The name of the operation."""

    def run(self, send: Callable[[str], Any]) -> None:
        """Send the statements; ``send`` returns the result, or None offline."""
        raise NotImplementedError

    def arguments(self) -> tuple[list[str], dict[str, Any]]:
        """Return the arguments that autogenerate writes."""
        raise NotImplementedError

    def to_diff_tuple(self) -> tuple[Any, ...]:
        return (self.function, *(getattr(self, name) for name in _SUBJECT if hasattr(self, name)))


@Operations.implementation_for(PgqOp)
def _run(operations: Operations, operation: PgqOp) -> None:
    """Execute an operation; offline, print its statements exactly as they are."""
    context = operations.migration_context

    def send(statement: str) -> Any:
        if context.as_sql:
            context.impl.static_output(statement + context.impl.command_terminator)
            return None
        with translate_errors():
            return execute(operations.get_bind(), statement).scalar_one()

    operation.run(send)


Op = TypeVar("Op", bound=type[PgqOp])


def _operation(cls: Op) -> Op:
    Operations.register_operation(cls.function)(cls)
    return cls


@_operation
@dataclass(eq=False)
class CreateQueueOp(PgqOp):
    """Creates a queue."""

    function = "create_queue"

    queue: str
    if_not_exists: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def create_queue(
        cls, operations: Operations, queue: str, *, if_not_exists: bool = False, **settings: object
    ) -> None:
        """Create a queue; ``settings`` are pgq.set_queue_config's, such as ``ticker_max_lag``.

        Raises PgqError if it exists, unless ``if_not_exists`` (what is printed by ``--sql`` never
        does), PermissionDenied, InvalidParameter.
        """
        operations.invoke(cls(queue, if_not_exists=if_not_exists, settings=settings))

    def run(self, send: Callable[[str], Any]) -> None:
        if send(call("pgq.create_queue", self.queue)) == 0 and not self.if_not_exists:
            raise PgqError(
                f"queue {self.queue!r} exists already",
                hint="Give if_not_exists=True if this migration shall not mind.",
            )
        # Setting ticker_max_lag turns early ticks off, so ticker_latency comes after it.
        for name in sorted(self.settings, key=lambda name: (name == "ticker_latency", name)):
            value = self.settings[name]
            text = str(value).lower() if isinstance(value, bool) else str(value)
            send(call("pgq.set_queue_config", self.queue, name, None if value is None else text))

    def arguments(self) -> tuple[list[str], dict[str, Any]]:
        given = {"if_not_exists": True} if self.if_not_exists else {}
        return [self.queue], {**self.settings, **given}

    def reverse(self) -> MigrateOperation:
        return DropQueueOp(self.queue, settings=self.settings)


@_operation
@dataclass(eq=False)
class DropQueueOp(PgqOp):
    """Drops a queue; ``settings`` are for creating it again."""

    function = "drop_queue"

    queue: str
    force: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def drop_queue(cls, operations: Operations, queue: str, *, force: bool = False) -> None:
        """Drop a queue and its events; with ``force`` its consumers, too.

        Raises QueueInUse if it has consumers and ``force`` is not set, QueueNotFound.
        """
        operations.invoke(cls(queue, force=force))

    def run(self, send: Callable[[str], Any]) -> None:
        send(call("pgq.drop_queue", self.queue, self.force))

    def arguments(self) -> tuple[list[str], dict[str, Any]]:
        return [self.queue], {"force": True} if self.force else {}

    def reverse(self) -> MigrateOperation:
        return CreateQueueOp(self.queue, settings=self.settings)


@_operation
@dataclass(eq=False)
class RestrictQueueOp(PgqOp):
    """Restricts a queue to roles with grants, or opens it."""

    function = "restrict_queue"

    queue: str
    restricted: bool = True

    @classmethod
    def restrict_queue(cls, operations: Operations, queue: str, *, restricted: bool = True) -> None:
        """Call `pgq.restrict_queue`."""
        operations.invoke(cls(queue, restricted))

    def run(self, send: Callable[[str], Any]) -> None:
        send(call("pgq.restrict_queue", self.queue, self.restricted))

    def reverse(self) -> MigrateOperation:
        return RestrictQueueOp(self.queue, not self.restricted)


@_operation
@dataclass(eq=False)
class GrantQueueOp(PgqOp):
    """Grants a role actions on a queue."""

    function = "grant_queue"

    queue: str
    actions: Sequence[str]
    role: str
    consumer: str | None = None

    @classmethod
    def grant_queue(
        cls,
        operations: Operations,
        queue: str,
        actions: Sequence[str],
        role: str,
        *,
        consumer: str | None = None,
    ) -> None:
        """Call `pgq.grant_queue`. Raises InvalidParameter for an unknown role or action."""
        operations.invoke(cls(queue, actions, role, consumer))

    def run(self, send: Callable[[str], Any]) -> None:
        arguments = self.queue, list(self.actions), self.role, self.consumer
        send(call(f"pgq.{self.function}", *arguments))

    def reverse(self) -> MigrateOperation:
        return RevokeQueueOp(self.queue, self.actions, self.role, self.consumer)


@_operation
class RevokeQueueOp(GrantQueueOp):
    """Revokes what was granted."""

    function = "revoke_queue"

    @classmethod
    def revoke_queue(
        cls,
        operations: Operations,
        queue: str,
        actions: Sequence[str],
        role: str,
        *,
        consumer: str | None = None,
    ) -> None:
        """Call `pgq.revoke_queue`."""
        operations.invoke(cls(queue, actions, role, consumer))

    def reverse(self) -> MigrateOperation:
        return GrantQueueOp(self.queue, self.actions, self.role, self.consumer)


@_operation
@dataclass(eq=False)
class CaptureTableOp(PgqOp):
    """Captures a table into a queue."""

    function = "capture_table"

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

    def run(self, send: Callable[[str], Any]) -> None:
        send(capture_table(self.table_name, self.schema, self.capture, replace=self.replace))

    def arguments(self) -> tuple[list[str], dict[str, Any]]:
        given = {"replace": True} if self.replace else {}
        options = _schema(self.schema) | self.capture.options() | given
        return [self.table_name, self.capture.queue], options

    def reverse(self) -> MigrateOperation:
        return ReleaseTableOp(self.table_name, self.capture, schema=self.schema)


@_operation
@dataclass(eq=False)
class ReleaseTableOp(PgqOp):
    """Ends the capture of a table into a queue; its options are for capturing it again."""

    function = "release_table"

    table_name: str
    capture: Capture
    schema: str | None = None

    @classmethod
    def release_table(
        cls, operations: Operations, table_name: str, queue: str, *, schema: str | None = None
    ) -> None:
        """End the capture of a table into a queue; what was captured stays there.

        Raises CaptureError if it is not captured into it.
        """
        operations.invoke(cls(table_name, Capture(queue), schema=schema))

    def run(self, send: Callable[[str], Any]) -> None:
        table = quoted(self.table_name, self.schema)
        send(call("pgq.release_table", table, self.capture.queue))

    def arguments(self) -> tuple[list[str], dict[str, Any]]:
        return [self.table_name, self.capture.queue], _schema(self.schema)

    def reverse(self) -> MigrateOperation:
        return CaptureTableOp(self.table_name, self.capture, schema=self.schema)


@_operation
@dataclass(eq=False)
class AddTaskColumnsOp(PgqOp):
    """Makes the rows of a table tasks."""

    function = "add_task_columns"

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

    def run(self, send: Callable[[str], Any]) -> None:
        table = quoted(self.table_name, self.schema), json.dumps(asdict(self.names))
        send(call("pgq_task.add_columns", *table, **self.options))
        if self.notify:
            send(call("pgq_task.notify_workers", *table))

    def reverse(self) -> MigrateOperation:
        return RemoveTaskColumnsOp(self.table_name, schema=self.schema, names=self.names)


@_operation
@dataclass(eq=False)
class RemoveTaskColumnsOp(PgqOp):
    """Removes the task columns of a table."""

    function = "remove_task_columns"

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

    def run(self, send: Callable[[str], Any]) -> None:
        table = quoted(self.table_name, self.schema), json.dumps(asdict(self.names))
        send(call("pgq_task.remove_columns", *table, self.force))

    def reverse(self) -> MigrateOperation:
        return AddTaskColumnsOp(self.table_name, schema=self.schema, names=self.names)


def register_renderers() -> None:
    """Register the text that autogenerate writes."""
    renderers.dispatch_for(PgqOp, replace=True)(_text)


def _text(context: AutogenContext, operation: PgqOp) -> str:
    names, options = operation.arguments()
    # SQLAlchemy's names may be a string subclass with another repr().
    arguments = [repr(str(name)) for name in names]
    arguments += [f"{name}={value!r}" for name, value in options.items()]
    prefix = context.opts["alembic_module_prefix"] or ""
    return f"{prefix}{operation.function}({', '.join(arguments)})"


def _schema(schema: str | None) -> dict[str, Any]:
    return {} if schema is None else {"schema": schema}
