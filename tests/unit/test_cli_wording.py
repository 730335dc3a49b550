"""Display of values; nothing in them can act on the terminal."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pgqpy.cli._base.output import duration, printable, rate, shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0034, "3 ms"),
        (1, "1 s"),
        (3.44, "3.4 s"),
        (59.96, "1 min"),
        (60, "1 min"),
        (310, "5 min 10 s"),
        (7200, "2 h"),
        (7260, "2 h 1 min"),
        (90_000, "1 d 1 h"),
        (-5, "-5 s"),
    ],
)
def test_durations_read_in_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.25, "0.2"), (9.96, "10"), (12.7, "13"), (1203.4, "1,203")]
)
def test_rates_have_as_many_digits_as_tell_anything(value: float, text: str) -> None:
    assert rate(value) == text


def test_control_characters_are_shown_as_escapes() -> None:
    assert printable("a\x1b[31mb\nc\x9b") == r"a\x1b[31mb\nc\x9b"


def test_text_in_any_language_is_shown_as_it_is() -> None:
    assert printable("Flüge 航班 ✈") == "Flüge 航班 ✈"


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (True, "yes"), (False, "no"), (1234567, "1,234,567")]
)
def test_cells_are_written_for_people(value: object, text: str) -> None:
    assert shown(value) == text
