"""Administration: each method is the SQL function of its name."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from pgqpy import Admin, Producer, errors
from pgqpy.models import BatchInfo, ConsumerInfo, NextBatch, QueueInfo
from tests.fixtures.fix_client import Tick
from tests.fixtures.fix_db import Connect, Connection

pytestmark = pytest.mark.any_pg


@pytest.fixture
def admin(conn: Connection) -> Admin:
    return Admin(conn)


def test_a_queue_is_created_once_and_dropped(admin: Admin) -> None:
    assert admin.create_queue("q")
    assert not admin.create_queue("q")
    assert [queue.queue_name for queue in admin.get_queue_info()] == ["q"]
    admin.register_consumer("q", "c")
    with pytest.raises(errors.QueueInUse):
        admin.drop_queue("q")
    admin.drop_queue("q", force=True)
    assert admin.get_queue_info() == []
    admin.create_queue("q")
    admin.drop_queue("q")


def test_settings_are_stored(admin: Admin, queue: str) -> None:
    admin.set_queue_config(queue, "ticker_max_lag", timedelta(seconds=1))
    admin.set_queue_config(queue, "ticker_max_count", 7)
    admin.set_queue_config(queue, "ticker_paused", True)
    (info,) = admin.get_queue_info(queue)
    assert info.queue_ticker_max_lag == timedelta(seconds=1)
    assert info.queue_ticker_max_count == 7
    assert info.queue_ticker_paused
    with pytest.raises(errors.InvalidParameter):
        admin.set_queue_config(queue, "no_such_setting", 1)


def test_consumers_are_registered_once_listed_and_unregistered(admin: Admin, queue: str) -> None:
    assert admin.register_consumer(queue, "c")
    assert not admin.register_consumer(queue, "c")
    assert admin.register_consumer(queue, "d")
    assert [c.consumer_name for c in admin.get_consumer_info()] == ["c", "d"]
    assert [c.consumer_name for c in admin.get_consumer_info(queue, "d")] == ["d"]
    assert admin.unregister_consumer(queue, "c") == 1
    assert [c.consumer_name for c in admin.get_consumer_info(queue)] == ["d"]


def test_consumers_go_back_to_a_tick(
    admin: Admin, conn: Connection, queue: str, tick: Tick
) -> None:
    admin.register_consumer(queue, "c")
    (start,) = admin.get_consumer_info(queue, "c")
    assert start.last_tick is not None
    Producer(queue).insert_event(conn, "again")
    tick()
    for _ in range(2):
        batch_id = admin.next_batch(queue, "c")
        assert batch_id is not None
        assert admin.finish_batch(batch_id)
        assert admin.next_batch(queue, "c") is None
        assert not admin.register_consumer_at(queue, "c", start.last_tick)
    with pytest.raises(errors.TickNotFound):
        admin.register_consumer_at(queue, "c", 10**12)


def test_batches_are_worked_by_hand(admin: Admin, conn: Connection, queue: str, tick: Tick) -> None:
    admin.register_consumer(queue, "c")
    event_id = Producer(queue).insert_event(conn, "type", "data")
    tick()
    batch = admin.next_batch_upto(queue, "c", 10)
    assert batch is not None
    assert batch == admin.next_batch_info(queue, "c")
    assert batch == admin.next_batch_custom(queue, "c")
    info = admin.get_batch_info(batch.batch_id)
    assert (info.queue_name, info.consumer_name) == (queue, "c")
    assert (info.prev_tick_id, info.tick_id) == (batch.prev_tick_id, batch.cur_tick_id)
    rows = conn.execute(admin.batch_event_sql(batch.batch_id).encode()).fetchall()
    assert [row[0] for row in rows] == [event_id]
    assert admin.event_retry(batch.batch_id, event_id, 0)
    assert admin.batch_retry(batch.batch_id, 0) == 0, "it is put back already"
    assert admin.finish_batch(batch.batch_id)
    assert admin.maint_retry_events() == 1
    with pytest.raises(errors.BatchNotFound):
        admin.get_batch_info(batch.batch_id)
    with pytest.raises(errors.BatchNotFound):
        admin.batch_event_sql(batch.batch_id)


def test_min_lag_holds_batches_back(admin: Admin, conn: Connection, queue: str, tick: Tick) -> None:
    admin.register_consumer(queue, "c")
    tick()
    hour = timedelta(hours=1)
    assert admin.next_batch_custom(queue, "c", min_lag=hour) is None
    assert admin.next_batch_upto(queue, "c", 10, min_lag=hour) is None
    assert admin.next_batch_upto(queue, "c", 10) is not None


def test_the_values_have_all_columns_that_the_functions_return(conn: Connection) -> None:
    for function, value in {
        "get_queue_info": QueueInfo,
        "get_consumer_info": ConsumerInfo,
        "get_batch_info": BatchInfo,
        "next_batch_info": NextBatch,
    }.items():
        columns = conn.execute(
            "select distinct name from pg_proc,"
            " unnest(proargnames, proargmodes) as arg (name, mode)"
            " where pronamespace = 'pgq'::regnamespace and proname = %s and mode in ('o', 't')",
            [function],
        )
        assert {field.name for field in dataclasses.fields(value)} == {name for (name,) in columns}


def test_the_callers_transaction_decides(admin: Admin, connect: Connect) -> None:
    caller = connect(autocommit=False)
    Admin(caller).create_queue("q")
    caller.rollback()
    assert admin.get_queue_info() == []


def test_what_does_not_exist_is_an_error_with_a_hint(admin: Admin, queue: str) -> None:
    for call in (lambda: admin.drop_queue("missing"), lambda: admin.get_queue_info("missing")):
        with pytest.raises(errors.QueueNotFound) as info:
            call()
        assert info.value.hint
    with pytest.raises(errors.ConsumerNotRegistered):
        admin.next_batch(queue, "unknown")
    with pytest.raises(errors.InvalidPayload, match="NUL"):
        admin.create_queue("a\0b")
