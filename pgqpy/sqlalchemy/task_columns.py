"""The columns that make the rows of a mapped class tasks."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, MappedColumn, mapped_column

from pgqpy.tasks import TaskColumnNames

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
