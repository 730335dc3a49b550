"""finish_and_claim: the same as both, in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgqpy import errors
from pgqpy.tasks import Task, Tasks
from tests.fixtures.fix_db import Connection

LEFT = """
select t.id, t.version, t.queue_id, t.priority, t.claimant, t.attempts, t.pos is null as held,
       t.lease is not null as leased
  from pgq_task.task t order by t.id
"""
KEPT = "select id, outcome, result from pgq_task.finished order by id"
COUNTS = "select finished, claimed from pgq_task.get_statistics('work')"


@pytest.fixture
def tasks(conn: Connection) -> Tasks:
    made = Tasks(conn, "me")
    made.create_queue("work")
    return made


@pytest.fixture
def role(conn: Connection) -> Iterator[str]:
    """May do all that is not restricted."""
    conn.execute("create role finish_and_claim_test in role pgq_reader, pgq_writer")
    yield "finish_and_claim_test"
    conn.execute("reset role")
    conn.execute("drop role finish_and_claim_test")


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


def test_a_worker_that_lost_a_task_gets_no_other_for_it(tasks: Tasks) -> None:
    tasks.push_many("work", [1, 2])
    (task,) = tasks.try_claim("work")
    tasks.release([task])
    with pytest.raises(errors.TaskConflict):
        tasks.finish_and_claim(task)
    assert {each.status for each in tasks.list("work")} == {"available"}


@pytest.mark.parametrize("restricted", ["work", "other"])
def test_it_does_not_bypass_restrictions(tasks: Tasks, role: str, restricted: str) -> None:
    tasks.create_queue("other")
    tasks.push("other")
    tasks.push("work")
    (task,) = tasks.try_claim("work")
    tasks.conn.execute("select pgq_task.restrict_queue(%s)", [restricted])
    before = state(tasks)
    tasks.conn.execute(f"set role {role}".encode())
    with pytest.raises(errors.PermissionDenied):
        tasks.finish_and_claim(task, "other", random=False)
    tasks.conn.execute("reset role")
    assert state(tasks) == before


def test_what_makes_no_sense_finishes_nothing(tasks: Tasks) -> None:
    usual(tasks)
    (task,) = tasks.try_claim("work", lease=0.001)
    before = state(tasks)
    wrong: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"queue": "nowhere"}, errors.TaskQueueNotFound),
        ({"lease": 0}, errors.InvalidTask),
        ({"lease": -1}, errors.InvalidTask),
    ]
    for arguments, error in wrong:
        with pytest.raises(error):
            tasks.finish_and_claim(task, **arguments)
    tasks.claimant = ""
    with pytest.raises(errors.InvalidTask):
        tasks.finish_and_claim(task)
    assert state(tasks) == before
