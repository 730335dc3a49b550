"""The request for an event: its body, its signature, and the key that orders requests."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal

from pgqpy import Event

# --- the body


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


# --- the key: events with the same key are sent in order

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


# --- the signature by Standard Webhooks: "v1," and HMAC-SHA256 of "id.timestamp.body" in base64

PREFIX = "whsec_"


class Signer:
    """Signs with each of several secrets, so that a secret can be replaced while requests go on."""

    def __init__(self, secrets: Sequence[str]) -> None:
        """A secret is ``whsec_`` and 24 to 64 bytes in base64. Raises ValueError."""
        self._keys = [_secret_key(secret) for secret in secrets]

    def headers(self, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
        """The three headers; ``timestamp`` is in seconds since 1970."""
        signed = f"{message_id}.{timestamp}.".encode() + body
        signatures = [
            f"v1,{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"
            for key in self._keys
        ]
        headers = {"webhook-id": message_id, "webhook-timestamp": str(timestamp)}
        return headers | ({"webhook-signature": " ".join(signatures)} if signatures else {})


def _secret_key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        raise ValueError("a secret is no base64") from None
    if not 24 <= len(key) <= 64:
        raise ValueError(f"a secret has {len(key)} bytes; it must have 24 to 64")
    return key
