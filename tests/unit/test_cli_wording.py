"""Display of values; nothing in them can act on the terminal."""

from __future__ import annotations

from datetime import timedelta

from pgqpy._runtime.words import duration, printable, printable_json, rate
from pgqpy.cli._base.output import shown


def test_durations_read_in_two_units_at_most() -> None:
    texts = {
        0: "0 s",
        0.0034: "3 ms",
        1: "1 s",
        3.44: "3.4 s",
        59.96: "1 min",
        60: "1 min",
        310: "5 min 10 s",
        7200: "2 h",
        7260: "2 h 1 min",
        90_000: "1 d 1 h",
        -5: "-5 s",
    }
    assert {number: duration(timedelta(seconds=number)) for number in texts} == texts


def test_rates_have_as_many_digits_as_tell_anything() -> None:
    texts = {0.0: "0", 0.25: "0.2", 9.96: "10", 12.7: "13", 1203.4: "1,203"}
    assert {number: rate(number) for number in texts} == texts


def test_cells_are_written_for_people_and_control_characters_as_escapes() -> None:
    assert printable("a\x1b[31mb\nc\x9b") == r"a\x1b[31mb\nc\x9b"
    assert printable("Flüge 航班 ✈") == "Flüge 航班 ✈"
    assert printable_json('"Flüge\x9b2J\u202e"') == r'"Flüge\u009b2J\u202e"'
    assert list(map(shown, (None, True, False, 1234567))) == ["-", "yes", "no", "1,234,567"]
