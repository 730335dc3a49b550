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
