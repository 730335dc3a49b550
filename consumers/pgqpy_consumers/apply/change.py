"""A captured change, decoded without loss."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import NamedTuple

from pgqpy import Event
from pgqpy._wire.row_format import OPERATIONS, decode_urlencoded
from pgqpy.errors import PgqError
from pgqpy_consumers.apply.value import Number, Value


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
    """Like `change_of`, from the fields of the event."""
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
    except (ValueError, KeyError) as error:
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
        except (ValueError, KeyError, TypeError):
            return None
    else:
        letter, _, columns = event_type.partition(":")
        operation = OPERATIONS.get(letter)
        key = tuple(columns.split(",")) if columns else ()
        schema, _, name = table.partition(".")
    return (operation, (schema, name), key) if operation in _OPERATIONS else None
