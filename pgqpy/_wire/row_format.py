"""The table rows that PgQ's triggers put into events (seed 004; logutriga and jsontriga)."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_plus

#: One-letter operations of sqltriga and logutriga.
OPERATIONS = {"I": "INSERT", "U": "UPDATE", "D": "DELETE", "R": "TRUNCATE"}
_NAMES = tuple(OPERATIONS.values())


def decode_urlencoded(data: str) -> dict[str, str | None]:
    """Decode ``id=7&name=J%C3%B5e&note`` as a dict. A column without ``=`` is NULL."""
    row: dict[str, str | None] = {}
    for pair in data.split("&"):
        if pair:
            column, equals, value = pair.partition("=")
            row[unquote_plus(column)] = unquote_plus(value) if equals else None
    return row


def decode_json(data: str) -> Any:
    """Decode PostgreSQL's JSON without loss: numbers with a fraction or exponent are Decimal."""
    try:
        return _decode(data)
    except json.JSONDecodeError:
        raise
    except ValueError:
        # A whole number with more digits than Python allows for an int.
        return _decode_long(data)


def is_json(text: str) -> bool:
    """Whether the text is JSON, without Python's extensions such as NaN."""
    try:
        json.loads(text, parse_float=str, parse_int=str, parse_constant=_refuse)
    except ValueError:
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _whole(digits: str) -> int | Decimal:
    try:
        return int(digits)
    except ValueError:
        return Decimal(digits)


_decode = json.JSONDecoder(parse_float=Decimal).decode
_decode_long = json.JSONDecoder(parse_float=Decimal, parse_int=_whole).decode


def decode_row(data: str) -> dict[str, Any]:
    """Decode a row in either format; text that starts with a brace is JSON, see `decode_json`.

    Raises ValueError if it is neither: for instance the SQL that sqltriga writes.
    """
    if data.startswith("{"):
        row: dict[str, Any] = decode_json(data)
        return row
    if data.startswith("("):
        raise ValueError(
            "the data is SQL (sqltriga), not a row; use logutriga, jsontriga or capture"
        )
    return decode_urlencoded(data)


@lru_cache(maxsize=1024)
def operation_and_key(event_type: str | None) -> tuple[str | None, tuple[str, ...]]:
    """Parse a trigger's ev_type: the operation's name, and the columns of the key.

    ``I:id`` (logutriga), ``I`` (sqltriga) and ``{"op":"INSERT","pkey":["id"],...}`` (jsontriga)
    are understood; any other type, an application's own, gives ``(None, ())``.
    """
    if not event_type:
        return None, ()
    if event_type.startswith("{"):
        try:
            described = json.loads(event_type)
            operation, key = described.get("op"), tuple(described.get("pkey") or ())
        except (ValueError, TypeError, RecursionError):
            return None, ()
        return (operation, key) if operation in _NAMES else (None, ())
    letter, _, columns = event_type.partition(":")
    operation = OPERATIONS.get(letter)
    if operation is None:
        return None, ()
    return operation, tuple(columns.split(",")) if columns else ()
