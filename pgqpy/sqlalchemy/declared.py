"""Declarations of models: ``__pgq_queue__`` of a mapped class, `declare_capture` for a Table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import mapperlib

from pgqpy.errors import InvalidParameter
from pgqpy.sqlalchemy.capture import Capture

ATTRIBUTE = "__pgq_queue__"
# In the info of the MetaData: Alembic writes a Table's own info into migrations.
INFO_KEY = "pgq_captures"


def declare_capture(table: sa.Table, *captures: str | Capture) -> None:
    """Declare the capture of a table without a mapped class: ``__pgq_queue__`` for Core."""
    declared = table.metadata.info.setdefault(INFO_KEY, {})
    declared[table.key] = [*declared.get(table.key, ()), *captures]


def captures_of(table: sa.Table) -> list[Capture]:
    """Return a table's declared captures, one `Capture` for each queue.

    Raises InvalidParameter for a declaration that is invalid, or that contradicts another.
    """
    captures: dict[str, Capture] = {}
    for where, declaration in _declarations(table):
        for capture in _captures(where, declaration):
            _check_columns(where, capture, table)
            if captures.setdefault(capture.queue, capture) != capture:
                raise InvalidParameter(
                    f"{where} captures table {table.fullname} into queue {capture.queue!r} in"
                    " another way than another class of the same table",
                    hint="The capture is the table's: declare it once.",
                )
    return list(captures.values())


def _declarations(table: sa.Table) -> Iterator[tuple[str, Any]]:
    """Yield a table's declarations, and their places.

    Looked up when needed, so the order of imports does not matter. SQLAlchemy has no public way to
    enumerate mappings.
    """
    declared = table.metadata.info.get(INFO_KEY, {})
    yield f"declare_capture() of table {table.fullname}", declared.get(table.key)
    classes = (
        mapper.class_
        for registry in mapperlib._all_registries()
        for mapper in registry.mappers
        if mapper.local_table is table
    )
    for cls in sorted(classes, key=lambda cls: (cls.__module__, cls.__qualname__)):
        yield f"{ATTRIBUTE} of class {cls.__qualname__}", getattr(cls, ATTRIBUTE, None)


def _captures(where: str, declaration: Any) -> Iterator[Capture]:
    if declaration is None:
        return
    if not isinstance(declaration, (list, tuple)):
        declaration = [declaration]
    for item in declaration:
        if isinstance(item, str):
            yield Capture(item)
        elif isinstance(item, Capture):
            yield item
        else:
            raise InvalidParameter(
                f"{where} cannot be {item!r:.80}",
                hint="It is the name of a queue, a pgqpy.sqlalchemy.Capture, or a list of these.",
            )


def _check_columns(where: str, capture: Capture, table: sa.Table) -> None:
    names = [column.name for column in table.columns]
    missing: Iterable[str] = sorted(capture.column_names() - set(names))
    if missing:
        raise InvalidParameter(
            f"{where}: table {table.fullname} has no column {', '.join(missing)}",
            hint=f"The columns of the table are {', '.join(names)}.",
        )
