"""The body of a request for an event."""

from __future__ import annotations

import json

from pgqpy import Event


def envelope(event: Event) -> str:
    """Type, time and data of an event, as JSON. Raises ValueError if a row's format is unknown."""
    changed = event.operation
    kind = f"{event.table}.{changed.lower()}" if changed else event.type
    written = _written({"type": kind, "timestamp": event.time.isoformat()})
    return f'{written[:-1]},"data":{_data(event)}}}'


def _data(event: Event) -> str:
    """The event's own JSON, unchanged: decoding would lose digits of numbers."""
    if event.data is None:
        return "null"
    if is_json(event.data):
        return event.data
    return _written(event.row() if event.operation else event.data)


def is_json(text: str) -> bool:
    """Whether the text is JSON, without Python's extensions such as NaN."""
    try:
        json.loads(text, parse_float=str, parse_int=str, parse_constant=_refuse)
    except ValueError:
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
