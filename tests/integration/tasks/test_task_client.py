"""Tasks: one method for each function of the work queue."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from threading import Event
from typing import Any, LiteralString

import numpy as np
import pytest
from psycopg.types.json import set_json_loads

import pgqpy
from pgqpy import errors
from pgqpy.tasks import AsyncTasks, TaskApp, Tasks, TaskWorker, Unreadable, _waiting
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import running, wait_until
from tests.fixtures.fix_db import Connect, Connection

pytestmark = pytest.mark.any_pg


def test_what_was_pushed_is_claimed_with_all_that_belongs_to_it(tasks: Tasks) -> None:
    payload = {"n": [1, None, "ä"]}
    pushed = tasks.push("work", payload, priority=3, headers={"from": "x"}, unique_key="u")
    assert tasks.push("work", None, unique_key="u") == pushed
    (task,) = tasks.try_claim("work", lease=60)
    assert (task.id, task.queue, task.payload, task.priority) == (pushed, "work", payload, 3)
    assert (task.headers, task.unique_key, task.order_key) == ({"from": "x"}, "u", None)
    assert (task.version, task.attempts, task.error) == (2, 1, None)
    assert timedelta(seconds=1) < task.lease - datetime.now(UTC) <= timedelta(seconds=60)
    assert tasks.try_claim(["work"]) == []
    tasks.finish(task)
    with pytest.raises(errors.TaskConflict) as caught:
        tasks.finish(task)
    assert caught.value.conflicts == [{"id": pushed, "version": 2, "reason": "missing"}]


def test_many_are_pushed_claimed_and_finished_in_their_order(tasks: Tasks) -> None:
    ids = tasks.push_many("work", range(5))
    claimed = tasks.try_claim("work", max_tasks=10, random=False)
    assert [task.id for task in claimed] == ids == sorted(ids)
    assert [task.payload for task in claimed] == list(range(5))
    assert tasks.finish_many(claimed[:3], results=[1, None, {}]) == []
    assert tasks.finish_many(claimed) == claimed[:3]


def test_json_that_python_cannot_read_keeps_no_other_task_from_its_claimant(
    conn: Connection, tasks: Tasks
) -> None:
    nested, long = "[" * 3000 + "]" * 3000, f'{{"n": {"1" * 5000}}}'
    tasks.push("work", "before")
    push = "select pgq_task.push('work', %s::jsonb, headers => %s::jsonb)"
    for payload, headers in ((nested, None), ('{"n": 1.5}', long)):
        conn.execute(push, [payload, headers])
    tasks.push("work", "after")
    # What the caller has set for JSON holds as before.
    set_json_loads(partial(json.loads, parse_float=Decimal), tasks.conn)

    def check(found: Sequence[Any]) -> None:
        assert [each.payload for each in found[::3]] == ["before", "after"]
        assert found[1].payload.text.replace(" ", "") == nested
        assert found[2].headers.text == long
        assert found[2].payload == {"n": Decimal("1.5")}

    check(tasks.list("work"))
    claimed = tasks.try_claim("work", max_tasks=10, random=False)
    check(claimed)
    claimed = tasks.renew(claimed)
    check(claimed)
    with pytest.raises(errors.InvalidPayload, match="Python cannot read its JSON"):
        tasks.push("work", claimed[1].payload)
    assert tasks.fail(claimed[1], str(claimed[1].payload), final=True)
    [failed] = tasks.list("work.failed")
    assert "Python cannot read its JSON" in str(failed.error)
    tasks.set_config("work", "keep", "1 day")
    tasks.release([claimed[0], *claimed[2:]])
    assert [each.attempts for each in tasks.list("work")] == [0] * 3
    popped = tasks.pop("work", max_tasks=10)
    assert [isinstance(each.headers, Unreadable) for each in popped] == [False, True, False]
    assert len(tasks.finished("work")) == 3


def test_json_of_a_schedule_that_python_cannot_read_keeps_no_worker_from_its_own(
    dsn: str, conn: Connection, tasks: Tasks
) -> None:
    odd = "select pgq_task.set_periodic('odd', 'work', '@every 90s', 'UTC', %s::jsonb)"
    conn.execute(odd, ["[" * 3000 + "]" * 3000])
    app = TaskApp("work")

    @app.periodic("0 3 * * *")
    @app.task
    def clean_up() -> None:
        """Nothing."""

    app.worker(dsn).run(until_empty=True)
    schedules = {each.name: each.payload for each in tasks.periodic()}
    assert isinstance(schedules.pop("odd"), Unreadable)
    assert len(schedules) == 1


def test_tasks_come_when_they_are_due(tasks: Tasks) -> None:
    tasks.push("work", "later", delay=3600)
    tasks.push("work", "later", at=datetime.now(UTC) + timedelta(hours=1))
    assert tasks.try_claim("work") == []
    tasks.push("work", "soon", delay=timedelta(milliseconds=50))
    (task,) = tasks.claim("work")
    assert task.payload == "soon"
    assert tasks.claim("work", wait=0.01) == []


def test_a_renewed_task_has_a_new_version_and_only_that_counts(tasks: Tasks) -> None:
    tasks.push_many("work", ["a", "b"])
    first, second = tasks.try_claim("work", max_tasks=2, lease=1)
    tasks.finish(second)
    (renewed,) = tasks.renew([first, second], lease=60)
    assert (renewed.id, renewed.version) == (first.id, first.version + 1)
    assert renewed.lease == tasks.list("work")[0].at
    assert renewed.lease > first.lease + timedelta(seconds=50)
    with pytest.raises(errors.TaskConflict):
        tasks.finish(first)
    tasks.finish(renewed)


def test_a_released_task_was_not_attempted(tasks: Tasks, connect: Connect) -> None:
    ids = tasks.push_many("work", range(40))
    claimed = tasks.try_claim("work", max_tasks=30, random=False)
    assert [task.id for task in claimed] == ids[:30]
    assert tasks.finish_many(claimed[:10]) == []
    assert tasks.release(claimed[10:20]) == []
    assert tasks.release(claimed[5:15]) == ids[5:15]
    assert tasks.release(claimed[20:21], delay=3600) == []
    again = Tasks(connect(), "other").try_claim("work", max_tasks=10, random=False)
    assert [(task.id, task.attempts) for task in again] == [(each, 1) for each in ids[10:20]]
    with pytest.raises(errors.TaskConflict):
        tasks.finish(claimed[10])
    # No worker can release the task of another.
    assert tasks.release(again) == [task.id for task in again]


def test_all_is_in_the_callers_transaction(tasks: Tasks, connect: Connect) -> None:
    caller = connect(autocommit=False)
    theirs = Tasks(caller, tasks.claimant)
    theirs.push("work", "lost")
    caller.rollback()
    tasks.push("work", "kept")
    (task,) = theirs.try_claim("work")
    caller.rollback()
    (task,) = theirs.try_claim("work")
    assert task.payload == "kept"
    caller.commit()
    theirs.finish(task)
    caller.rollback()
    tasks.finish(task)


@pytest.mark.parametrize("method", ["claim", "pop"])
def test_a_waiting_call_is_notified_of_a_task(tasks: Tasks, connect: Connect, method: str) -> None:
    assert getattr(tasks, method)("work", wait=0.01) == []
    waiting = getattr(Tasks(connect()), method)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(waiting, "work", wait=None if method == "pop" else 60)
        tasks.push("work", 1)
        assert [task.payload for task in found.result()] == [1]
    assert tasks.is_empty("work") == (method == "pop")


def test_a_worker_without_tasks_tells_what_waits_until_queues_are_empty(
    dsn: str, tasks: Tasks, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks.create_queue("other")
    tasks.wait_until_empty(["work", "other"], wait=0)
    later = tasks.push("work", delay=3600)
    with pytest.raises(TimeoutError, match="in other, work"):
        tasks.wait_until_empty(["other", "work"], wait=0.01)
    tasks.start(later, 1)
    # It must not have to look by itself.
    monkeypatch.setattr(_waiting, "POLL", 60)
    free = Event()
    watched: LiteralString = "select pg_sequence_last_value('pgq_task.idle_watch')"
    with ThreadPoolExecutor(1) as pool, running(TaskWorker(dsn, "work", lambda _: free.wait())):
        waiting = pool.submit(Tasks(connect()).wait_until_empty, "work", wait=60)
        try:
            wait_until(lambda: ops.value(tasks.conn, watched) == 1)
        finally:
            free.set()
        waiting.result(30)
    assert tasks.is_empty("work")


@pytest.mark.parametrize("call", ["claim", "pop"])
def test_a_waiting_call_is_stopped_from_another_thread(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(_waiting, "POLL", 0.01)
    for before in (True, False):
        if before:
            tasks.stop_waiting()
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(getattr(tasks, call), "work", wait=None)
            if not before:
                tasks.stop_waiting()
            assert found.result() == []
    assert getattr(tasks, call)("work", wait=0.01) == []


def test_waiting_inside_a_transaction_is_refused(tasks: Tasks, connect: Connect) -> None:
    inside = Tasks(connect(autocommit=False))
    with pytest.raises(errors.InvalidTask, match="not in autocommit"):
        inside.claim("work")
    with pytest.raises(errors.InvalidTask, match="not in autocommit"):
        inside.pop("work", wait=1)
    with pytest.raises(errors.InvalidTask, match="not in autocommit"):
        inside.wait_until_empty("work")
    assert inside.pop("work") == []


def test_tasks_can_name_each_other_by_ids_that_were_reserved(tasks: Tasks) -> None:
    first, second = tasks.reserve_ids(2)
    pair = ((first, {"next": second}), (second, {"before": first}))
    tasks.modify([{"queue": "work", "id": each, "payload": payload} for each, payload in pair])
    assert {task.id for task in tasks.list("work")} == {first, second}
    assert tasks.push("work") not in (first, second)


def test_the_largest_numbers_are_taken_and_those_out_of_an_array(tasks: Tasks) -> None:
    task: Any = np.int64(tasks.push("work"))
    assert tasks.progress(ids=[2**63 - 1, -(2**63)]) == []
    assert len(tasks.list("work", max_tasks=2**31 - 1)) == 1
    one: Any = np.int32(1)
    assert [each.id for each in tasks.try_claim("work", max_tasks=one)] == [task]
    assert tasks.finished("work", ids=[task]) == []


def test_the_asyncio_client_does_the_same(dsn: str, tasks: Tasks) -> None:
    async def main() -> None:
        async with await pgqpy.async_connect(dsn, autocommit=True) as caller:
            theirs = AsyncTasks(caller)

            async def claim() -> list[object]:
                (task,) = await theirs.claim("work", wait=60)
                async with theirs.renewing(task) as held:
                    await asyncio.to_thread(wait_until, lambda: held.task.version > task.version)
                await theirs.finish(held.task)
                await theirs.wait_until_empty("work", wait=60)
                return [task.payload]

            waiting = asyncio.create_task(claim())
            async with await pgqpy.async_connect(dsn, autocommit=True) as other:
                await AsyncTasks(other).push("work", {"x": 1})
            assert await waiting == [{"x": 1}]

    asyncio.run(main())


def test_tasks_are_renewed_in_the_background_of_a_block(tasks: Tasks, connect: Connect) -> None:
    tasks.push_many("work", ["a", "b"])
    kept, stolen = tasks.try_claim("work", lease=0.2, max_tasks=2, random=False)
    with tasks.renewing(kept, stolen, lease=0.2) as held:
        wait_until(lambda: held.tasks[0].version > kept.version + 3)
        Tasks(connect(), "thief").modify(
            changes=[{"id": stolen.id, "version": held.tasks[1].version}], force=True
        )
        wait_until(lambda: held.lost)
    assert [task.id for task in held.lost] == [stolen.id]
    tasks.finish(held.tasks[0])
    with pytest.raises(errors.TaskConflict):
        tasks.finish(held.tasks[1])
    other = connect(autocommit=False)
    other.execute("select 1")
    with pytest.raises(errors.InvalidTask, match="Commit first"):
        Tasks(other).renewing(kept)


def test_a_task_locked_by_its_transaction_is_not_lost(tasks: Tasks, connect: Connect) -> None:
    tasks.push_many("work", ["a", "b"])
    first, second = tasks.try_claim("work", max_tasks=2, random=False)
    finishing = connect(autocommit=False)
    Tasks(finishing, tasks.claimant).finish(first)
    # It does not wait, either.
    tasks.conn.execute("set lock_timeout = '20s'")
    renewed = {task.id: task.version for task in tasks.renew([first, second])}
    assert renewed == {first.id: first.version, second.id: second.version + 1}
    finishing.commit()
    assert tasks.renew([first]) == []


def test_no_lease_goes_past_the_time_limit_of_the_queue(tasks: Tasks, connect: Connect) -> None:
    tasks.set_config("work", "time_limit", "1 hour")
    tasks.push_many("work", ["a", "b", "c"])
    first, second = tasks.try_claim("work", max_tasks=2, lease=7200, random=False)
    third = tasks.finish_and_claim(second, lease=7200)
    assert third is not None
    (renewed,) = tasks.renew([first], lease=7200)
    hour = timedelta(hours=1)
    for task in (first, renewed, third):
        began = tasks.conn.execute(
            "select last_attempt from pgq_task.task where id = %s", [task.id]
        )
        assert began.fetchall() == [(task.lease - hour,)]
    (first,) = tasks.renew([renewed])
    assert first.lease < renewed.lease
    tasks.conn.execute("update pgq_task.task set last_attempt = last_attempt - interval '1 hour'")
    # A transaction of its own that has locked it does not keep it, either.
    finishing = connect(autocommit=False)
    finishing.execute("select from pgq_task.task for update")
    assert tasks.renew([first]) == []
    finishing.rollback()
    assert tasks.renew([first]) == []


def test_queues_and_tasks_are_listed_and_changed(tasks: Tasks) -> None:
    assert not tasks.create_queue("work")
    assert tasks.is_empty("work")
    assert tasks.next_time("work") is None
    tasks.push("work", {"n": 9}, delay=timedelta(hours=1))
    scheduled = tasks.next_time(["work"])
    assert scheduled is not None
    assert scheduled > tasks.server_time()
    ids = tasks.push_many("work", [{"n": n} for n in range(4)])
    available = tasks.next_time("work")
    assert available is not None
    assert available <= tasks.server_time()
    tasks.try_claim("work", random=False)
    (info,) = tasks.queues("work")
    assert (info.total, info.exact) == (5, True)
    assert (info.available, info.claimed, info.scheduled) == (3, 1, 1)
    (found,) = tasks.list("work", {"payload": {"n": 2}, "status": ["available"]})
    assert (found.id, found.status, found.claimant) == (ids[2], "available", None)
    past = datetime.now(UTC) - timedelta(hours=1)
    assert len(tasks.list("work", {"created_after": past}, max_tasks=3)) == 3
    assert tasks.change("work", {"ids": ids}, {"delay": 7200, "priority": 2}) == 3
    assert tasks.next_time("work") == scheduled
    assert tasks.remove("work", {"status": "scheduled"}) == 4
    assert [task.status for task in tasks.list()] == ["claimed"]
    tasks.set_config("work", "lease", "5 minutes")
    tasks.set_config("work", "max_attempts", 3)
    (info,) = tasks.queues()
    assert (info.lease, info.max_attempts) == (timedelta(minutes=5), 3)


def test_lists_are_of_queues_that_match_and_without_payloads_if_wanted(tasks: Tasks) -> None:
    for queue in ("a.1", "a.2", "a_3"):
        tasks.create_queue(queue)
        tasks.push(queue, {"in": queue})
    names = [info.queue_name for info in tasks.queues("a.*")]
    assert names == [task.queue for task in tasks.list("a.*")] == ["a.1", "a.2"]
    assert [info.queue_name for info in tasks.queues("*", max_queues=2)] == ["a.1", "a.2"]
    assert [task.payload for task in tasks.list("a_*", {"payload": {"in": "a_3"}})] == [
        {"in": "a_3"}
    ]
    assert {task.payload for task in tasks.list("*", payloads=False)} == {None}
    assert [*tasks.list("b*"), *tasks.queues("b*")] == []


def test_deletes_and_depends_may_be_the_tasks_themselves(tasks: Tasks) -> None:
    tasks.push_many("work", ["a", "b", "c"])
    claimed, *_ = tasks.try_claim("work", random=False)
    _, listed, other = sorted(tasks.list("work"), key=lambda task: task.id)
    done = tasks.modify(deletes=[claimed, listed], depends=[other])
    assert [(each.kind, each.number, each.id, each.version) for each in done] == [
        ("delete", 1, claimed.id, None),
        ("delete", 2, listed.id, None),
    ]
    with pytest.raises(errors.TaskConflict):
        tasks.modify(inserts=[{"queue": "work"}], depends=[claimed])
    assert [task.payload for task in tasks.list("work")] == ["c"]


def test_wrong_modifications_and_filters_are_refused_with_an_example(tasks: Tasks) -> None:
    tasks.push("work", 1)
    (task,) = tasks.try_claim("work")
    wrong: Any = [
        ({"inserts": ["work"]}, "insert 'work' is no dict"),
        ({"inserts": {"queue": "work"}}, "insert 'queue' is no dict"),
        ({"changes": [task]}, "change Task"),
        ({"deletes": task.id}, "delete 1 is no dict"),
    ]
    for given, message in wrong:
        with pytest.raises(errors.InvalidTask, match=message) as caught:
            tasks.modify(**given)
        assert "list of dicts, such as" in str(caught.value.hint)
    for odd in ({(1, 2): 1}, {1: 2}):
        with pytest.raises(errors.InvalidTask, match="keys that are no texts"):
            tasks.modify([odd])  # type: ignore[list-item]
        with pytest.raises(errors.InvalidTask, match="keys that are no texts"):
            tasks.change("work", odd, {"delay": 1})  # type: ignore[arg-type]
    a_list: Any = ["status"]
    unknown: Any = None
    with pytest.raises(errors.InvalidTask, match="is no dict"):
        tasks.list("work", a_list)
    with pytest.raises(errors.InvalidTask, match="queues are None"):
        tasks.try_claim(unknown)


def test_a_payload_is_as_strictly_json_for_modify_as_for_push(tasks: Tasks) -> None:
    task = tasks.push("work", 1)
    change = {"id": task, "version": 1}
    hour, far = timedelta(hours=1), datetime(2100, 1, 1, tzinfo=UTC)
    for value in (hour, {"a": {1}}):
        wrong: list[Any] = [lambda value=value: tasks.push("work", value)]
        for given in ({"payload": value}, {"headers": value}):
            wrong += [
                lambda given=given: tasks.modify([{"queue": "work"} | given]),
                lambda given=given: tasks.modify(changes=[change | given]),
                lambda given=given: tasks.change("work", None, given),
                lambda given=given: tasks.list("work", given),
            ]
        for call in wrong:
            with pytest.raises(errors.InvalidPayload):
                call()
    text = far.isoformat()
    tasks.modify(
        [{"queue": "work", "at": far, "payload": far}, {"queue": "work", "delay": hour}],
        changes=[change | {"stop": True, "payload": [far]}],
    )
    found = [(one.status, one.payload) for one in tasks.list("work")]
    assert found == [("scheduled", None), ("scheduled", text), ("stopped", [text])]
