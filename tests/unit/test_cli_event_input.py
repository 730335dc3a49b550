"""Files of events: what is read from them, and what is said about those that cannot be."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqpy import NewEvent
from pgqpy.cli._base.errors import CliError
from pgqpy.cli._events.event_file import format_of, read_events


def read(
    text: str, file_format: str = "jsonl", *, event_type: str | None = None, whole_row: bool = False
) -> list[NewEvent]:
    lines = text.splitlines(keepends=True)
    return list(read_events(lines, "f", file_format, event_type=event_type, whole_row=whole_row))


def test_a_json_line_is_an_event_with_its_fields() -> None:
    assert read('{"type": "a", "data": "b", "extra1": "c", "extra4": null}\n') == [
        NewEvent("a", "b", "c")
    ]


def test_data_that_is_no_text_is_stored_as_json() -> None:
    [event] = read('{"type": "a", "data": {"carrier": "Ünited", "late": [1, 2.5, true]}}')
    assert event.data is not None
    assert json.loads(event.data) == {"carrier": "Ünited", "late": [1, 2.5, True]}


def test_numbers_keep_their_digits() -> None:
    numbers = f"[12.50, 1e400, {'9' * 5000}, 0.12345678901234567890]"
    [event] = read(f'{{"type": "a", "data": {{"n": {numbers}}}, "extra1": 1.10}}')
    assert event.data == f'{{"n": {numbers}}}'
    assert event.extra1 == "1.10"


PEEKED = '{"id": 7, "time": "2026-11-21T05:00:00+00:00", "txid": 5, "retry": 0, '


@pytest.mark.parametrize(
    ("text", "file_format", "events"),
    [
        # What peek prints can be inserted again.
        (PEEKED + '"type": "a", "data": null}', "jsonl", [NewEvent("a", None)]),
        ('{"data": "x"}\n{"type": "b", "data": "y"}\n', "jsonl",
         [NewEvent("given", "x"), NewEvent("b", "y")]),
        ('\n{"type": "a", "data": "b"}\n\n', "jsonl", [NewEvent("a", "b")]),
        ('data,type\r\n"a,\nb",t\r\n', "csv", [NewEvent("t", "a,\nb")]),
        ("type,data,extra1\nt,,x\n", "csv", [NewEvent("t", None, "x")]),
        ("one\r\n\ntwo", "lines", [NewEvent("given", data) for data in ("one", "", "two")]),
    ],
    ids=["peeked", "a type is given", "empty lines", "a CSV row", "an empty cell", "plain lines"],
)  # fmt: skip
def test_lines_and_rows_are_events(text: str, file_format: str, events: list[NewEvent]) -> None:
    assert read(text, file_format, event_type="given") == events


def test_a_whole_row_becomes_the_data_as_json() -> None:
    [event] = read("carrier,delay\nUA,12\n", "csv", event_type="flight", whole_row=True)
    assert event.type == "flight"
    assert json.loads(event.data or "") == {"carrier": "UA", "delay": "12"}


@pytest.mark.parametrize(
    ("text", "file_format", "complaint"),
    [
        ('{"type": "a", "data": "b"}\n{"type": ', "jsonl", "f, line 2: this is not JSON"),
        ("[1]", "jsonl", "f, line 1: an event is a JSON object, this is an array"),
        ("3.5", "jsonl", "f, line 1: an event is a JSON object, this is a number"),
        ('{"tpye": "a", "data": "b"}', "jsonl", "an event has no field 'tpye'"),
        ('{"data": "b"}', "jsonl", "the event has no type"),
        ('{"type": "a"}', "jsonl", "the event has no data"),
        ('{"type": "a", "data": "\\u0000"}', "jsonl", "data holds a NUL character"),
        ("carrier,delay\nUA,1\n", "csv", "an event has no field 'carrier', 'delay'"),
        ("type,data\na,b,c\n", "csv", "line 2: the row does not have as many cells"),
        ("type,data\na\n", "csv", "line 2: the row does not have as many cells"),
        ('type,data\na,"b', "csv", "line 2: unexpected end of data"),
        ("a line\n", "lines", "f, line 1: the event has no type"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(
    text: str, file_format: str, complaint: str
) -> None:
    with pytest.raises(CliError) as raised:
        read(text, file_format)
    assert complaint in raised.value.message
    assert raised.value.hint


def test_the_name_of_a_file_tells_its_format_or_asks_for_it() -> None:
    formats = {"a.csv": "csv", "a.CSV": "csv", "a.jsonl": "jsonl", "-": "jsonl"}
    assert {name: format_of(name) for name in formats} == formats
    with pytest.raises(CliError, match=r"dump\.bin") as raised:
        format_of("dump.bin")
    assert "--format" in (raised.value.hint or "")


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(st.builds(NewEvent, TEXTS, *[st.none() | TEXTS] * 5))
def test_any_event_survives_being_written_as_a_json_line(event: NewEvent) -> None:
    assert read(json.dumps(event._asdict(), ensure_ascii=True)) == [event]
