"""The columns that make the rows of a mapped class tasks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, MappedColumn, Mapper, mapped_column

from pgqpy.errors import InvalidConsumer
from pgqpy.sqlalchemy._capture import quoted
from pgqpy.tasks import TaskColumnNames

Key: TypeAlias = tuple[sa.ColumnElement[Any], ...]

_TIME = sa.DateTime(timezone=True)


def _add_index(column: sa.Column[Any], table: sa.Table) -> None:
    sa.Index(
        f"{table.name}_{column.name}_idx",
        column,
        postgresql_where=column.is_not(None),
        # Like that of a column with index=True: copied with the column.
        _column_flag=True,
    )


def _status() -> MappedColumn[str]:
    return mapped_column(sa.Text, nullable=False, server_default="new")


def _next_attempt() -> MappedColumn[datetime | None]:
    # No server default: a migration that adds the column would make all existing rows due.
    column: MappedColumn[datetime | None]
    column = mapped_column(_TIME, nullable=True, insert_default=sa.func.clock_timestamp())
    sa.event.listen(column.column, "after_parent_attach", _add_index, propagate=True)
    return column


def _attempts() -> MappedColumn[int]:
    return mapped_column(sa.Integer, nullable=False, server_default="0")


def _last_attempt() -> MappedColumn[datetime | None]:
    return mapped_column(_TIME, nullable=True)


def _last_error() -> MappedColumn[str | None]:
    return mapped_column(sa.Text, nullable=True)


class TaskColumns:
    """A mixin for rows that a `ModelWorker`, or a `pgqpy.tasks.TableWorker`, works on.

    The columns, and the index, are those of `pgq_task.add_columns`; rows inserted by SQLAlchemy
    are due at once unless they say otherwise.
    """

    __task_columns__ = TaskColumnNames()

    #: How the last attempt ended: ``new`` (there was none), ``succeeded`` or ``failed``.
    status: Mapped[str] = _status()
    #: The time from which the row is due; None: never.
    next_attempt: Mapped[datetime | None] = _next_attempt()
    #: The number of attempts.
    attempts: Mapped[int] = _attempts()
    #: The time of the last attempt.
    last_attempt: Mapped[datetime | None] = _last_attempt()
    #: The error of the last failed attempt.
    last_error: Mapped[str | None] = _last_error()


def task_columns(names: TaskColumnNames) -> type[Any]:
    """Return a mixin like `TaskColumns`, with other names of columns and attributes."""
    namespace: dict[str, Any] = {
        "__task_columns__": names,
        names.status: _status(),
        names.next_attempt: _next_attempt(),
        names.attempts: _attempts(),
        names.last_attempt: _last_attempt(),
        names.last_error: _last_error(),
    }
    return type("TaskColumns", (), namespace)


def table_and_key(worker: type, model: object) -> tuple[str, Key]:
    """Return the table of a mapped class, and its primary key. Raises InvalidConsumer."""
    mapper = sa.inspect(model, raiseerr=False)
    if not isinstance(mapper, Mapper) or not isinstance(mapper.local_table, sa.Table):
        raise InvalidConsumer(
            f"{worker.__name__}: model is {model!r}; it must be a class that is mapped to a table"
        )
    return quoted(mapper.local_table.name, mapper.local_table.schema), mapper.primary_key


def key_of(row: Mapping[str, Any], key: Key, dialect: sa.Dialect) -> list[Any]:
    """Return the values of a row's key, as those of an object."""
    values = []
    for column in key:
        python = column.type.dialect_impl(dialect).result_processor(dialect, None)
        value = row[column.name]
        values.append(value if python is None else python(value))
    return values
