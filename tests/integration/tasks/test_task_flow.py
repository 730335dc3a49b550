"""Flows: a step begins when those before it are finished, once, and with their results."""

from __future__ import annotations

from typing import Any, LiteralString

import pytest
from psycopg import IsolationLevel, errors
from psycopg.types.json import Jsonb

from pgqpy.errors import InvalidTask, PermissionDenied, RetryTransaction
from pgqpy.tasks import Tasks
from tests.fixtures import queue_ops
from tests.fixtures import task_ops as ops
from tests.fixtures.fix_db import AsRole, Calls, Connect, Connection, MakeRole

pytestmark = pytest.mark.any_pg


@pytest.fixture
def tasks(conn: Connection) -> Tasks:
    made = Tasks(conn, "w")
    for queue in ("work", "other"):
        made.create_queue(queue)
    return made


def push(tasks: Tasks, *steps: Any) -> list[int]:
    given = [step if isinstance(step, dict) else {"queue": "work", "after": step} for step in steps]
    return [step.id for step in tasks.flow(tasks.push_flow(given))]


def states(tasks: Tasks, task: int) -> list[str]:
    return [str(step.state) for step in tasks.flow(task)]


def claimed(tasks: Tasks, *queues: str) -> dict[int, Any]:
    found = tasks.try_claim(queues or "work", max_tasks=100)
    return {task.id: task for task in found}


@pytest.mark.parametrize("how", ["finish", "finish_many", "finish_and_claim"])
def test_a_step_begins_with_the_results_of_those_before_it(tasks: Tasks, how: str) -> None:
    one, two, both, last = push(tasks, [], [], [2, 1], [3])
    found = claimed(tasks)
    assert set(found) == {one, two}
    for task, result in ((found[one], {"n": 1}), (found[two], None)):
        assert states(tasks, one)[2:] == ["waiting", "waiting"]
        following = None
        assert both not in claimed(tasks)
        if how == "finish":
            tasks.finish(task, result)
        elif how == "finish_many":
            tasks.finish_many([task], [result])
        else:
            following = tasks.finish_and_claim(task, result=result)
    found = {following.id: following} if following else claimed(tasks)
    assert found[both].headers["results"] == [None, {"n": 1}]
    tasks.finish(found[both], "both")
    ((last_task,)) = claimed(tasks).values()
    assert (last_task.id, last_task.headers["results"]) == (last, ["both"])
    tasks.finish(last_task, [1])
    assert states(tasks, last) == ["finished"] * 4
    assert tasks.result(last) == [1]
    flow = last_task.headers["flow"]
    assert states(tasks, flow) == ["finished"] * 4
    tasks.conn.execute("update pgq_task.flow set flow_ended = now() - interval '2 days'")
    ops.sweep_twentieth(tasks.conn)
    with pytest.raises(InvalidTask, match=f"there is no flow {flow}"):
        states(tasks, flow)


def test_a_failed_step_holds_the_rest_until_it_is_requeued(tasks: Tasks) -> None:
    first, _ = push(tasks, [], [1])
    task = claimed(tasks)[first]
    tasks.fail(task, "broken", final=True)
    assert states(tasks, first) == ["failed", "waiting"]
    assert tasks.requeue("work.failed") == 1
    assert states(tasks, first) == ["available", "waiting"]
    tasks.finish(claimed(tasks)[first])
    assert states(tasks, first) == ["finished", "available"]


@pytest.mark.parametrize("how", ["remove", "cancel", "drop"])
def test_steps_after_one_that_was_removed_fail(tasks: Tasks, how: str) -> None:
    first, middle, last = push(tasks, {"queue": "other", "name": "load"}, [1], [2])
    if how == "remove":
        tasks.remove("other", {"ids": [first]})
    elif how == "cancel":
        tasks.cancel(first)
    else:
        tasks.drop_queue("other", force=True)
    assert states(tasks, last) == ["removed", "failed", "waiting"]
    (failed,) = tasks.list("work.failed")
    assert (failed.id, failed.error) == (middle, "it comes after load, which was removed")
    assert failed.failures is None
    # Its queue is dropped with all of the rest.
    tasks.drop_queue("work", force=True)
    tasks.drop_queue("work.failed", force=True)
    assert states(tasks, last) == ["removed"] * 3
    assert ops.rows(tasks.conn, "select from pgq_task.flow where flow_ended is not null")


@pytest.mark.slow
def test_results_that_are_too_large_together_keep_no_step_from_ending(tasks: Tasks) -> None:
    """PostgreSQL holds 256 MB of JSON."""
    push(tasks, [], [], [1, 2])
    for task in claimed(tasks).values():
        tasks.conn.execute(
            "select pgq_task.finish('w', %s, %s, to_jsonb(repeat('x', 140000000)))",
            [task.id, task.version],
        )
    assert tasks.list("work") == []
    [failed] = tasks.list("work.failed")
    assert failed.error is not None
    assert "the results of the steps that it comes after are too large together" in failed.error
    assert "results" not in (failed.headers or {})


def test_a_step_that_is_requeued_after_one_was_removed_gets_the_results_that_there_are(
    tasks: Tasks,
) -> None:
    one, two, both = push(tasks, [], [], [1, 2])
    tasks.cancel(one)
    tasks.finish(claimed(tasks)[two], 2)
    assert tasks.requeue("work.failed") == 1
    assert claimed(tasks)[both].headers["results"] == [None, 2]


def test_a_step_that_was_popped_counts_as_finished(tasks: Tasks) -> None:
    first, _ = push(tasks, [], [1])
    assert tasks.pop("work")[0].id == first
    assert states(tasks, first) == ["finished", "available"]


def test_a_step_stays_in_its_flow_when_its_headers_are_replaced(tasks: Tasks) -> None:
    first, second, _ = push(tasks, [], [], [1, 2])
    key = {"id": second, "version": 1, "unique_key": "k"}
    tasks.modify(changes=[{"id": first, "version": 1, "headers": {"x": 1}}, key])
    tasks.conn.execute(
        "select pgq_task.push_unique('work', '1', 'k', replace => true, headers => '{\"x\": 2}')"
    )
    found = claimed(tasks)
    assert [found[task].headers["x"] for task in (first, second)] == [1, 2]
    tasks.finish_many([*found.values()])
    assert states(tasks, first) == ["finished", "finished", "available"]


def test_steps_are_shown_to_those_that_may_read_their_queues(tasks: Tasks) -> None:
    """Those into which they were pushed, and in which they ended, even if there is a new one."""
    tasks.conn.execute("select pgq_task.restrict_queue('other')")
    moved, stays = push(tasks, [], [])
    tasks.modify(changes=[{"id": moved, "version": 1, "queue": "other"}])
    found = claimed(tasks, "work", "other")
    tasks.finish_many([found[moved], found[stays]], ["secret", "open"])
    shown: LiteralString = "select queue, state, result from pgq_task.get_flow(%s)"
    result: LiteralString = "select result from pgq_task.get_result(%s)"
    rows = [("other", None, None), ("work", "finished", "open")]
    conn = ops.as_role(tasks.conn, "pgq_reader")
    assert conn.execute(shown, [moved]).fetchall() == rows
    with pytest.raises(errors.InsufficientPrivilege, match="'other'"):
        conn.execute(result, [moved])
    assert queue_ops.value(conn, result, stays) == "open"
    conn.execute("reset role")
    tasks.drop_queue("other")
    tasks.create_queue("other")
    assert queue_ops.value(conn, result, moved) == "secret"
    ops.as_role(conn, "pgq_reader")
    assert conn.execute(shown, [moved]).fetchall() == rows
    assert conn.execute(result, [moved]).fetchall() == []


def test_results_of_a_restricted_queue_are_for_steps_of_its_readers(
    tasks: Tasks, make_role: MakeRole, as_role: AsRole
) -> None:
    tasks.conn.execute("select pgq_task.restrict_queue('other')")
    role = make_role("pusher", "pgq_writer")
    grant: LiteralString = "select pgq_task.grant_queue('other', %s, %s)"
    tasks.conn.execute(grant, [["insert"], role])
    pusher = Tasks(as_role(role))
    first, shown = {"queue": "other"}, {"queue": "work", "after": [1]}
    pusher.push_flow([first, {"queue": "other", "after": [1]}])
    pusher.push_flow([{"queue": "work"}, {"queue": "other", "after": [1]}])
    with pytest.raises(PermissionDenied, match="may not read"):
        pusher.push_flow([first, shown])
    tasks.conn.execute(grant, [["read"], role])
    pusher.push_flow([first, shown])


def test_the_end_of_a_step_does_not_look_at_all_pairs_of_steps(tasks: Tasks) -> None:
    first, *_ = push(tasks, *[[]] * 100, *[list(range(1, 101))] * 100)
    task = claimed(tasks)[first]
    read: LiteralString = (
        "select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables"
        " where relid = 'pgq_task.flow_step'::regclass"
    )
    with tasks.conn.transaction():
        before = queue_ops.value(tasks.conn, read)
        tasks.finish(task)
        assert queue_ops.value(tasks.conn, read) - before < 5000


def test_a_step_that_an_administrator_has_started_is_left_alone(tasks: Tasks) -> None:
    first, second = push(tasks, [], [1])
    # By modify(): start() refuses it, or leaves it out.
    tasks.modify(changes=[{"id": second, "version": 2, "delay": "0"}])
    found = claimed(tasks)
    tasks.finish(found[first])
    assert states(tasks, first) == ["finished", "claimed"]
    tasks.finish(found[second])
    assert states(tasks, first) == ["finished"] * 2


def test_a_step_that_waits_is_not_started(tasks: Tasks) -> None:
    first, second = push(tasks, [], [1])
    with pytest.raises(InvalidTask, match="waits for other steps of its flow"):
        tasks.start(second, 2)
    stopped = tasks.push("work", 1)
    tasks.stop(stopped, 1)
    assert tasks.change("work", {"status": "stopped"}, {"delay": "0"}) == 1
    assert set(claimed(tasks)) == {first, stopped}


def test_of_two_sessions_that_end_the_last_steps_the_second_starts_the_next(
    tasks: Tasks, connect: Connect, calls: Calls
) -> None:
    """Neither could be the last one in its own snapshot."""
    *_, last = push(tasks, [], [], [1, 2])
    one, two = tasks.try_claim("work", max_tasks=2)
    first, second = connect(autocommit=False), connect()
    Tasks(first, "w").finish(one)
    waiting = calls.blocked(lambda conn: Tasks(conn, "w").finish_many([two]), second)
    first.commit()
    waiting.result()
    assert states(tasks, last) == ["finished", "finished", "available"]


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
@pytest.mark.parametrize("waits_for", [1, 2])
@pytest.mark.parametrize("steps", [([], [], [1, 2]), ([], [])])
def test_a_session_that_cannot_see_the_end_of_another_step_has_to_try_again(
    tasks: Tasks, connect: Connect, level: IsolationLevel, steps: Any, waits_for: int
) -> None:
    """With its old snapshot neither is the last one, in whichever order they look."""
    *_, last = push(tasks, *steps)
    tasks.conn.execute("update pgq_task.flow_step set waits_for = %s where nr = 3", [waits_for])
    one, two = tasks.try_claim("work", max_tasks=2, random=False)
    first, second = (connect(autocommit=False, level=level) for _ in range(2))
    second.execute("select from pgq_task.task")
    Tasks(first, "w").finish(one)
    first.commit()
    with pytest.raises(RetryTransaction):
        Tasks(second, "w").finish(two)
    second.rollback()
    Tasks(second, "w").finish(two)
    second.commit()
    assert states(tasks, last)[:2] == ["finished"] * 2
    ended = "select flow_ended is not null from pgq_task.flow"
    assert queue_ops.value(tasks.conn, ended) is (len(steps) == 2)
    assert states(tasks, last)[2:] == ["available"] * (len(steps) - 2)


def test_a_rollback_leaves_the_flow_as_it_was(tasks: Tasks, connect: Connect) -> None:
    first, _ = push(tasks, [], [1])
    task = claimed(tasks)[first]
    other = connect(autocommit=False)
    Tasks(other, "w").finish(task)
    other.rollback()
    assert states(tasks, first) == ["claimed", "waiting"]
    # A forged header makes no flow.
    forged = ops.push(tasks.conn, "work", 1, headers={"flow": "x"})
    tasks.finish(claimed(tasks)[forged])


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([], "an empty one"),
        ({}, "no JSON array"),
        (None, "no JSON array"),
        ([{"queue": "work"}, 1], "step 2 of the flow is invalid"),
        ([{"queue": "work", "unique_key": "x"}], "step 1 of the flow is invalid"),
        ([{"queue": "work", "headers": [1]}], "step 1 of the flow is invalid"),
        ([{"queue": "work", "after": 1}], "step 1 of the flow is invalid"),
        ([{"queue": "work", "after": [1]}], "step 1 of the flow does not come after"),
        ([{"queue": "work", "after": [2]}, {"queue": "work"}], "step 1 of the flow does not come"),
        (
            [{"queue": "work"}, {"queue": "work", "after": [0.5]}],
            "step 2 of the flow does not come",
        ),
        (
            [{"queue": "work"}, {"queue": "work", "after": ["a"]}],
            "step 2 of the flow does not come",
        ),
        ([{"queue": "work"}, {"queue": "nowhere", "after": [1]}], "nowhere"),
        ([{"queue": "work"}, {"after": [1]}], "queue"),
    ],
)
def test_what_is_no_flow_is_refused(tasks: Tasks, steps: Any, message: str) -> None:
    with pytest.raises(Exception, match=message):
        tasks.conn.execute("select pgq_task.push_flow(%s)", [Jsonb(steps)])
    assert tasks.list("work") == []


def test_the_newest_flows_are_listed_with_the_numbers_of_their_steps(tasks: Tasks) -> None:
    assert tasks.flows() == []
    done, _ = push(tasks, [], [])
    tasks.finish_many([*claimed(tasks).values()])
    failed, _, _ = push(tasks, [], [], [1])
    found = claimed(tasks)
    tasks.fail(found[failed], "bad", final=True)
    newest, oldest = tasks.flows()
    assert (oldest.queue, oldest.steps, oldest.ended_steps, oldest.failed) == ("work", 2, 2, 0)
    assert oldest.ended is not None
    assert (newest.steps, newest.ended_steps, newest.failed, newest.ended) == (3, 0, 1, None)
    assert failed in [step.id for step in tasks.flow(newest.flow)]
    assert tasks.flows(1) == [newest]
    assert done in [step.id for step in tasks.flow(oldest.flow)]
    with pytest.raises(InvalidTask):
        tasks.flows(0)
