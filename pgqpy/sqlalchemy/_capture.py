"""Captures of tables: ``__pgq_queue__`` of a mapped class, `declare_capture` for a Table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.orm import mapperlib

from pgqpy._wire.statements import checked
from pgqpy.errors import InvalidParameter
from pgqpy.sqlalchemy._session import translate_errors

OPERATIONS = ("insert", "update", "delete", "truncate")

_LISTS = ("operations", "columns", "exclude", "key")


@dataclass(frozen=True, slots=True)
class Capture:
    """Captures a table into a queue; the options are pgq.capture_table's (docs/capture.md).

    Raises InvalidParameter for options that are invalid for any table.
    """

    queue: str
    operations: Collection[str] = OPERATIONS
    columns: Collection[str] | None = None
    exclude: Collection[str] | None = None
    key: Collection[str] | None = None
    old_values: str = "none"
    condition: str | None = None
    format: str = "row_json"
    key_changes: str = "split"

    def __post_init__(self) -> None:
        if not self.queue:
            raise InvalidParameter("a capture needs the name of a queue")
        for name in _LISTS:
            value = getattr(self, name)
            if isinstance(value, str):
                raise InvalidParameter(
                    f"{name} of a capture is a list of names, not {value!r}",
                    hint=f"Write {name}=[{value!r}].",
                )
            if value is not None:
                object.__setattr__(self, name, tuple(value))
        unknown = set(self.operations) - set(OPERATIONS)
        if unknown or not self.operations:
            raise InvalidParameter(
                f"operations of a capture cannot be {list(self.operations)}",
                hint=f"They are some of {', '.join(OPERATIONS)}.",
            )
        # In one order: the same operations are equal, however they are written.
        given = tuple(name for name in OPERATIONS if name in self.operations)
        object.__setattr__(self, "operations", given)

    def options(self) -> dict[str, Any]:
        """Return the options that are not the defaults; lists are lists."""
        chosen = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "queue" and value != field.default:
                chosen[field.name] = list(value) if isinstance(value, tuple) else value
        return chosen

    def column_names(self) -> set[str]:
        """Return all columns that the options name."""
        return {*(self.columns or ()), *(self.exclude or ()), *(self.key or ())}


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


# --- creation: migrations print these statements, too


def call(function: str, *arguments: object, **options: object) -> str:
    """Return the call of an SQL function, with options as ``name => value``."""
    values = [*map(literal, arguments)]
    values += [f"{name} => {literal(value)}" for name, value in options.items()]
    return f"select {function}({', '.join(values)})"


def capture_table(table: str, schema: str | None, capture: Capture, *, replace: bool) -> str:
    """Capture a table."""
    options = capture.options()
    if "operations" in options:
        options["operations"] = ",".join(options["operations"])
    if replace:
        options["replace"] = True
    return call("pgq.capture_table", quoted(table, schema), capture.queue, **options)


def literal(value: Any) -> str:
    """Return a value as an SQL literal. Raises InvalidPayload if no text can hold it."""
    checked([value])
    if isinstance(value, list):
        return f"array[{', '.join(map(literal, value))}]"
    return sql.Literal(value).as_string(None).strip()


def quoted(table: str, schema: str | None) -> str:
    """Return the name of a table as SQL writes it."""
    parts = (table,) if schema is None else (schema, table)
    return sql.Identifier(*parts).as_string(None)


def listen() -> None:
    """Listen for the creation of all tables from now on."""
    sa.event.listen(sa.Table, "after_create", _after_create)


def _after_create(table: sa.Table, connection: sa.Connection, **_: Any) -> None:
    captures = captures_of(table)
    if not captures or connection.dialect.name != "postgresql":
        return
    # A connection that prints statements instead of executing them is no Connection.
    executes = isinstance(connection, sa.Connection)
    schema = connection.schema_for_object(table) if executes else table.schema
    with translate_errors():
        for capture in captures:
            # A role that may not create queues may capture into an existing one.
            if not (executes and connection.scalar(_QUEUE, {"queue": capture.queue})):
                execute(connection, call("pgq.create_queue", capture.queue))
            execute(connection, capture_table(table.name, schema, capture, replace=False))


_QUEUE = sa.text("select true from pgq.queue where queue_name = :queue")


def execute(connection: sa.Connection, statement: str) -> sa.CursorResult[Any]:
    """Execute a statement exactly as it is."""
    return connection.execute(sa.DDL(statement.replace("%", "%%")))  # type: ignore[no-untyped-call]
