"""finish_and_claim: the same as both, in one call."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgqpy.tasks import Task, Tasks

LEFT = """
select t.id, t.version, t.queue_id, t.priority, t.claimant, t.attempts, t.pos is null as held,
       t.lease is not null as leased
  from pgq_task.task t order by t.id
"""
KEPT = "select id, outcome, result from pgq_task.finished order by id"
COUNTS = "select finished, claimed from pgq_task.get_statistics('work')"


def usual(tasks: Tasks) -> None:
    tasks.push_many("work", range(20))


def higher_one(tasks: Tasks) -> None:
    tasks.push("work", "low")
    tasks.push("work", "high", priority=5)


def only_a_lower_one(tasks: Tasks) -> None:
    high = tasks.push("work", "high", priority=5)
    tasks.modify(deletes=[{"id": high, "version": 1}])
    tasks.push("work", "low", priority=-5)


def ordered(tasks: Tasks) -> None:
    tasks.push_many("work", range(3), order_keys=["a", "a", "b"])
    # As a sweep does it, after a while, with those that have to wait.
    tasks.conn.execute(
        "select pgq_task._hold_back(id) from pgq_task.task where order_key = 'a' and lease is null"
    )


def used_up(tasks: Tasks) -> None:
    usual(tasks)
    Tasks(tasks.conn, "other").try_claim("work", random=False)
    tasks.set_limits("work", max_running=1)


def claimed_by_another(tasks: Tasks) -> None:
    tasks.push_many("work", range(2))
    Tasks(tasks.conn, "other").try_claim("work", random=False)


def given_up(tasks: Tasks) -> None:
    """Its lease has ended, and it may not be tried again."""
    usual(tasks)
    tasks.set_config("work", "max_attempts", "1")
    tasks.conn.execute(
        "update pgq_task.task set attempts = 1, claimant = 'dead', lease = now() - interval '1 s',"
        " last_attempt = now() where payload = '0'"
    )


def state(tasks: Tasks) -> list[Any]:
    return [tasks.conn.execute(statement).fetchall() for statement in (LEFT, KEPT)]


def counts(tasks: Tasks) -> tuple[int, int]:
    """Finished and claimed."""
    (found,) = tasks.conn.execute(COUNTS)
    return found[0], found[1]


def without_times(task: Task) -> tuple[Any, ...]:
    return task.id, task.version, task.queue, task.priority, task.attempts, task.payload, task.error


BESIDE: dict[str, list[Callable[[Tasks], object]]] = {
    "nothing": [],
    "usual": [usual],
    "higher": [higher_one],
    "lower": [only_a_lower_one],
    "later": [lambda tasks: tasks.push("work", "later", delay=3600)],
    "ordered": [ordered],
    "paused": [usual, lambda tasks: tasks.pause("work")],
    "kept": [usual, lambda tasks: tasks.set_config("work", "keep", "1 hour")],
    "limited": [usual, lambda tasks: tasks.set_limits("work", max_running=1)],
    "used up": [used_up],
    "claimed by another": [claimed_by_another],
    "given up": [given_up],
    "died": [given_up, lambda tasks: tasks.set_config("work", "max_attempts", "2")],
}


@pytest.mark.parametrize("order_key", [None, "a"])
@pytest.mark.parametrize("beside", BESIDE)
def test_it_does_what_finish_and_claim_do(tasks: Tasks, beside: str, order_key: str | None) -> None:
    tasks.push("work", "first", order_key=order_key)
    (task,) = tasks.try_claim("work")
    for arrange in BESIDE[beside]:
        arrange(tasks)
    start = counts(tasks)
    with tasks.conn.transaction(force_rollback=True):
        tasks.finish(task, "result")
        expected = tasks.try_claim("work", random=False)
        left = state(tasks)
        counted = counts(tasks)
    assert counts(tasks) == start
    claimed = tasks.finish_and_claim(task, result="result", random=False)
    found = [] if claimed is None else [claimed]
    assert [*map(without_times, found)] == [*map(without_times, expected)]
    assert state(tasks) == left
    assert counts(tasks) == counted


def test_all_are_worked_off_one_after_the_other(tasks: Tasks) -> None:
    """Among eight or so that wait it takes any, and steps over none for good."""
    ids = tasks.push_many("work", range(200))
    (task,) = tasks.try_claim("work")
    done = [task.id]
    # The lease is as long as it is said.
    for lease, seconds in ((None, 30), (60, 60)):
        before = datetime.now(UTC)
        claimed = tasks.finish_and_claim(task, lease=lease)
        assert claimed is not None
        assert before <= claimed.lease - timedelta(seconds=seconds) <= datetime.now(UTC)
        done.append(claimed.id)
        task = claimed
    while (claimed := tasks.finish_and_claim(task)) is not None:
        task = claimed
        done.append(task.id)
    assert sorted(done) == ids
    assert state(tasks)[0] == []


def test_the_next_one_may_be_of_another_queue(tasks: Tasks) -> None:
    tasks.create_queue("other")
    tasks.push("work", 1)
    other = tasks.push("other", 2)
    (task,) = tasks.try_claim("work")
    claimed = tasks.finish_and_claim(task, "other")
    assert claimed is not None
    assert claimed.id == other
    assert counts(tasks) == (1, 1)
    assert tasks.finish_and_claim(claimed, "work") is None
