"""SQL that can be read: short functions, and no number whose meaning is not said."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pgqpy.schema import SQL_DIR

FUNCTION = re.compile(
    r"^create or replace function (\S+?)\(.*?^as \$(\w*)\$\n(.*?)\$\2\$;", re.MULTILINE | re.DOTALL
)
LONG = 60
REASON = "-- In one function: "


def functions() -> Iterator[tuple[str, str]]:
    for path in SQL_DIR.rglob("*.sql"):
        for name, _, body in FUNCTION.findall(path.read_text()):
            yield name, body


def code(body: str) -> list[str]:
    return [line for line in body.splitlines() if line.strip() and not re.match(r"\s*--", line)]


def test_a_long_function_says_why_it_is_one() -> None:
    """Functions of `LONG` lines of code may be read at once; a reason of the past must go."""
    long = {name for name, body in functions() if len(code(body)) > LONG}
    assert {name for name, body in functions() if REASON in body} == long


def test_every_function_begins_with_what_it_does() -> None:
    assert [name for name, body in functions() if not body.startswith("-- ")] == []


def test_every_large_number_is_in_the_register() -> None:
    used: set[str] = set()
    for path in SQL_DIR.rglob("*.sql"):
        if path.name != "locks.sql":
            used |= set(re.findall(r"\b\d{6,}\b", "\n".join(code(path.read_text()))))
    register = (SQL_DIR / "pgq" / "core" / "numbers.txt").read_text()
    assert used == set(re.findall(r"\b\d{6,}(?=,| {2})", register))
