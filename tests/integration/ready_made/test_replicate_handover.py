"""The transition from the copy to the stream: each change is applied exactly once, in order."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from pgqpy_consumers.replicate._copy import Copier
from pgqpy_consumers.replicate._state import State
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import running
from tests.fixtures.fix_db import Connect
from tests.fixtures.fix_replicate import CONSUMER, PATIENCE, Pair
from tests.fixtures.fix_ticker import StartTicker, eventually

TABLE = "create table item (id int primary key, n int)"


@pytest.fixture
def item(pair: Pair) -> Pair:
    """A table that is added and not copied yet; the consumer is registered."""
    pair.both(TABLE)
    pair.source.execute("insert into item select n, 0 from generate_series(1, 10) n")
    pair.manager.add("item")
    ops.register(pair.source, pair.queue, CONSUMER)
    return pair


@pytest.fixture
def copier(item: Pair, connect: Connect) -> Callable[..., Copier]:
    """``copier(meanwhile)``: its own connections leave those of `item` free."""

    def make(check_stop: Callable[[], None] = lambda: None) -> Copier:
        state = State(connect(item.target_dsn), item.queue, CONSUMER)
        [replica] = state.tables()
        return Copier(connect(item.source_dsn), state, replica, check_stop)

    return make


def test_what_the_copy_has_is_not_applied_again(item: Pair, copier: Callable[..., Copier]) -> None:
    """Else the target would go back for a while to what the row was in between."""
    for n in (1, 2, 3):
        item.source.execute("update item set n = %s", [n])
        ops.tick(item.source, item.queue)
    assert copier().copy()
    copier().catch_up()
    item.source.execute("update item set n = 4")
    ops.tick(item.source, item.queue)
    consumer = item.consumer()
    consumer.batch_size = None
    seen = [ops.value(item.target, "select distinct n from item")]
    while consumer.run_once():
        seen.append(ops.value(item.target, "select distinct n from item"))
    assert seen == sorted(seen)
    assert seen[0] == 3
    assert seen[-1] == 4


def test_changes_that_come_during_the_copy_wait_and_are_applied(
    item: Pair, copier: Callable[..., Copier]
) -> None:
    calls = 0

    def meanwhile() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            item.source.execute("update item set n = 5 where id = 5")
            ops.tick(item.source, item.queue)
            assert item.consumer().run_once()
            assert ops.value(item.target, "select count(*) from pgq_ext.replica_event") == 1

    assert copier(meanwhile).copy()
    assert ops.value(item.target, "select n from item where id = 5") == 0
    copier().catch_up()
    item.same("item")
    assert ops.value(item.target, "select count(*) from pgq_ext.replica_event") == 0


def test_a_batch_that_is_being_applied_is_waited_for(
    item: Pair, copier: Callable[..., Copier], connect: Connect
) -> None:
    """An open batch may still add changes that have to wait."""
    assert copier().copy()
    stream = connect(item.target_dsn, autocommit=False)
    State(stream, item.queue, CONSUMER).share()
    thread = threading.Thread(target=copier().catch_up)
    thread.start()
    try:
        eventually(
            item.target,
            "select count(*) > 0 from pg_locks where locktype = 'advisory' and not granted"
            " and database = (select oid from pg_database where datname = current_database())",
        )
        stream.execute(
            "insert into pgq_ext.replica_event (rpe_table, ev_id, ev_txid, ev_type, ev_data,"
            " ev_extra1) values (%s, 1, txid_snapshot_xmax(txid_current_snapshot()) + 1000000,"
            """ '{"op":"UPDATE","table":["public","item"],"pkey":["id"]}',"""
            """ '{"id":1,"n":77}', 'public.item')""",
            [item.manager.replica("item").id],
        )
    finally:
        stream.commit()
        thread.join(PATIENCE)
    assert ops.value(item.target, "select n from item where id = 1") == 77


def test_a_table_that_is_removed_during_its_copy_gets_nothing(
    item: Pair, copier: Callable[..., Copier]
) -> None:
    def meanwhile() -> None:
        if item.states():
            with item.target.transaction():
                item.manager.state.own()
                item.manager.state.remove(item.manager.replica("item"))

    assert not copier(meanwhile).copy()
    assert item.states() == {}
    assert ops.value(item.target, "select count(*) from item") == 0


def test_readers_see_the_rows_of_before_until_a_new_copy_is_there(
    item: Pair, copier: Callable[..., Copier]
) -> None:
    assert copier().copy()
    seen: list[int] = []

    def look() -> None:
        seen.append(ops.value(item.target, "select count(*) from item"))

    item.source.execute("delete from item where id > 5")
    assert copier(look).copy()
    assert set(seen) == {10}
    look()
    assert seen[-1] == 5


def test_a_table_is_in_step_soon_though_nothing_happens_in_its_queue(
    item: Pair, start_ticker: StartTicker
) -> None:
    item.source.execute(
        "select pgq.set_queue_config(%s, 'ticker_idle_period', '1 day')", [item.queue]
    )
    start_ticker(item.source_dsn).hear("leading")
    with running(item.consumer()):
        item.await_state("public.item", "in_step")
