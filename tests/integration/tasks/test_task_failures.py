"""The failures of a task: each with its attempt, until it is finished."""

from __future__ import annotations

from typing import Any

import pytest

from pgqpy.tasks import Tasks
from tests.fixtures import task_ops as ops


def failures(tasks: Tasks, number: int) -> list[dict[str, Any]]:
    [task] = tasks.list(filter={"ids": [number]})
    return task.failures or []


def end_leases(tasks: Tasks) -> None:
    tasks.conn.execute("update pgq_task.task set lease = clock_timestamp()")


def claim_and_fail(tasks: Tasks, error: str, *, final: bool = False) -> None:
    [task] = tasks.try_claim("work")
    tasks.fail(task, error, final=final)


def test_each_failure_is_kept_with_its_attempt(tasks: Tasks) -> None:
    number = tasks.push("work", {})
    assert failures(tasks, number) == []
    claim_and_fail(tasks, "first")
    # Its worker is lost: no report of this attempt.
    tasks.try_claim("work")
    end_leases(tasks)
    claim_and_fail(tasks, "é" * 2000)
    found = failures(tasks, number)
    assert [(each["attempt"], each["error"]) for each in found] == [(1, "first"), (3, "é" * 1000)]
    assert found[0]["at"] < found[1]["at"]
    assert {each["claimant"] for each in found} == {tasks.claimant}


def test_they_stay_in_the_error_queue_and_after_a_retry(tasks: Tasks) -> None:
    number = tasks.push("work", {})
    claim_and_fail(tasks, "once")
    claim_and_fail(tasks, "at last", final=True)
    assert [each["error"] for each in failures(tasks, number)] == ["once", "at last"]
    tasks.requeue("work.failed")
    claim_and_fail(tasks, "again")
    found = failures(tasks, number)
    assert [(each["attempt"], each["error"]) for each in found] == [
        (1, "once"),
        (2, "at last"),
        (1, "again"),
    ]


def test_the_last_twenty_are_kept(tasks: Tasks) -> None:
    number = tasks.push("work", {})
    for attempt in range(25):
        claim_and_fail(tasks, str(attempt))
    assert [each["error"] for each in failures(tasks, number)] == [
        str(each) for each in range(5, 25)
    ]


def test_a_lost_workers_last_attempt_is_one(tasks: Tasks) -> None:
    tasks.set_config("work", "max_attempts", 1)
    number = tasks.push("work", {})
    tasks.try_claim("work")
    end_leases(tasks)
    ops.sweep_until(tasks.conn, lambda: tasks.list("work.failed"))
    assert [each["error"] for each in failures(tasks, number)] == ["the worker was lost"]


@pytest.mark.any_pg
@pytest.mark.slow
def test_headers_that_leave_no_room_keep_no_task_from_failing(tasks: Tasks) -> None:
    """PostgreSQL holds 256 MB of JSON."""
    tasks.conn.execute(
        "select pgq_task.push('work', '1', headers => jsonb_build_object('a', repeat('x', %s)))",
        [2**28 - 16],
    )
    tasks.conn.execute(
        "select pgq_task.fail('w', id, version, 'bad', final => true)"
        " from pgq_task.claim('{work}', 'w')"
    )
    found = tasks.conn.execute("select queue, error, failures -> 0 ->> 'error' from pgq_task.tasks")
    assert found.fetchall() == [("work.failed", "bad", "bad")]


def test_another_payload_for_the_same_key_begins_anew(tasks: Tasks) -> None:
    number = tasks.push("work", 1, unique_key="k")
    claim_and_fail(tasks, "old")
    tasks.push_unique("work", 2, "k", replace=True)
    assert failures(tasks, number) == []


def test_those_of_a_restricted_queue_are_for_its_readers(tasks: Tasks) -> None:
    number = tasks.push("work", {})
    claim_and_fail(tasks, "secret")
    tasks.conn.execute("select pgq_task.restrict_queue('work')")
    assert len(failures(tasks, number)) == 1
    ops.as_role(tasks.conn, "pgq_reader")
    assert tasks.conn.execute("select failures from pgq_task.tasks").fetchall() == []
