"""The operations of migrations, and how autogenerate proposes and writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from alembic.autogenerate.api import AutogenContext
from alembic.autogenerate.render import renderers
from alembic.operations import MigrateOperation, Operations

from pgqpy.errors import PgqError
from pgqpy.sqlalchemy._capture import Capture, call, capture_table, execute, quoted
from pgqpy.sqlalchemy._session import translate_errors
from pgqpy.tasks import TaskColumnNames


def _send(operations: Operations, statement: str) -> Any:
    """Execute a statement exactly as it is, and return its value; offline print it, for None."""
    context = operations.migration_context
    if context.as_sql:
        context.impl.static_output(statement + context.impl.command_terminator)
        return None
    with translate_errors():
        return execute(operations.get_bind(), statement).scalar_one()


class PgqOperations:
    """The operations, by their names."""

    @classmethod
    def create_queue(
        cls, operations: Operations, queue: str, *, if_not_exists: bool = False, **settings: object
    ) -> None:
        """Create a queue; ``settings`` are pgq.set_queue_config's, such as ``ticker_max_lag``.

        Raises PgqError if it exists, unless ``if_not_exists`` (what is printed by ``--sql`` never
        does), PermissionDenied, InvalidParameter.
        """
        if _send(operations, call("pgq.create_queue", queue)) == 0 and not if_not_exists:
            raise PgqError(
                f"queue {queue!r} exists already",
                hint="Give if_not_exists=True if this migration shall not mind.",
            )
        # Setting ticker_max_lag turns early ticks off, so ticker_latency comes after it.
        for name in sorted(settings, key=lambda name: (name == "ticker_latency", name)):
            value = settings[name]
            text = str(value).lower() if isinstance(value, bool) else str(value)
            given = None if value is None else text
            _send(operations, call("pgq.set_queue_config", queue, name, given))

    @classmethod
    def drop_queue(cls, operations: Operations, queue: str, *, force: bool = False) -> None:
        """Drop a queue and its events; with ``force`` its consumers, too.

        Raises QueueInUse if it has consumers and ``force`` is not set, QueueNotFound.
        """
        _send(operations, call("pgq.drop_queue", queue, force))

    @classmethod
    def restrict_queue(cls, operations: Operations, queue: str, *, restricted: bool = True) -> None:
        """Call `pgq.restrict_queue`."""
        _send(operations, call("pgq.restrict_queue", queue, restricted))

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
        _send(operations, call("pgq.grant_queue", queue, list(actions), role, consumer))

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
        _send(operations, call("pgq.revoke_queue", queue, list(actions), role, consumer))

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
        _send(operations, capture_table(table_name, schema, capture, replace=replace))

    @classmethod
    def release_table(
        cls, operations: Operations, table_name: str, queue: str, *, schema: str | None = None
    ) -> None:
        """End the capture of a table into a queue; what was captured stays there.

        Raises CaptureError if it is not captured into it.
        """
        _send(operations, call("pgq.release_table", quoted(table_name, schema), queue))

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
        table = _task_table(table_name, schema, names)
        given = (queue_new, queue_existing, create_index)
        _send(operations, call("pgq_task.add_columns", *table, *given))
        if notify:
            _send(operations, call("pgq_task.notify_workers", *table))

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
        table = _task_table(table_name, schema, names)
        _send(operations, call("pgq_task.remove_columns", *table, force))


for _name in vars(PgqOperations):
    if not _name.startswith("_"):
        Operations.register_operation(_name)(PgqOperations)


def _task_table(table: str, schema: str | None, names: TaskColumnNames | None) -> tuple[str, str]:
    return quoted(table, schema), json.dumps(asdict(names or TaskColumnNames()))


# --- what autogenerate proposes


class Call(NamedTuple):
    """An operation with its arguments, as migrations write it."""

    name: str
    arguments: tuple[str, ...]
    options: dict[str, Any]


class PgqOp(MigrateOperation):
    """A difference between models and database: the call that removes it, and its reverse."""

    def __init__(self, forth: Call, back: Call) -> None:
        self.forth = forth
        self.back = back

    def reverse(self) -> PgqOp:
        return PgqOp(self.back, self.forth)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        return (self.forth.name, *self.forth.arguments, self.forth.options)


def queue_op(queue: str, **settings: object) -> PgqOp:
    """Propose to create a queue; reversed, to drop it."""
    return PgqOp(Call("create_queue", (queue,), settings), Call("drop_queue", (queue,), {}))


def capture_op(table: str, schema: str | None, capture: Capture) -> PgqOp:
    """Propose to capture a table; reversed, to end that."""
    names = (table, capture.queue)
    where = {} if schema is None else {"schema": schema}
    return PgqOp(
        Call("capture_table", names, where | capture.options()), Call("release_table", names, where)
    )


@Operations.implementation_for(PgqOp)
def _run(operations: Operations, operation: PgqOp) -> None:
    name, arguments, options = operation.forth
    getattr(operations, name)(*arguments, **options)


@renderers.dispatch_for(PgqOp)
def _text(context: AutogenContext, operation: PgqOp) -> str:
    name, names, options = operation.forth
    # SQLAlchemy's names may be a string subclass with another repr().
    arguments = [repr(str(name)) for name in names]
    arguments += [f"{option}={value!r}" for option, value in options.items()]
    prefix = context.opts["alembic_module_prefix"] or ""
    return f"{prefix}{name}({', '.join(arguments)})"
