"""The doctor's page, and what it writes."""

from __future__ import annotations

import re

import pytest

from pgqpy._runtime.words import size
from pgqpy.doctor import CHECKS
from tests.fixtures.pages import text_of


def test_each_check_has_an_entry_on_the_page_and_each_entry_a_check() -> None:
    page = text_of("troubleshooting.md")
    names = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert names == [check.name for check in CHECKS]
    # What a remedy refers to exists.
    assert set(re.findall(r"see `([a-z ]+)`", page)) <= set(names)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_check_says_what_it_looks_at(check: object) -> None:
    assert getattr(check, "about", "").partition("\n")[0].endswith((".", ","))


def test_sizes_have_two_digits_at_least() -> None:
    texts = {0: "0 bytes", 999: "999 bytes", 1234: "1.2 kB", 56_789_000: "57 MB", 4e15: "4000 TB"}
    assert {number: size(number) for number in texts} == texts
