"""Conversions from an event to the text that a type's input function reads."""

from __future__ import annotations

import pytest

from pgqpy_consumers.apply import BadEvent, Change, Latest
from pgqpy_consumers.apply._change import change_from, json_text, text

TYPE = '{"op":"UPDATE","table":["public","t"],"pkey":["id"]}'


def change(data: str, event_type: str = TYPE) -> Change:
    found = change_from(1, 100, event_type, data, "public.t")
    assert found is not None
    return found


def test_numbers_keep_their_digits() -> None:
    values = change('{"id":12345678901234567890,"n":1.50,"e":1e-130}').values
    assert {name: text(value) for name, value in values.items()} == {
        "id": "12345678901234567890",
        "n": "1.50",
        "e": "1e-130",
    }


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("null", None),
        ("true", "t"),
        ('"t\\"x"', 't"x'),
        ("[1,null]", '{"1",NULL}'),
        ("[[1,2],[3,4]]", '{{"1","2"},{"3","4"}}'),
        ('["a,b","\\"","\\\\",""]', r'{"a,b","\"","\\",""}'),
        ('{"x":1,"y":null,"z":"a b"}', '("1",,"a b")'),
    ],
)
def test_nested_values_become_what_postgresql_reads(data: str, expected: str | None) -> None:
    assert text(change(f'{{"id":1,"v":{data}}}').values["v"]) == expected


def test_nested_json_stays_json() -> None:
    value = change('{"id":1,"v":{"a":[1.50,"x",null,true],"b":{}}}').values["v"]
    assert json_text(value) == '{"a": [1.50, "x", null, true], "b": {}}'
    assert json_text(None) is None
    assert json_text("word") == '"word"'


def test_urlencoded_rows_are_rows() -> None:
    found = change("id=7&note=a%20b&gone", "U:id")
    assert found.operation == "UPDATE"
    assert found.table == ("public", "t")
    assert found.values == {"id": "7", "note": "a b", "gone": None}


def test_events_of_an_application_are_no_changes() -> None:
    for event_type in (None, "order", '{"some":"json"}', "{", "X:id"):
        assert change_from(1, 1, event_type, "{}", "public.t") is None
    assert change_from(1, 1, TYPE, "{}", None) is None


@pytest.mark.parametrize("data", [None, "", "(id) values (1)", "{", '{"other":1}', '{"id":null}'])
def test_a_row_that_is_none_names_the_event(data: str | None) -> None:
    with pytest.raises(BadEvent, match=r"event 17 of table public\.t"):
        change_from(17, 1, TYPE, data, "public.t")


def of(operation: str, key: int, note: str = "") -> Change:
    return Change(operation, ("public", "t"), ("id",), {"id": str(key), "note": note}, 1)


def test_the_last_state_of_a_key_is_what_counts() -> None:
    latest = Latest()
    for each in (
        of("INSERT", 1, "a"),
        of("UPDATE", 1, "b"),
        of("INSERT", 2, "c"),
        of("DELETE", 2),
        of("DELETE", 3),
        of("INSERT", 3, "d"),
    ):
        latest.add(each)
    assert latest.rows == {("1",): {"id": "1", "note": "b"}, ("3",): {"id": "3", "note": "d"}}
    assert latest.gone == {("2",): {"id": "2"}}
    assert latest.changes == 6


def test_nothing_before_a_truncate_counts() -> None:
    latest = Latest()
    assert not latest
    for each in (
        of("INSERT", 1),
        of("DELETE", 2),
        Change("TRUNCATE", ("public", "t"), ("id",), {}, 1),
        of("INSERT", 3),
    ):
        latest.add(each)
    assert latest.truncated
    assert [*latest.rows] == [("3",)]
    assert latest.gone == {}


def test_changes_with_another_key_do_not_fit() -> None:
    latest = Latest()
    latest.add(of("INSERT", 1))
    assert latest.fits(of("INSERT", 2))
    assert not latest.fits(of("INSERT", 2)._replace(key_columns=("note",)))
