"""Calls that wait for each other's tasks, queues and sequences do it in one order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pgqpy.errors import TaskQueueNotFound
from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops as tasks
from tests.fixtures.fix_db import Calls, Connect, Connection
from tests.fixtures.task_ops import refused

Q = "mails"
OTHER = "another"
DROP = "select pgq_task.drop_queue('mails', true)"


@pytest.fixture(autouse=True)
def queues(conn: Connection) -> None:
    for queue in (Q, OTHER):
        ops.value(conn, "select pgq_task.create_queue(%s)", queue)


def run(statement: str, *parameters: object) -> Callable[[Connection], Any]:
    return lambda conn: conn.execute(statement.encode(), parameters).fetchall()


def push_in_order(conn: Connection, number: int, **options: object) -> list[int]:
    return [tasks.push(conn, Q, **options) for _ in range(number)]


def lock(conn: Connection, task: int) -> None:
    """Lock it, like a session that is about to change it."""
    conn.execute("select from pgq_task.task where id = %s for update", [task])


def test_tasks_are_finished_in_the_order_in_which_others_lock_them(
    conn: Connection, connect: Connect, calls: Calls
) -> None:
    first, second, third = push_in_order(conn, 3)
    versions = dict(tasks.claim(conn, Q, number=3))
    holder, changer, worker = connect(autocommit=False), connect(), connect()
    lock(holder, second)
    changes = [{"id": task} for task in (first, second, third)]
    changing = calls.begin(lambda c: tasks.modify(c, changes=changes, force=True), changer)
    ids = [third, first]
    finishing = calls.begin(
        run("select pgq_task.finish_many('w', %s, %s)", ids, [versions[task] for task in ids]),
        worker,
    )
    holder.rollback()
    assert len(changing.result()) == 3
    assert {row[0] for row in finishing.result()} == {first, third}


def test_tasks_that_waited_for_limits_are_changed_in_the_order_in_which_others_lock_them(
    conn: Connection, connect: Connect, calls: Calls
) -> None:
    limit = "select pgq_task.set_limits('mails', max_running_per_key => 1)"
    conn.execute(limit)
    first, second, third, fourth = push_in_order(conn, 4, headers={"limit_key": "x"})
    tasks.modify(conn, changes=[{"id": first, "version": 1, "delay": "0"}])
    assert [task for task, _ in tasks.claim(conn, Q, number=4)] == [second]
    holder, changer, admin = connect(autocommit=False), connect(), connect()
    # Parked are third, fourth, first.
    lock(holder, fourth)
    limiting = calls.begin(run(limit), admin)
    deletes = [{"id": first}, {"id": third}]
    changing = calls.begin(lambda c: tasks.modify(c, changes=deletes, force=True), changer)
    holder.rollback()
    limiting.result()
    assert len(changing.result()) == 2


PUSH, WAITING = "push('mails', '1')", "set_waiting('{mails}')"
PUSH_PERIODIC = "push_periodic('p', last_due, n, array[n])"


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("holds", "call"),
    [
        (PUSH, "set_limits('mails', 5)"),
        (PUSH, "restrict_queue('mails', false)"),
        (WAITING, "push_many('mails', array['1'::jsonb], priority => 5)"),
        (WAITING, "push('mails', '1', unique_key => 'k', priority => 5)"),
        (WAITING, f"{PUSH_PERIODIC} from pgq_task.periodic, clock_timestamp() n"),
    ],
)
def test_a_call_that_waits_for_a_drop_fails_or_does_nothing(
    conn: Connection, connect: Connect, calls: Calls, holds: str, call: str
) -> None:
    """The drop waits itself, for a session that has used the queue."""
    if "periodic" in call:
        conn.execute("select pgq_task.set_periodic('p', 'mails', '* * * * *', 'UTC', '1')")
    conn.execute("select pgq_task.restrict_queue('mails', %s)", ["restrict" in call])
    holder, dropper, other = connect(autocommit=False), connect(), connect()
    holder.execute(f"select pgq_task.{holds}".encode())
    dropping = calls.begin(run(DROP), dropper)
    calling = calls.begin(run(f"select pgq_task.{call}"), other)
    holder.commit()
    dropping.result()
    if "periodic" in call:
        assert calling.result() == [(False,)]
    else:
        refused(calling.result, TaskQueueNotFound)
    assert tasks.statuses(conn) == {}


MODIFY = "modify('w', {} => jsonb_build_array(jsonb_build_object({} 'queue', 'mails')))"


@pytest.mark.one_database
@pytest.mark.parametrize(
    "call",
    [
        "push('mails', '1')",
        "push('mails', '1', priority => 7)",
        "push('mails', '1', unique_key => 'k')",
        "push_many('mails', array['1'::jsonb])",
        MODIFY.format("inserts", ""),
        MODIFY.format("changes", "'id', (select id from pgq_task.task), 'version', 1,"),
        "claim('{mails}', 'w')",
        "finish_and_claim('w', id, version, 'mails') from pgq_task.claim('{another}', 'w')",
        "set_periodic('p', 'mails', '* * * * *', 'UTC', '1')",
        "grant_queue('mails', '{read}', 'pgq_reader')",
        "restrict_queue('mails', false)",
        "set_limits('mails', 5)",
        "list_tasks('mails')",
    ],
)
def test_a_call_behind_a_drop_fails_or_finds_nothing(
    conn: Connection, connect: Connect, calls: Calls, call: str
) -> None:
    conn.execute("delete from pgq_task.task")
    tasks.push(conn, OTHER)
    dropper, other = connect(autocommit=False), connect()
    dropper.execute(DROP)
    calling = calls.begin(run(f"select pgq_task.{call}"), other)
    dropper.commit()
    if "list_tasks" in call or call.startswith("claim"):
        assert calling.result() == []
    elif call.startswith("finish_and_claim"):
        assert calling.result() == [("(,,,,,,,,,,,)",)]
    else:
        refused(calling.result, TaskQueueNotFound)
    sizes = "select total from pgq_task.get_queue_info() where queue_name = 'another'"
    assert ops.value(conn, sizes) == (0 if call.startswith("finish") else 1)


def test_counting_goes_on_during_a_drop(conn: Connection, connect: Connect, calls: Calls) -> None:
    tasks.push(conn, OTHER)
    dropper, other = connect(autocommit=False), connect()
    dropper.execute(DROP)
    sizes = "select total from pgq_task.get_queue_info() where queue_name = 'another'"
    counting = calls.begin(run(sizes), other)
    dropper.commit()
    assert counting.result() == [(1,)]


def test_a_worker_that_finishes_one_of_a_queue_that_is_being_dropped_has_lost_it(
    conn: Connection, connect: Connect, calls: Calls
) -> None:
    push_in_order(conn, 2)
    (task, version), (later, _) = tasks.claim(conn, Q, number=2)
    holder, dropper, worker = connect(autocommit=False), connect(), connect()
    lock(holder, later)
    dropping = calls.begin(run(DROP), dropper)
    finish = run("select pgq_task.finish_and_claim('w', %s, %s, 'mails')", task, version)
    finishing = calls.begin(finish, worker)
    holder.rollback()
    dropping.result()
    with ops.refused("PQ071"):
        finishing.result()


def bury(conn: Connection, claimed: list[tuple[int, int]]) -> object:
    ids, versions = [task for task, _ in claimed], [version for _, version in claimed]
    return conn.execute(
        "select pgq_task.fail_many('w', %s, %s, %s, null, %s)",
        [ids, versions, ["bad"] * len(ids), [True] * len(ids)],
    ).fetchall()


@pytest.mark.parametrize("restricted", [False, True])
def test_error_queues_are_made_in_one_order(
    conn: Connection, connect: Connect, calls: Calls, restricted: bool
) -> None:
    """Two workers of the same queues finish tasks that failed in a different one."""
    ops.value(conn, "select pgq_task.create_queue('third')")
    if restricted:
        for queue in (Q, OTHER, "third"):
            conn.execute("select pgq_task.restrict_queue(%s)", [queue])
    mine = [tasks.push(conn, queue) for queue in (Q, "third", OTHER)]
    theirs = [tasks.push(conn, queue) for queue in (OTHER, Q)]
    versions = dict(tasks.claim(conn, Q, OTHER, "third", number=5))
    holder, first, second = connect(autocommit=False), connect(), connect()
    holder.execute("select pgq_task.create_queue('third.failed')")
    one = calls.begin(lambda c: bury(c, [(task, versions[task]) for task in mine]), first)
    other = calls.begin(lambda c: bury(c, [(task, versions[task]) for task in theirs]), second)
    holder.rollback()
    one.result()
    other.result()
    sizes = "select queue_name, total, restricted from pgq_task.get_queue_info() where total > 0"
    assert {tuple(row) for row in conn.execute(sizes.encode())} == {
        ("mails.failed", 2, restricted),
        ("another.failed", 2, restricted),
        ("third.failed", 1, restricted),
    }


def test_a_queue_that_has_no_limits_any_more_is_left_alone(conn: Connection) -> None:
    """A claim that has met the session that took the tasks away."""
    full = "select pgq_task._is_full(queue_id) from pgq_task.queue where queue_name = 'mails'"
    assert ops.value(conn, full) is True


def test_claims_of_queues_with_limits_that_meet_find_nothing_whatever_deadlock_timeout_is(
    conn: Connection, connect: Connect, calls: Calls
) -> None:
    for queue in (Q, OTHER):
        conn.execute("select pgq_task.set_limits(%s, 5)", [queue])
        conn.execute("select pgq_task.push_many(%s, array['1', '2']::jsonb[])", [queue])
    first, second = connect(autocommit=False), connect(autocommit=False)
    for caller, queue in ((first, Q), (second, OTHER)):
        caller.execute("set deadlock_timeout = '10 ms'")
        assert len(tasks.claim(caller, queue)) == 1
    one = calls.begin(lambda c: tasks.claim(c, OTHER), first)
    assert tasks.claim(second, Q) == []
    assert one.result() == []


def test_releases_go_with_their_queue(conn: Connection, connect: Connect, calls: Calls) -> None:
    conn.execute(
        "insert into pgq_task.to_release (queue_id, order_key, id)"
        " select queue_id, 'k', 1 from pgq_task.queue where queue_name = 'mails'"
    )
    dropper, sweeper = connect(autocommit=False), connect()
    dropper.execute(DROP)
    releasing = calls.begin(run("select pgq_task._release_late()"), sweeper)
    dropper.commit()
    releasing.result()
    assert ops.value(conn, "select count(*) from pgq_task.to_release") == 0


def test_error_queues_that_are_there_take_no_numbers(conn: Connection) -> None:
    last = "select last_value from pgq_task.queue_queue_id_seq"
    numbers = []
    for _ in range(3):
        push_in_order(conn, 1)
        bury(conn, tasks.claim(conn, Q))
        numbers.append(ops.value(conn, last))
    assert numbers == [numbers[0]] * 3
