"""Slices of a batch: none is read twice, none is forgotten."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqpy_consumers.spark._events import Slice, cut

ids = st.integers(min_value=-(2**63), max_value=2**63 - 1)


def holds(part: Slice, event_id: int) -> bool:
    return (part.lower is None or part.lower <= event_id) and (
        part.upper is None or event_id < part.upper
    )


@given(first=ids, last=ids, parts=st.integers(1, 50), event_id=ids)
def test_every_id_is_in_exactly_one_slice(first: int, last: int, parts: int, event_id: int) -> None:
    slices = cut(first, last, parts)
    assert sum(holds(part, event_id) for part in slices) == 1
    assert 1 <= len(slices) <= parts


@given(first=st.integers(0, 10**12), count=st.integers(1, 10**6), parts=st.integers(1, 50))
def test_slices_differ_in_width_by_one_at_most(first: int, count: int, parts: int) -> None:
    last = first + count - 1
    slices = cut(first, last, parts)
    edges = [first, *(part.lower for part in slices if part.lower is not None), last + 1]
    widths = [upper - lower for lower, upper in pairwise(edges)]
    assert max(widths) - min(widths) <= 1
    assert min(widths) >= 1


def test_less_than_one_slice_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        cut(1, 10, 0)
