"""Masks of payloads."""

from __future__ import annotations

import pytest

from pgqpy.ui._mask import MASKED, masked, masks

ORDER = {
    "card": {"number": "4711", "type": "x"},
    "lines": [{"iban": "DE1", "n": 1}, {"iban": "DE2", "n": 2}],
    "user": {"password": "p", "old": {"password": ["q"]}},
}


@pytest.mark.parametrize(
    ("path", "hidden"),
    [
        ("$.card.number", {"card": {"number": MASKED, "type": "x"}}),
        ("$.card", {"card": MASKED}),
        ("$.lines[*].iban", {"lines": [{"iban": MASKED, "n": 1}, {"iban": MASKED, "n": 2}]}),
        ("$.*.type", {"card": {"number": "4711", "type": MASKED}}),
        ("$..password", {"user": {"password": MASKED, "old": {"password": MASKED}}}),
        ("$.user..password", {"user": {"password": MASKED, "old": {"password": MASKED}}}),
        ("$.nothing.here", {}),
    ],
)
def test_a_path_hides_what_it_leads_to(path: str, hidden: dict[str, object]) -> None:
    assert masked(ORDER, masks([path])) == ORDER | hidden


@pytest.mark.parametrize("path", ["", "$", "card.number", "$.a[0]", "$.a b", "$.a."])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="is no path like"):
        masks([path])
