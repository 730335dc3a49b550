"""The output of `pgqpy status` for given data."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgqpy.consumer.progress import BatchProgress
from pgqpy.doctor import Finding
from pgqpy.doctor._queues import Status
from pgqpy.doctor._queues import status_of as shown
from pgqpy.doctor._readings import Failing, Failure, Group, Readings, Rotation, Server, Transaction
from pgqpy.doctor._status import ConsumerState, QueueState, judge
from pgqpy.models import ConsumerInfo, QueueInfo

NOW = datetime(2026, 11, 21, 8, 30, tzinfo=UTC)
PATIENCE = timedelta(minutes=5)

QUEUE = QueueInfo(
    queue_name="flights",
    queue_ntables=3,
    queue_cur_table=0,
    queue_rotation_period=timedelta(hours=2),
    queue_switch_time=NOW - timedelta(hours=1),
    queue_external_ticker=False,
    queue_ticker_paused=False,
    queue_ticker_max_count=500,
    queue_ticker_max_lag=timedelta(seconds=3),
    queue_ticker_idle_period=timedelta(minutes=1),
    ticker_lag=timedelta(seconds=1),
    ev_per_sec=12.5,
    ev_new=3,
    last_tick_id=40,
)
CONSUMER = ConsumerInfo(
    queue_name="flights",
    consumer_name="counter",
    lag=timedelta(seconds=2),
    last_seen=timedelta(seconds=1),
    last_tick=39,
    current_batch=None,
    next_tick=None,
    pending_events=20,
)
ROTATION = Rotation(
    queue="flights",
    rotated_at=NOW - timedelta(hours=1),
    rotation_due_at=NOW + timedelta(hours=1),
    held_by_transaction=False,
    consumers_before_switch=["counter"],
)
HEALTHY = Readings(
    server=Server("shop", "18.1", NOW, 4242),
    queues=[QUEUE],
    consumers=[CONSUMER],
    rotations={"flights": ROTATION},
    delayed={},
    dead_letters=None,
    batches={},
    groups=[],
    transactions=[],
    foreign_locks=[],
    failures=[],
    failing={},
    paused={},
)


HOUR, DAY = timedelta(hours=1), timedelta(days=1)
DUE = replace(ROTATION, rotation_due_at=NOW - timedelta(minutes=1))


def status_of(**readings: Any) -> Status:
    """The judgement on healthy readings with these changes."""
    return shown(judge(replace(HEALTHY, **readings), PATIENCE))


def remedy(alert: Finding) -> str:
    assert alert.remedy is not None
    return alert.remedy


def test_a_queue_that_is_well_gives_no_alert() -> None:
    status = status_of()
    [queue] = status.queues
    assert queue.state is QueueState.TICKING
    assert queue.consumers[0].state is ConsumerState.OK
    # No consumer holds up a rotation that is not due.
    assert queue.rotation_held_by == []
    assert status.alerts == []


@pytest.mark.parametrize(
    ("last_seen", "batch", "state"),
    [
        (timedelta(seconds=1), None, ConsumerState.BEHIND),
        (HOUR, None, ConsumerState.STUCK),
        # It tells how far its batch is, so it works, however long it takes.
        (HOUR, BatchProgress(7, HOUR, 1, 8), ConsumerState.BEHIND),
    ],
)
def test_a_consumer_that_lags_is_behind_while_it_works_and_stuck_when_it_does_not(
    last_seen: timedelta, batch: BatchProgress | None, state: ConsumerState
) -> None:
    lagging = replace(CONSUMER, lag=HOUR, last_seen=last_seen, current_batch=7 if batch else None)
    status = status_of(consumers=[lagging], batches={7: batch} if batch else {})
    assert status.queues[0].consumers[0].state is state
    assert bool(status.alerts) == (state is ConsumerState.STUCK)


def test_a_stuck_consumer_is_named_with_the_way_to_let_go_of_it() -> None:
    stuck = replace(CONSUMER, consumer_name="old one", lag=DAY, last_seen=DAY)
    [alert] = status_of(consumers=[stuck]).alerts
    assert "old one is stuck" in alert.message
    assert "rotation" not in alert.message
    assert "pgqpy consumer unregister flights 'old one'" in remedy(alert)


def test_without_a_ticker_the_ticker_is_to_blame_and_not_the_consumers() -> None:
    queue = replace(QUEUE, ticker_lag=HOUR)
    consumer = replace(CONSUMER, lag=HOUR, last_seen=HOUR)
    status = status_of(queues=[queue], consumers=[consumer])
    assert status.queues[0].state is QueueState.NO_TICKER
    assert status.queues[0].consumers[0].state is ConsumerState.OK
    [alert] = status.alerts
    assert "pgqpy ticker" in remedy(alert)


def test_a_queue_that_is_not_to_be_ticked_is_not_missing_a_ticker() -> None:
    paused = replace(QUEUE, queue_ticker_paused=True, ticker_lag=DAY)
    external = replace(QUEUE, queue_external_ticker=True, ticker_lag=DAY)
    for queue, state in ((paused, QueueState.PAUSED), (external, QueueState.EXTERNAL)):
        status = status_of(queues=[queue])
        assert status.queues[0].state is state
        assert status.alerts == []


def test_a_consumer_before_the_switch_holds_up_a_rotation_that_is_due() -> None:
    status = status_of(rotations={"flights": DUE})
    assert status.queues[0].rotation_held_by == ["counter"]
    [alert] = status.alerts
    assert "waits for counter" in alert.message


def test_when_the_newest_tick_is_before_the_switch_a_transaction_holds_up_rotation() -> None:
    due = replace(DUE, held_by_transaction=True)
    status = status_of(rotations={"flights": due})
    assert status.queues[0].rotation_held_by == ["an open transaction"]


def test_a_queue_that_never_rotates_is_never_due() -> None:
    never = replace(ROTATION, rotation_due_at=None)
    status = status_of(rotations={"flights": never})
    assert status.queues[0].rotation_due_in is None
    assert status.alerts == []


def test_old_transactions_are_named_with_the_way_to_end_them() -> None:
    session = Transaction(
        "session", "77", "ann", "idle in transaction", "psql", PATIENCE, "shop", "update t"
    )
    prepared = Transaction("prepared", "move it", "ann", None, None, PATIENCE, "shop", None)
    alerts = status_of(transactions=[session, prepared]).alerts
    assert "pg_terminate_backend(77)" in remedy(alerts[0])
    assert "rollback prepared 'move it'" in remedy(alerts[1])


def test_a_stuck_consumer_that_holds_up_rotation_is_one_alert_and_not_two() -> None:
    stuck = replace(CONSUMER, lag=DAY, last_seen=DAY)
    [alert] = status_of(consumers=[stuck], rotations={"flights": DUE}).alerts
    assert "counter is stuck" in alert.message
    assert "rotation waits for it" in alert.message


def test_stuck_partitions_of_a_group_are_one_alert_with_the_group_to_let_go_of() -> None:
    away = replace(CONSUMER, lag=timedelta(hours=2), last_seen=timedelta(hours=2))
    partitions = [
        replace(away, consumer_name=f"ship ments#{number}", pending_events=number)
        for number in range(2)
    ]
    group = Group("flights", "ship ments", partitions=3, keys_given_up=0)
    [alert] = status_of(consumers=[CONSUMER, *partitions], groups=[group]).alerts
    assert alert.message == (
        "flights: 2 of 3 partitions of group ship ments are stuck, last seen 2 h ago,"
        " 1 event behind"
    )
    assert remedy(alert).endswith("pgqpy group drop flights 'ship ments'")


def test_keys_that_wait_for_a_person_are_told_of() -> None:
    groups = [
        Group("flights", "shipments", partitions=3, keys_given_up=1),
        Group("others", "shipments", partitions=3, keys_given_up=1),
    ]
    [alert] = status_of(groups=groups).alerts
    assert alert.message.startswith("flights: 1 key of group shipments failed too often")
    assert "pgqpy group parked flights shipments" in remedy(alert)


def test_rotation_long_due_that_nothing_holds_up_says_that_maintenance_does_not_work() -> None:
    due = replace(ROTATION, consumers_before_switch=[], rotation_due_at=NOW - timedelta(hours=1))
    [alert] = status_of(rotations={"flights": due}).alerts
    assert "maintenance does not run" in alert.message
    soon = replace(due, rotation_due_at=NOW - timedelta(minutes=1))
    assert status_of(rotations={"flights": soon}).alerts == []


def test_what_the_ticker_cannot_do_is_an_alert_with_its_error() -> None:
    failure = Failure("pgq.maint_rotate_tables_step1", "flights", "no space", timedelta(hours=1))
    [alert] = status_of(failures=[failure]).alerts
    for part in ("pgq.maint_rotate_tables_step1 of flights", "1 h", "no space"):
        assert part in alert.message


FAILING = Failing(
    *("flights", "counter", 7, 1234, "ZeroDivisionError: no", None, 3),
    *(timedelta(minutes=2), timedelta(0)),
)


def test_a_consumer_that_fails_is_failing_and_not_ok_or_stuck_and_keeps_its_events() -> None:
    for lag in (timedelta(seconds=2), timedelta(days=1)):
        failing = replace(CONSUMER, current_batch=7, lag=lag, last_seen=lag)
        status = status_of(consumers=[failing], failing={("flights", "counter"): FAILING})
        assert status.queues[0].consumers[0].state is ConsumerState.FAILING
        [alert] = status.alerts
        assert alert.message.startswith(
            "flights: counter fails in batch 7 at event 1234, 3 times in 2 min, last seen"
        )
        assert alert.message.endswith(": ZeroDivisionError: no")
        assert "unregister" not in remedy(alert)
        assert "by itself" in remedy(alert)


def test_a_failing_consumer_that_is_not_tried_any_more_is_to_be_started() -> None:
    old = replace(FAILING, event_id=None, last_attempt=timedelta(hours=3))
    [alert] = status_of(failing={("flights", "counter"): old}).alerts
    assert "fails in batch 7, 3 times" in alert.message
    assert "last tried 3 h ago: start it again" in remedy(alert)


def test_failing_partitions_of_a_group_are_one_alert() -> None:
    names = [f"ship#{number}" for number in range(3)]
    [alert] = status_of(
        consumers=[replace(CONSUMER, consumer_name=name) for name in names],
        groups=[Group("flights", "ship", partitions=3, keys_given_up=0)],
        failing={
            ("flights", name): replace(FAILING, consumer=name, last_attempt=timedelta(number))
            for number, name in enumerate(names)
        },
    ).alerts
    assert alert.message.startswith("flights: ship#0 (and 2 other partitions) fails in batch 7")


def test_a_tick_in_the_future_is_no_sign_of_a_ticker() -> None:
    """The tick was made before the clock was set back; a ticker makes another one at once."""
    for age, state in ((-timedelta(days=400), "no ticker"), (-timedelta(seconds=1), "ticking")):
        status = status_of(queues=[replace(QUEUE, ticker_lag=age)])
        assert status.queues[0].state == state


def test_a_pause_is_no_alert_and_hides_no_failure() -> None:
    waits = replace(CONSUMER, lag=DAY, last_seen=DAY)
    paused = {("flights", "counter"): NOW - DAY}
    status = status_of(consumers=[waits], paused=paused)
    assert status.queues[0].consumers[0].state is ConsumerState.PAUSED
    assert status.alerts == []
    status = status_of(consumers=[waits], paused=paused, failing={("flights", "counter"): FAILING})
    assert status.queues[0].consumers[0].state is ConsumerState.FAILING
    assert status.queues[0].consumers[0].paused == NOW - DAY
