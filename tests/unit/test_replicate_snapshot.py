"""Transactions that a snapshot sees."""

from __future__ import annotations

from pgqpy_consumers.replicate._state import Snapshot


def test_what_it_sees_is_what_postgresql_says() -> None:
    snapshot = Snapshot.parse("10:20:10,15")
    seen = {n for n in range(5, 25) if snapshot.sees(n)}
    assert seen == {*range(5, 20)} - {10, 15}
    assert Snapshot.parse("10:10:").sees(9)
    assert not Snapshot.parse("10:10:").sees(10)


def test_it_covers_another_if_it_sees_all_that_that_sees() -> None:
    earlier = Snapshot.parse("10:20:10,15")
    assert earlier.covers(earlier)
    assert Snapshot.parse("10:25:10,22").covers(earlier)
    assert not Snapshot.parse("12:25:12").covers(earlier)
    assert not Snapshot.parse("10:19:10,15").covers(earlier)
    assert Snapshot.parse("30:30:").covers(earlier)
