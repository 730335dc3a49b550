"""When a worker claims tasks, and how many: decisions without a server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from pgqpy.tasks._settings import Database, Settings
from pgqpy.tasks._worker.claimer import Claimer
from pgqpy.tasks._worker.leases import Claim, Leases

DATABASE = Database(dsn="", listen_dsn="", claimant="w", prepare_threshold=None)
LEASE = 60.0


def make(**given: Any) -> tuple[Claimer, Leases]:
    settings: dict[str, Any] = {
        "database": DATABASE,
        "way": "handle_task",
        "queues": ["work"],
        "lease": None,
        "batch_size": 100,
        "concurrency": 1,
        "in_slots": given.get("concurrency", 1) > 1,
        "random": True,
        "outages": (),
        "pushes_periodic": False,
        "fold_interval": 1.0,
        "poll_interval": 4.0,
        "reconnect_cap": 5.0,
        "stop_timeout": None,
        "until_empty": False,
    }
    leases = Leases(DATABASE, None, lambda claim: None)
    return Claimer(Settings(**settings | given), leases), leases


def rows(number: int, *, attempts: int = 1, error: str | None = None) -> list[tuple[Any, ...]]:
    now = datetime.now(UTC)
    return [
        (n, 1, "work", 0, attempts, now, now, None, None, error, None, None, LEASE)
        for n in range(number)
    ]


def hold(leases: Leases, claims: list[Claim]) -> None:
    """Let a worker have them, without the thread that renews."""
    leases._claims.update({claim.task.id: claim for claim in claims})


def test_batches_grow_while_they_are_quick_and_shrink_while_they_are_slow() -> None:
    claimer, _ = make()
    sizes = []
    now = 1000.0
    for pause in [0.0, 0.01, 0.01, 0.01, 0.2, 1.0, 1.0]:
        now += pause
        room = claimer.room(0, 0)
        claimer.claimed(room, rows(room), None, now)
        sizes.append(claimer.room(0, 0))
    # The first claim says nothing about the time that a task takes.
    assert sizes == [1, 2, 4, 8, 8, 4, 2]


def test_a_batch_has_at_most_the_size_that_was_set() -> None:
    claimer, _ = make(batch_size=5)
    for _ in range(10):
        claimer.claimed(claimer.room(0, 0), rows(claimer.room(0, 0)), None, 0.0)
    assert claimer.room(0, 0) == 5


def test_an_idle_slot_gets_a_task_however_many_the_others_have() -> None:
    claimer, leases = make(concurrency=4)
    assert claimer.room(running=0, ended=0) == 4
    # A batch in one slot.
    hold(leases, claimer.claimed(4, rows(4), None, 0.0))
    assert claimer.room(running=1, ended=0) == 4
    hold(leases, claimer.claimed(100, rows(100), None, 0.0))
    assert claimer.room(running=1, ended=0) == 3
    assert claimer.room(running=4, ended=0) <= 0


def test_polls_become_rarer_while_nothing_is_found() -> None:
    claimer, _ = make()
    now, pauses = 1000.0, []
    claimer.claimed(1, [], None, now)
    # The first claim that finds nothing is repeated at once, with notifications on.
    assert claimer.looks(now, 0, 0)
    for _ in range(8):
        claimer.claimed(1, [], None, now)
        assert not claimer.looks(now, 0, 0)
        pauses.append(claimer.wakes_at(heard=False) - now)
        now = claimer.wakes_at(heard=False)
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 4.0])


def test_a_task_that_is_due_ends_the_wait() -> None:
    claimer, _ = make()
    claimer.claimed(1, [], None, 0.0)
    claimer.claimed(1, [], 0.01, 1000.0)
    assert claimer.wakes_at(heard=False) == pytest.approx(1000.01)


def test_notifications_of_a_stream_are_folded_and_the_first_are_answered_at_once() -> None:
    claimer, _ = make()
    at_once = 0
    while claimer.answers(1000.0):
        claimer.claimed(1, rows(1), None, 1000.0)
        claimer.answered(1000.0)
        at_once += 1
    assert at_once == 3
    assert claimer.answers(1001.0)


def test_a_notification_in_vain_is_answered_later() -> None:
    claimer, _ = make()
    claimer.claimed(1, [], None, 1000.0)
    claimer.answered(1000.0)
    assert 1000.0 <= claimer._answer_at <= 1000.002


def test_beside_a_task_that_may_end_the_process_nothing_is_claimed() -> None:
    claimer, leases = make(concurrency=2)
    claims = claimer.claimed(2, rows(1, attempts=3, error="the worker was lost"), None, 0.0)
    claimer.beware(claims[0], alone=True)
    hold(leases, claims)
    assert claimer.room(1, 0) == 0
    leases.drop(claims)
    assert claimer.room(0, 0) == 2


def test_until_empty_it_looks_again_when_tasks_have_ended() -> None:
    claimer, _ = make(until_empty=True)
    claimer.claimed(1, [], None, 1000.0)
    claimer.done = True
    assert not claimer.looks(1000.0, running=0, ended=0)
    assert claimer.looks(1000.0, running=0, ended=1)
    claimer.done = False
    assert claimer.looks(1000.0, running=0, ended=0)
    assert not claimer.looks(1000.0, running=1, ended=0)
