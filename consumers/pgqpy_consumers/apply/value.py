"""Values of captured rows, as the texts that a type's input function reads."""

from __future__ import annotations

import json
from typing import TypeAlias, Union


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
