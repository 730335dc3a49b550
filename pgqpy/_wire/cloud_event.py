"""Events in the form of CloudEvents 1.0.

An event that was written as a CloudEvent has its type in ev_type, its data in ev_data, and its
other attributes in ev_extra4, as in CloudEvents' own JSON format: so consumers that know nothing
of CloudEvents read type and data as of any event. Data in bytes are there, too, as data_base64.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pgqpy._wire.event_data import json_text
from pgqpy.errors import InvalidPayload

if TYPE_CHECKING:
    from cloudevents.core.v1.event import CloudEvent

JSON = "application/json"

_HINT = "See CloudEvents 1.0, context attributes."
_NAME = re.compile("[a-z0-9]+")
_TYPE = re.compile("[ -~]+")
# All that a header may hold unchanged: printable ASCII but space, quote and percent.
_SAFE = "".join(set(map(chr, range(0x21, 0x7F))) - set('"%'))


def is_cloud_event(value: object) -> bool:
    """Whether a value is a CloudEvent, without importing their library."""
    return hasattr(value, "get_attributes")


def row_of_cloud_event(fields: Sequence[Any]) -> Sequence[str | None]:
    """Return the six fields of an event of which the first one is a CloudEvent; the fields after
    it may be extra1 to extra3.

    Raises TypeError, InvalidPayload.
    """
    event, data, *extras, extra4 = fields
    if data is not None or extra4 is not None:
        raise TypeError("a CloudEvent has data and attributes of its own: give no data, no extra4")
    attributes = dict(event.get_attributes())
    _checked(attributes)
    kept: dict[str, Any] = {"specversion": "1.0"}
    for name, value in attributes.items():
        if name != "type" and value is not None:
            kept[name] = _attribute(name, value)
    data, text = event.get_data(), None
    if isinstance(data, bytes | bytearray):
        kept["data_base64"] = _base64(data)
    elif data is not None and _is_json_type(attributes):
        text = json_text(data)
    elif data is None or isinstance(data, str):
        text = data
    else:
        raise InvalidPayload(
            f"a CloudEvent's data is of type {type(data).__name__}, and its datacontenttype"
            f" {attributes['datacontenttype']}",
            hint=f"Give text or bytes, or the datacontenttype {JSON}.",
        )
    return (attributes["type"], text, *extras, json_text(kept))


def kept_attributes(extra4: str | None) -> dict[str, Any] | None:
    """Return the attributes that an event was written with; None if it was no CloudEvent."""
    if extra4 is None or not extra4.startswith("{"):
        return None
    try:
        kept: dict[str, Any] = json.loads(extra4)
    except (ValueError, RecursionError):
        return None
    kept = {name: value for name, value in kept.items() if value is not None}
    return kept if kept.get("specversion") == "1.0" else None


def cloud_event(attributes: dict[str, Any], data: str | bytes | None) -> CloudEvent:
    """Return a CloudEvent; the attributes are as in its JSON, and data of JSON as text.

    Raises InvalidPayload.
    """
    try:
        attributes["time"] = datetime.fromisoformat(attributes["time"])
        if isinstance(data, str) and _is_json_type(attributes):
            data = json.loads(data)
    except (TypeError, ValueError) as error:
        raise InvalidPayload(f"an event is no valid CloudEvent: {error}") from error
    return _checked(attributes, data)


def http_request(
    attributes: dict[str, Any], data: str | bytes | None, *, binary: bool
) -> tuple[dict[str, str], bytes]:
    """Return headers and body of a request, in structured or binary content mode."""
    if binary:
        content = attributes.pop("datacontenttype", None if isinstance(data, bytes) else JSON)
        odd = [name for name in attributes if not _NAME.fullmatch(name)]
        if odd or not (content is None or _TYPE.fullmatch(str(content))):
            what = f"{odd[0]!r:.80} as a name" if odd else f"{content!r:.80} as datacontenttype"
            raise InvalidPayload(f"a CloudEvent is invalid: it has {what}", hint=_HINT)
        headers = {f"ce-{name}": _header(value) for name, value in attributes.items()}
        body = data if isinstance(data, bytes) else (data or "").encode()
        return headers | (
            {} if data is None or content is None else {"content-type": str(content)}
        ), body
    member = ""
    if isinstance(data, bytes):
        member = f',"data_base64":"{_base64(data)}"'
    elif data is not None:
        member = f',"data":{data if _is_json_type(attributes) else json_text(data)}'
    body = f"{json_text(attributes)[:-1]}{member}}}".encode()
    return {"content-type": "application/cloudevents+json"}, body


def _checked(attributes: dict[str, Any], data: Any = None) -> CloudEvent:
    try:
        from cloudevents.core.exceptions import CloudEventValidationError
        from cloudevents.core.v1.event import CloudEvent
    except ModuleNotFoundError as error:
        raise ImportError('CloudEvents need cloudevents: pip install "pgqpy[contracts]"') from error
    try:
        return CloudEvent(attributes, data)
    except CloudEventValidationError as error:
        wrong = "; ".join(str(each) for errors in error.errors.values() for each in errors)
        raise InvalidPayload(f"a CloudEvent is invalid: {wrong}", hint=_HINT) from error


def _attribute(name: str, value: object) -> object:
    """An attribute's value as in CloudEvents' JSON format."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return _base64(value)
    if isinstance(value, str | int):
        return value
    raise InvalidPayload(
        f"attribute {name} of a CloudEvent is of type {type(value).__name__}",
        hint="Attributes are texts, integers, booleans, times or bytes; the rest is data.",
    )


def _is_json_type(attributes: dict[str, Any]) -> bool:
    """Whether the data is JSON, as it is if nothing else is said."""
    kind = str(attributes.get("datacontenttype", JSON)).partition(";")[0].strip().lower()
    return kind.endswith(("/json", "+json"))


def _header(value: object) -> str:
    return quote(str(value).lower() if isinstance(value, bool) else str(value), safe=_SAFE)


def _base64(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode()
