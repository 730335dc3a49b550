"""Events as values: what their helpers make of type and data."""

from __future__ import annotations

import dataclasses
import json
import pickle
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqpy import Event, NewEvent, PgqError
from pgqpy.event import Retries

TIME = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
#: Any text that PostgreSQL can store.
TEXT = st.text(st.characters(exclude_characters="\0", codec="utf-8"))


def event(
    type: str | None = None,  # noqa: A002
    data: str | None = None,
    *extras: str | None,
    retries: Retries | None = None,
) -> Event:
    names = ("extra1", "extra2", "extra3", "extra4")
    fields = dict(zip(names, extras, strict=False))
    return Event(7, TIME, 9, 2, type, data, **fields, _retries=retries)


def test_an_event_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        event().data = "other"  # type: ignore[misc]


def test_a_logutriga_row_is_decoded() -> None:
    update = event(
        "U:id,flight_no", "id=1&flight_no=UA+7&note=a%26b%3Dc&gate&name=J%C3%B5e", "public.f"
    )
    assert update.row() == {
        "id": "1",
        "flight_no": "UA 7",
        "note": "a&b=c",
        "gate": None,
        "name": "Jõe",
    }
    assert update.operation == "UPDATE"
    assert update.table == "public.f"
    assert update.key_columns == ("id", "flight_no")
    assert update.key == {"id": "1", "flight_no": "UA 7"}


@given(st.dictionaries(TEXT.filter(bool), st.none() | TEXT, min_size=1))
def test_every_urlencoded_row_is_decoded_to_what_was_encoded(row: dict[str, str | None]) -> None:
    data = "&".join(
        quote_plus(name) + ("" if value is None else "=" + quote_plus(value))
        for name, value in row.items()
    )
    assert event("I:", data).row() == row


def test_a_jsontriga_row_is_decoded() -> None:
    ev_type = json.dumps({"op": "INSERT", "table": ["public", "f"], "pkey": ["id"]})
    insert = event(ev_type, '{"id": 1, "note": null}', "public.f")
    assert insert.row() == {"id": 1, "note": None}
    assert insert.operation == "INSERT"
    assert insert.table == "public.f"
    assert insert.key == {"id": 1}


def test_the_letters_of_sqltriga_and_logutriga_are_operations() -> None:
    for letter, operation in zip("IUDR", ["INSERT", "UPDATE", "DELETE", "TRUNCATE"], strict=True):
        assert event(letter).operation == event(letter + ":id").operation == operation
        assert event(letter).key_columns == ()
    for data in (None, "", "{}"):
        assert event("R", data).row() == {}
    with pytest.raises(ValueError, match="sqltriga"):
        event("I", "(id) values ('1')").row()


def test_the_old_row_is_decoded_when_the_trigger_keeps_it() -> None:
    assert event("U:id", "id=1&x=2", "public.f", "id=1&x=1").old_row() == {"id": "1", "x": "1"}
    assert event("U:id", "id=1&x=2", "public.f").old_row() is None


@pytest.mark.parametrize("own_type", [None, "", "departed", "Insert", "{not json"])
def test_an_event_of_the_application_has_no_operation_and_no_table(own_type: str | None) -> None:
    own = event(own_type, '{"a": 1}', "extra")
    assert own.operation is None
    assert own.table is None
    assert own.key_columns == ()
    assert own.json() == {"a": 1}


def test_no_data_is_no_json() -> None:
    assert event().json() is None
    with pytest.raises(ValueError, match="Expecting value"):
        event(data="no json").json()


def test_retry_is_the_number_of_retries_and_a_method_within_a_batch() -> None:
    assert event().retry == 2
    assert f"{event().retry}" == "2"
    with pytest.raises(PgqError, match="does not belong to a batch"):
        event().retry(60)


def test_an_event_that_travels_leaves_its_batch() -> None:
    traveller = pickle.loads(pickle.dumps(event("t", "d", "1", "2", "3", "4", retries=Retries())))
    assert traveller == event("t", "d", "1", "2", "3", "4")
    with pytest.raises(PgqError, match="does not belong to a batch"):
        traveller.retry(1)


def test_a_retry_is_a_delay_in_seconds_or_a_time_and_the_last_one_counts() -> None:
    retries = Retries()
    event(retries=retries).retry(1)
    event(retries=retries).retry(timedelta(minutes=1))
    assert retries.columns() == ([7], [None], [timedelta(minutes=1)])
    event(retries=retries).retry(TIME)
    assert retries.columns() == ([7], [TIME], [None])
    event(retries=retries).retry(1.5)
    assert retries.columns() == ([7], [None], [timedelta(seconds=1.5)])


def test_a_retry_in_the_past_or_at_a_time_without_a_zone_is_refused() -> None:
    for delay in (-1, timedelta(seconds=-1), datetime(2026, 1, 1)):  # noqa: DTZ001
        with pytest.raises(ValueError, match=r"delay|time zone"):
            event(retries=Retries()).retry(delay)


def test_an_event_can_be_written_again() -> None:
    assert event("t", "d", "1", None, "3", "4").new() == NewEvent("t", "d", "1", None, "3", "4")


JSONTRIGA = '{"op":"UPDATE","table":["public","f"],"pkey":["id"]}'


@pytest.mark.parametrize(
    "number",
    [
        *("12.50", "0.1", "-0.00", "12345678901234567890.12345678901234567890", "1e400"),
        *("1e-400", f"0.{'0' * 200}1", f"{'9' * 5000}", f"-{'9' * 5000}.5"),
    ],
    ids=lambda number: number[:10],
)
def test_numbers_of_captured_rows_are_exact(number: str) -> None:
    data = f'{{"id": {number}, "nested": [{{"n": {number}}}], "whole": 7}}'
    for change in (event(JSONTRIGA, data, "public.f", data), event("U:id", data, "public.f", data)):
        for row in (change.row(), change.old_row(), change.json()):
            assert row is not None
            for value in (row["id"], row["nested"][0]["n"]):
                assert isinstance(value, Decimal)
                assert value.as_tuple() == Decimal(number).as_tuple()
            assert type(row["whole"]) is int
        assert change.key["id"] == Decimal(number)


def test_other_events_are_what_json_makes_of_them() -> None:
    for kind in (None, "order", "Insert", '{"op": "buy", "pkey": 5}', '{"op": []}', "{"):
        value = event(kind, '{"price": 12.5}').json()["price"]
        assert isinstance(value, float)
        assert event(kind, "{}").operation is None
