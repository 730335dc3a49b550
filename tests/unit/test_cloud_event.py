"""CloudEvents: what is written as one comes back the same, and any event is one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from cloudevents.core.v1.event import CloudEvent

from pgqpy import Event, errors
from pgqpy.formats import padded

TIME = datetime(2026, 11, 23, 14, 5, 6, 789, UTC)
SOURCE = "https://shop.example/orders"


def event(*fields: str | None) -> Event:
    row: Any = padded(fields)
    return Event(7, TIME, 1, 0, *row)


def cloud(data: Any = None, /, **attributes: Any) -> CloudEvent:
    return CloudEvent({"type": "order.paid", "source": "/shop", "id": "a b/ü", **attributes}, data)


def same(one: CloudEvent, other: CloudEvent) -> bool:
    return one.get_attributes() == other.get_attributes() and one.get_data() == other.get_data()


EVENTS = [
    cloud({"ü": [1, 2.5, None, {"a": "☃"}]}, subject="ünd\n", time=TIME),
    cloud({"a": 1}, datacontenttype="Application/Vnd.Shop+JSON; charset=utf-8"),
    cloud([1], datacontenttype="text/json", dataschema="urn:x"),
    cloud('{"a": 1}'),  # a JSON string
    cloud("<a>ü</a>", datacontenttype="text/xml"),
    cloud(b'\x00\xff{"a": 1}', datacontenttype="application/octet-stream"),
    cloud(b""),
    cloud(None, time=datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=45)))),
    cloud({}, traceparent="00-0af7-01", flag=True, count=-7, x1="", specversion="1.0"),
]


@pytest.mark.parametrize("given", EVENTS, ids=range(len(EVENTS)))
def test_a_cloudevent_comes_back_as_it_was_written(given: CloudEvent) -> None:
    row = padded(given)
    assert row[0] == "order.paid"
    assert same(event(*row).to_cloudevent(source="/other"), given)
    # A consumer that moves it keeps all.
    assert same(event(*event(*row).new()).to_cloudevent(), given)


@pytest.mark.parametrize("given", EVENTS, ids=range(len(EVENTS)))
@pytest.mark.parametrize("binary", [False, True])
def test_a_request_is_read_by_the_library(given: CloudEvent, binary: bool) -> None:
    headers, body = event(*padded(given)).to_cloudevent_request(SOURCE, binary=binary)
    got = from_http_event(HTTPMessage(headers, body))
    attributes = dict(given.get_attributes())
    if binary:
        # Headers are texts, and JSON needs a content type.
        attributes |= {k: str(v).lower() for k, v in attributes.items() if isinstance(v, int)}
        if given.get_data() is not None and not isinstance(given.get_data(), bytes):
            attributes.setdefault("datacontenttype", "application/json")
        assert all(value.isascii() for value in headers.values())
        # The library reads bytes as text if it can, and JSON only under a type in lower case.
        if not isinstance(given.get_data(), bytes) and "+JSON" not in str(attributes):
            assert got.get_data() == given.get_data()
    else:
        assert got.get_data() == given.get_data()
    assert got.get_attributes() == attributes


def test_fields_beside_a_cloudevent_and_how_it_is_stored() -> None:
    given = cloud({"a": 1}, time=TIME)
    time = "2026-11-23T14:05:06.000789+00:00"
    kept = f'{{"specversion":"1.0","source":"/shop","id":"a b/ü","time":"{time}"}}'
    assert padded((given, None, "key")) == ("order.paid", '{"a":1}', "key", None, None, kept)
    for fields in ((given, {"a": 1}), (given, None, None, None, None, "x")):
        with pytest.raises(TypeError, match="data and attributes of its own"):
            padded(fields)


@pytest.mark.parametrize(
    ("fields", "type_", "content", "data"),
    [
        (("paid", '{"a": 1.50}'), "paid", "application/json", {"a": 1.5}),
        (("paid", "no JSON"), "paid", "text/plain", "no JSON"),
        (("paid", "NaN"), "paid", "text/plain", "NaN"),
        (("paid", None), "paid", None, None),
        ((None, "1"), "pgq.event", "application/json", 1),
        (("I:id", "id=1&n", "s.t"), "s.t.insert", "application/json", {"id": "1", "n": None}),
        (
            ('{"op":"UPDATE","table":["s","t"],"pkey":["id"]}', '{"id":1}', "s.t"),
            *("s.t.update", "application/json", {"id": 1}),
        ),
        # Attributes of others, or none.
        (("paid", None, None, None, None, '{"specversion": "0.3"}'), "paid", None, None),
        (("paid", None, None, None, None, "{no JSON"), "paid", None, None),
    ],
)
def test_a_plain_event_is_a_cloudevent_too(
    fields: tuple[str | None, ...], type_: str, content: str | None, data: object
) -> None:
    made = event(*fields).to_cloudevent(SOURCE)
    assert made.get_attributes() == {
        "specversion": "1.0",
        "id": "7-20261123T140506.000789Z",
        "source": SOURCE,
        "type": type_,
        "time": TIME,
        **({"datacontenttype": content} if content else {}),
    }
    assert made.get_data() == data
    with pytest.raises(errors.InvalidParameter, match="has no source"):
        event(*fields).to_cloudevent()


def test_one_written_by_sql_may_leave_out_what_the_event_has() -> None:
    by_sql = event("paid", '{"a": 1}', None, None, None, '{"source": "/x", "specversion": "1.0"}')
    attributes = by_sql.to_cloudevent().get_attributes()
    assert (attributes["id"], attributes["time"]) == ("7-20261123T140506.000789Z", TIME)


def test_digits_of_numbers_are_kept_in_requests() -> None:
    paid = event("paid", '{"n": 12345678901234567890.1230}')
    for binary in (False, True):
        _, body = paid.to_cloudevent_request(SOURCE, binary=binary)
        assert b'{"n": 12345678901234567890.1230}' in body


def changed(**attributes: Any) -> CloudEvent:
    """One that was made invalid after its library has checked it."""
    made = cloud({})
    made.get_attributes().update(attributes)
    return made


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (changed(type=""), "'type' must not be None or empty"),
        (changed(type=None), "'type' must"),
        (changed(source=7), "'source' must be"),
        (changed(specversion="0.3"), "'specversion' must be"),
        (changed(time=datetime(2026, 1, 1)), "timezone aware"),  # noqa: DTZ001
        (changed(Upper="x"), "lowercase"),
        (changed(x={"a": 1}), "attribute x of a CloudEvent is of type dict"),
        (changed(x=1.5), "attribute x .* float"),
        (cloud({"a": {1}}), r"\$\.a"),
        (
            cloud({"a": 1}, datacontenttype="text/xml"),
            "type dict, and its datacontenttype text/xml",
        ),
    ],
)
def test_an_invalid_cloudevent_is_refused(given: CloudEvent, said: str) -> None:
    with pytest.raises(errors.InvalidPayload, match=said):
        padded(given)


@pytest.mark.parametrize("kept", [r'"a\r\nb": 1', r'"datacontenttype": "a\r\nb: c"'])
def test_no_attribute_adds_a_header_to_a_request(kept: str) -> None:
    stored = f'{{"specversion": "1.0", "source": "/x", {kept}}}'
    with pytest.raises(errors.InvalidPayload, match="is invalid"):
        event("t", "{}", None, None, None, stored).to_cloudevent_request(binary=True)


@pytest.mark.parametrize("kept", ['"time": "x"', '"time": 1', '"id": ""', '"source": 1'])
def test_stored_attributes_that_are_invalid_are_an_error_of_the_event(kept: str) -> None:
    stored = f'{{"specversion": "1.0", "source": "/x", {kept}}}'
    with pytest.raises(errors.InvalidPayload):
        event("t", None, None, None, None, stored).to_cloudevent()
