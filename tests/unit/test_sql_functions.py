"""SQL that can be read: short functions, and no number whose meaning is not said."""

from __future__ import annotations

import re

from pgqpy.schema import SQL_DIR
from tools.figures import LONGEST_FUNCTION, REASON, sql_code, sql_functions


def test_a_long_function_says_why_it_is_one() -> None:
    """A reason of the past must go."""
    long = {name for name, body in sql_functions() if len(sql_code(body)) > LONGEST_FUNCTION}
    assert {name for name, body in sql_functions() if REASON in body} == long


def test_every_function_begins_with_what_it_does() -> None:
    assert [name for name, body in sql_functions() if not body.startswith("-- ")] == []


def test_every_large_number_is_in_the_register() -> None:
    used: set[str] = set()
    for path in SQL_DIR.rglob("*.sql"):
        if path.name != "locks.sql":
            used |= set(re.findall(r"\b\d{6,}\b", "\n".join(sql_code(path.read_text()))))
    register = (SQL_DIR / "pgq" / "core" / "numbers.txt").read_text()
    assert used == set(re.findall(r"\b\d{6,}(?=,| {2})", register))


PIECE = re.compile(
    r"--[^\n]*|\$(?P<tag>\w*)\$(?P<inner>.*?)\$(?P=tag)\$|\be'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'",
    re.IGNORECASE | re.DOTALL,
)


def backslashes(code: str) -> list[str]:
    r"""Return literals with backslashes that are neither E'\\' nor $re$\$re$."""
    found = []
    for piece in PIECE.finditer(code):
        if piece["tag"] not in (None, "re", "p"):
            found += backslashes(piece["inner"])
        elif piece[0].startswith("'") and "\\" in piece[0]:
            found.append(piece[0])
    return found


def test_no_literal_depends_on_a_setting_of_the_caller() -> None:
    """With standard_conforming_strings = off a function reads '\\d' as 'd', and keeps it."""
    assert [(name, found) for name, body in sql_functions() if (found := backslashes(body))] == []
