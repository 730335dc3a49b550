"""Captured changes, decoded without loss, and the last state of each key."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable
from functools import lru_cache
from typing import NamedTuple, TypeAlias, TypeVar, Union

from pgqpy import Event
from pgqpy.errors import PgqError
from pgqpy.formats import OPERATIONS, decode_urlencoded

# --- values, as the texts that a type's input function reads


class Number(str):
    """A JSON number with the digits that PostgreSQL wrote."""

    __slots__ = ()


Value: TypeAlias = Union[str, bool, "list[Value]", "dict[str, Value]", None]
"""Any JSON value; numbers are `Number`."""


def text(value: Value) -> str | None:
    """The text of a value that is not JSON; lists are arrays, dicts are composites."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, list):
        return "{" + ",".join(map(_element, value)) + "}"
    if isinstance(value, dict):
        return "(" + ",".join(map(_field, value.values())) + ")"
    return str(value)


def json_text(value: Value) -> str | None:
    """The text of a JSON value that was nested in a row's JSON."""
    # A null here may have been a JSON null; the two cannot be told apart.
    return None if value is None else _json(value)


def json_elements(value: Value) -> str | None:
    """The text of an array whose elements are JSON values."""
    if not isinstance(value, list):
        return text(value)
    written = map(json_text, value)
    return "{" + ",".join("NULL" if each is None else _quoted(each) for each in written) + "}"


def _json(value: Value) -> str:
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_json, value))}]"
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(key)}: {_json(each)}" for key, each in value.items())
            + "}"
        )
    return json.dumps(value, ensure_ascii=False)


def _element(value: Value) -> str:
    if value is None:
        return "NULL"
    written = text(value)
    return str(written) if isinstance(value, list) else _quoted(str(written))


def _field(value: Value) -> str:
    return "" if value is None else _quoted(str(text(value)))


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# --- changes


class BadEvent(PgqError):
    """An event of a captured table cannot be read."""


class Change(NamedTuple):
    """One change of one row, or a TRUNCATE."""

    operation: str
    """INSERT, UPDATE, DELETE or TRUNCATE."""
    table: tuple[str, str]
    """Schema and name in the source."""
    key_columns: tuple[str, ...]
    values: dict[str, Value]
    """The row: the new one, for a DELETE the old one; empty for TRUNCATE."""
    txid: int
    """The id of the transaction that made the change."""


_OPERATIONS = frozenset(OPERATIONS.values())
_decode = json.JSONDecoder(parse_int=Number, parse_float=Number).decode


def change_of(event: Event) -> Change | None:
    """The change that an event holds; None if no trigger wrote the event.

    Raises BadEvent if a trigger wrote the event, but not a row, or in a format that cannot be
    applied.
    """
    return change_from(event.id, event.txid, event.type, event.data, event.extra1)


def change_from(
    event_id: int, txid: int, event_type: str | None, data: str | None, table: str | None
) -> Change | None:
    """Decode like `change_of`, from the fields of the event."""
    kind = _kind(event_type, table)
    if kind is None:
        return None
    operation, names, key_columns = kind
    try:
        if operation == "TRUNCATE":
            values: dict[str, Value] = {}
        elif data is not None and data.startswith("{"):
            values = _decode(data)
        elif data is not None and not data.startswith("(") and "=" in data:
            values = {**decode_urlencoded(data)}
        else:
            raise ValueError("it is no row")
        for column in key_columns:
            if operation != "TRUNCATE" and values[column] is None:
                raise ValueError(f"the key column {column!r} is null")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        what = f"there is no column {error}" if isinstance(error, KeyError) else error
        raise BadEvent(
            f"event {event_id} of table {table} cannot be applied: {what}",
            hint="Capture the table with pgq.capture_table, or use jsontriga or logutriga.",
        ) from error
    return Change(operation, names, key_columns, values, txid)


@lru_cache(maxsize=4096)
def _kind(
    event_type: str | None, table: str | None
) -> tuple[str, tuple[str, str], tuple[str, ...]] | None:
    """Operation, table and key. Cached, because the same few texts are repeated."""
    if not event_type or not table:
        return None
    if event_type.startswith("{"):
        try:
            described = json.loads(event_type)
            operation, key = described["op"], tuple(described["pkey"])
            schema, name = described["table"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
    else:
        letter, _, columns = event_type.partition(":")
        operation = OPERATIONS.get(letter)
        key = tuple(columns.split(",")) if columns else ()
        schema, _, name = table.partition(".")
    texts = all(isinstance(each, str) for each in (operation, schema, name, *key))
    return (operation, (schema, name), key) if texts and operation in _OPERATIONS else None


# --- the last state of each key

Key: TypeAlias = tuple[str | None, ...]
Row: TypeAlias = dict[str, Value]


class Latest:
    """Collects changes, added in the order of their events; the last states are applied at once.

    ``rows`` holds the last row of each key. ``gone`` holds the key columns of deleted rows.
    After a TRUNCATE (``truncated``) the table has no rows other than ``rows``.
    """

    def __init__(self) -> None:
        self.truncated = False
        self.rows: dict[Key, Row] = {}
        self.gone: dict[Key, Row] = {}
        self.key_columns: tuple[str, ...] = ()
        self.changes = 0

    def add(self, change: Change) -> None:
        """Add the next change. For a change that does not fit, start a new `Latest`."""
        self.changes += 1
        if change.operation == "TRUNCATE":
            self.truncated = True
            self.rows.clear()
            self.gone.clear()
            return
        values = change.values
        self.key_columns = change.key_columns
        key = tuple([text(values[column]) for column in change.key_columns])
        if change.operation == "DELETE":
            self.rows.pop(key, None)
            self.gone[key] = {column: values[column] for column in change.key_columns}
        else:
            self.gone.pop(key, None)
            self.rows[key] = values

    def fits(self, change: Change) -> bool:
        """Whether a change has the same key as those before."""
        return not self.key_columns or change.key_columns in (self.key_columns, ())

    def __bool__(self) -> bool:
        return self.truncated or bool(self.rows) or bool(self.gone)


K = TypeVar("K", bound=Hashable)


def rounds(changes: Iterable[tuple[K, Change]]) -> list[dict[K, Latest]]:
    """The last states of several tables, to be applied one round after the other: a table whose
    key has changed between two changes is in more than one."""
    found: list[dict[K, Latest]] = [{}]
    for table, change in changes:
        latest = found[-1].setdefault(table, Latest())
        if not latest.fits(change):
            found.append({})
            latest = found[-1].setdefault(table, Latest())
        latest.add(change)
    return found
