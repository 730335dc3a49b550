"""The key of an event: events with the same key are sent in order."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal

from pgqpy import Event

Key = Callable[[Event], str]

_COLUMNS: dict[str, Key] = {
    "id": lambda event: str(event.id),
    "type": lambda event: event.type or "",
    "primary_key": lambda event: _row_key(event) if event.operation else "",
    **{
        f"extra{n}": lambda event, name=f"extra{n}": getattr(event, name) or ""  # type: ignore[misc]
        for n in range(1, 5)
    },
}


def key_function(text: str) -> Key:
    """The function that computes the key a setting describes; see `Webhook.Config`.

    Raises ValueError for an unknown setting. All events without the field have the same key:
    they stay in order.
    """
    if not text:
        return lambda event: ""
    if text in _COLUMNS:
        return _or_none(_COLUMNS[text])
    if re.fullmatch(r"data(\.[^.]+)+", text):
        path = text.split(".")[1:]
        return _or_none(lambda event: _text(_field(event, path)))
    raise ValueError(f"key is {text!r}; it may be {', '.join(_COLUMNS)}, or data.FIELD")


def _row_key(event: Event) -> str:
    return f"{event.table} {_text(event.key)}"


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=_number)


def _number(value: Decimal) -> object:
    # Equal numbers are one key, however many zeros they are written with.
    plain = f"{value:f}"
    if "." in plain:
        plain = plain.rstrip("0").rstrip(".")
    return plain if "." in plain or len(plain) > _LONGEST_INT else int(plain)


_LONGEST_INT = 4_300


def _or_none(key: Key) -> Key:
    def tolerant(event: Event) -> str:
        try:
            return key(event)
        except (ValueError, KeyError):
            return ""

    return tolerant


def _field(event: Event, path: list[str]) -> object:
    value = event.json()
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value
