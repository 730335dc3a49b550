"""Payloads as texts, one a column, like those of PostgreSQL's ``->>``.

A string gives its characters, a number its digits as written, a nested value its JSON;
null is None. Python's own JSON decoder does not keep how numbers and nested values are written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from pgqpy._wire.row_format import decode_urlencoded

Row: TypeAlias = Mapping[str, str | None]


def json_row(payload: str) -> Row:
    """The members of a JSON object; the last one, if several have the same name.

    Raises ValueError if the payload is no JSON object.
    """
    return dict(_members(payload))


def array_elements(text: str) -> list[str | None]:
    """The elements of an array, of JSON or as PostgreSQL writes it: ``{1,NULL,"a b"}``.

    Raises ValueError if the text is neither, or has more than one dimension.
    """
    return list(_literal_elements(text) if text.endswith("}") else _elements(text))


def urlencoded_row(payload: str) -> Row:
    """The columns of a row as logutriga writes it.

    Raises ValueError if the payload has a character that would have been encoded.
    """
    if odd := _NOT_URLENCODED.search(payload):
        raise ValueError(f"not urlencoded: {odd[0]!r} at position {odd.start()}")
    return decode_urlencoded(payload)


def any_row(payload: str) -> Row:
    """A row in either format; what starts with a brace is JSON.

    Raises ValueError if the payload is neither.
    """
    return json_row(payload) if payload.startswith("{") else urlencoded_row(payload)


def check_row(row: Row, names: Iterable[str]) -> None:
    """Raises ValueError if the row lacks one of the columns: a missing column is not null."""
    for name in names:
        if name not in row:
            raise ValueError(
                f"it has no column {name}; if that was renamed, or came later,"
                f' option("optional", "{name}") makes it null where it is absent'
            )


# Includes quotes and parentheses, which occur in the SQL that sqltriga writes.
_NOT_URLENCODED = re.compile(r"""[^!-~]|["'()]""")

_SPACE = r"[ \t\n\r]*"
_MEMBER = rf'"((?:[^"\\\x00-\x1f]|\\.)*)"{_SPACE}:{_SPACE}'
# The text before a value, with its name, or the end. For objects or arrays, and later members.
_OBJECT = re.compile(rf"{_SPACE}\{{{_SPACE}(?:{_MEMBER}|\}}{_SPACE}\Z)")
_NEXT_MEMBER = re.compile(rf"{_SPACE}(?:,{_SPACE}{_MEMBER}|\}}{_SPACE}\Z)")
_ARRAY = re.compile(rf"{_SPACE}\[{_SPACE}(\]{_SPACE}\Z)?")
_NEXT_ELEMENT = re.compile(rf"{_SPACE}(?:,|(\]{_SPACE}\Z)){_SPACE}")

_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def _members(text: str) -> Iterator[tuple[str, str | None]]:
    found = _match(_OBJECT, text, 0)
    while (name := found[1]) is not None:
        value, at = _value(text, found.end())
        yield json.loads(f'"{name}"') if "\\" in name else name, value
        found = _match(_NEXT_MEMBER, text, at)


def _elements(text: str) -> Iterator[str | None]:
    found = _match(_ARRAY, text, 0)
    while found[1] is None:
        value, at = _value(text, found.end())
        yield value
        found = _match(_NEXT_ELEMENT, text, at)


# An element in quotes or bare, and the separator or end after it.
_ELEMENT = re.compile(r'(?:"((?:[^"\\]|\\.)*)"|((?:[^"{},\\]|\\.)+))(?:,|\Z)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def _literal_elements(text: str) -> Iterator[str | None]:
    # Bounds come before the brace, if they are not the usual ones: [0:1]={1,2}
    elements, at = text[text.index("{") + 1 : -1], 0
    while at < len(elements):
        found = _ELEMENT.match(elements, at)
        if found is None:
            raise ValueError("not an array of one dimension")
        quoted, bare = found.groups()
        if quoted is None and bare.upper() == "NULL":
            yield None
        else:
            yield _ESCAPED.sub(r"\1", bare if quoted is None else quoted)
        at = found.end()


def _value(text: str, at: int) -> tuple[str | None, int]:
    """The text of the value at a position, and the position of its end."""
    value: Any
    try:
        value, end = _scan(text, at)
    except StopIteration:
        raise _not_json(at) from None
    except RecursionError:
        raise ValueError(f"JSON nested too deeply at position {at}") from None
    if isinstance(value, str):
        return value, end
    return None if value is None else text[at:end], end


def _match(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    found = pattern.match(text, at)
    if found is None:
        raise _not_json(at)
    return found


def _not_json(at: int) -> ValueError:
    return ValueError(f"not the JSON that it should be at position {at}")
