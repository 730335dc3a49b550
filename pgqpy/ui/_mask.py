"""Masks: values in payloads that the console does not show."""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from pgqpy.cli._base.database import UNREADABLE

MASKED = "•••"
#: Nested deeper, a value is not taken apart: that costs much, and in the end Python refuses it.
DEEPEST = 50
PATH = re.compile(r"\$(?:(?:\.\.?(?:[\w-]+|\*))|\[\*\])+")
STEP = re.compile(r"(\.\.?)([\w-]+|\*)|\[\*\]")

#: A number, whose digits JSON's own types would change.
DIGITS = re.compile(r'"\\u0000([-+.0-9eE]+)\\u0000"')

#: The names on the way to a value; "*": any name or index; "**": any number of them.
Steps = tuple[str, ...]


def masks(paths: Collection[str]) -> tuple[Steps, ...]:
    """Read JSON paths such as ``$.card.number``, ``$.lines[*].iban`` or ``$..password``.

    Raises ValueError if one is none.
    """
    found = []
    for path in paths:
        if not PATH.fullmatch(path):
            raise ValueError(
                f"mask {path!r} is no path like $.card.number, $.*.iban or $..password"
            )
        steps: list[str] = []
        for dots, name in STEP.findall(path):
            steps += (["**"] if dots == ".." else []) + [name or "*"]
        found.append(tuple(steps))
    return tuple(found)


def masked(value: object, paths: tuple[Steps, ...]) -> object:
    """Return a JSON value in which `MASKED` stands for what the paths lead to."""
    if not paths:
        return value
    if isinstance(value, dict):
        return {name: _inside(each, name, paths) for name, each in value.items()}
    if isinstance(value, list):
        return [_inside(each, None, paths) for each in value]
    return value


def text_masked(text: str | None, paths: tuple[Steps, ...], indent: int | None = None) -> str:
    """Return a payload for reading: JSON masked, and with its numbers as they are.

    With masks, what begins as JSON but is none, or was cut, or is nested deeply, is not shown.
    """
    if text is None:
        return ""
    try:
        value = json.loads(text, parse_int=_digits, parse_float=_digits)
        require_flat(value)
    except (ValueError, RecursionError):
        begins = text.lstrip("\ufeff \t\r\n")[:1]
        return MASKED if paths and begins in ("{", "[", '"') else text
    written = json.dumps(masked(value, paths), ensure_ascii=False, indent=indent)
    return DIGITS.sub(r"\1", written)


def read_flat_json(text: str | bytes) -> object:
    """Read a JSON value of the database, `UNREADABLE` if that is impossible."""
    try:
        value: object = json.loads(text)
        require_flat(value)
    except (ValueError, RecursionError):
        return UNREADABLE
    return value


def require_flat(value: object) -> None:
    """Raise ValueError if a value is nested deeper than `DEEPEST`."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise ValueError("nested too deeply")


def _digits(text: str) -> str:
    return f"\0{text}\0"


def _inside(value: object, name: str | None, paths: tuple[Steps, ...]) -> object:
    left: list[Steps] = []
    for steps in paths:
        anywhere = steps[0] == "**"
        wanted, *rest = steps[1:] if anywhere else steps
        if anywhere:
            left.append(steps)
        if wanted in ("*", name):
            if not rest:
                return MASKED
            left.append(tuple(rest))
    return masked(value, tuple(left))
