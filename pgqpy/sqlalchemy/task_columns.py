"""The columns that make the rows of a mapped class tasks."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, MappedColumn, mapped_column

from pgqpy.tasks.table.columns import TaskColumnNames

_TIME = sa.DateTime(timezone=True)


def _add_index(column: sa.Column[Any], table: sa.Table) -> None:
    sa.Index(
        f"{table.name}_{column.name}_idx",
        column,
        postgresql_where=column.is_not(None),
        # As of a column with index=True: copied with the column.
        _column_flag=True,
    )


def _status() -> MappedColumn[str]:
    return mapped_column(sa.Text, nullable=False, server_default="new")


def _next_attempt() -> MappedColumn[datetime | None]:
    # No default of the server's: a migration that added it would make all rows due that are there.
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
    """A mixin: rows of the class are worked on by a `ModelWorker`, or a `pgqpy.tasks.TableWorker`.

    The columns, and the index, are those of `pgq_task.add_columns`; what is inserted by SQLAlchemy
    is due at once unless it says otherwise.
    """

    __task_columns__ = TaskColumnNames()

    #: How the last attempt ended: ``new`` (there was none), ``succeeded`` or ``failed``.
    status: Mapped[str] = _status()
    #: From when on the row is to be processed; None: not at all.
    next_attempt: Mapped[datetime | None] = _next_attempt()
    #: How often it was tried.
    attempts: Mapped[int] = _attempts()
    #: When it was tried last.
    last_attempt: Mapped[datetime | None] = _last_attempt()
    #: Why the last attempt that failed did.
    last_error: Mapped[str | None] = _last_error()


def task_columns(names: TaskColumnNames) -> type[Any]:
    """A mixin as `TaskColumns`, whose columns, and attributes, have other names."""
    namespace: dict[str, Any] = {
        "__task_columns__": names,
        names.status: _status(),
        names.next_attempt: _next_attempt(),
        names.attempts: _attempts(),
        names.last_attempt: _last_attempt(),
        names.last_error: _last_error(),
    }
    return type("TaskColumns", (), namespace)
