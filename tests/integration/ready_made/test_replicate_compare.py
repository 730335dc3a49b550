"""Comparing tables with their copies, and repairing these, while both sides go on."""

from __future__ import annotations

import itertools
import time

import pytest

from pgqpy_consumers.replicate import NotComparable
from pgqpy_consumers.replicate.compare import Comparer, Comparison
from tests.fixtures.fix_db import Connect
from tests.fixtures.fix_replicate import CONSUMER, PATIENCE, Pair, going_on
from tests.fixtures.fix_ticker import eventually

ACCOUNT = "create table account (branch int, id text, balance numeric, primary key (branch, id))"


@pytest.fixture
def account(pair: Pair) -> Pair:
    """A table with a key of two columns, in step."""
    pair.both(ACCOUNT)
    pair.source.execute(
        "insert into account select n % 7, 'a' || n, n / 3.0 from generate_series(1, 500) n"
    )
    pair.manager.add("account")
    pair.follow()
    return pair


def compare(
    pair: Pair, table: str = "account", *, repair: bool = False, patience: float = PATIENCE
) -> Comparison:
    comparer = Comparer(pair.source_dsn, pair.target_dsn, pair.queue, CONSUMER, patience=patience)
    return comparer.compare(pair.manager.replica(table), repair=repair)


SPOILT = [("(0,a7)", "missing"), ("(1,a8)", "different"), ('(99,"a""9")', "extra")]


@pytest.mark.smoke
def test_what_was_changed_in_the_target_is_found_and_repaired(account: Pair) -> None:
    with account.running():
        assert compare(account).differences == []
        # No application should change the target directly.
        account.target.execute("delete from account where id = 'a7'")
        account.target.execute("update account set balance = balance + 1 where id = 'a8'")
        account.target.execute("insert into account values (99, 'a\"9', 0)")
        found = compare(account)
        assert [(each.key, each.kind) for each in found.differences] == SPOILT
        assert found.repaired == 0
        assert compare(account, repair=True).repaired == 3
        right = compare(account)
        assert (right.differences, right.rows) == ([], 500)
    account.same("account")


def test_a_change_that_is_under_way_is_no_difference(account: Pair, connect: Connect) -> None:
    """One that began before the comparison, and many that go on: only what was spoilt is found."""
    with account.running():
        compare(account)
        eventually(
            account.source,
            "select pgq.ticker(%s) is not null from pgq.force_tick(%s)",
            account.queue,
            account.queue,
        )
        slow = connect(account.source_dsn, autocommit=False)
        slow.execute("update account set balance = -1 where id = 'a77'")

        conn, turns = connect(account.source_dsn), itertools.count(1)

        def change() -> None:
            turn = next(turns)
            conn.execute(
                "update account set balance = balance + 1 where branch = %s and id <> 'a77'",
                [turn % 7],
            )
            conn.execute("insert into account values (100, %s, 1)", [f"new {turn}"])
            conn.execute("delete from account where id = %s", [f"new {turn - 3}"])

        with going_on(change, pause=0.002):
            for _ in range(3):
                assert compare(account).differences == []
            account.target.execute("delete from account where id = 'a77'")
            account.target.execute("insert into account values (99, 'a9', 0)")
            assert [(each.key, each.kind) for each in compare(account).differences] == [
                ("(0,a77)", "missing"),
                ("(99,a9)", "extra"),
            ]
            assert compare(account, repair=True).repaired == 2
            slow.commit()
            for _ in range(3):
                assert compare(account).differences == []
    account.becomes_same("account")


def test_changes_of_a_table_whose_name_reads_the_same_do_not_count(
    pair: Pair, connect: Connect
) -> None:
    pair.both('create schema "a.b"; create schema a')
    pair.both('create table "a.b".c (id int primary key, v int)')
    pair.both('create table a."b.c" (id int primary key, v int)')
    for table in ('"a.b".c', 'a."b.c"'):
        pair.source.execute(
            f"insert into {table} select n, 0 from generate_series(1, 9) n".encode()
        )
        pair.manager.add(table)
    pair.follow()
    conn, change = connect(pair.source_dsn), 'update a."b.c" set v = v + 1'
    with pair.running(), going_on(lambda: conn.execute(change), pause=0.002):
        for _ in range(3):
            assert compare(pair, '"a.b".c').differences == []


def test_a_change_that_the_target_has_lost_is_found(account: Pair) -> None:
    """A change between the compared snapshot and tick: only the queue tells of it."""
    with account.running():
        account.source.execute("update account set balance = 0 where id = 'a1'")
        compare(account)
        account.target.execute("update account set balance = 7 where id = 'a1'")
        assert [each.key for each in compare(account).differences] == ["(1,a1)"]


class Clock:
    """A clock that only advances in sleeps, not while the test makes no progress."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
        self._now += seconds


def test_nothing_is_compared_while_replication_is_stopped(
    account: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.source.execute("update account set balance = 0")
    with pytest.raises(NotComparable, match="got no tick") as caught:
        compare(account, patience=0.1)
    assert "pgqpy ticker" in str(caught.value.hint)
    monkeypatch.setattr("pgqpy_consumers.replicate.compare.time", Clock())
    with account.ticking(), pytest.raises(NotComparable, match="has not come to tick") as caught:
        compare(account, patience=3)
    assert "pgqpy run replicate" in str(caught.value.hint)
