"""Queues of tasks: their settings, their sizes, and that they go without leaving anything."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.types.json import Jsonb

from pgqpy.errors import (
    InvalidName,
    InvalidTask,
    TaskQueueNotEmpty,
    TaskQueueNotFound,
    from_psycopg,
)
from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops as tasks
from tests.fixtures.fix_db import Connect, Connection

Q = "mails"


@pytest.fixture(autouse=True)
def task_queue(conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue(%s)", [Q])


def refused(call: Callable[[], object], expected: type[Exception] = InvalidTask) -> str:
    with pytest.raises(psycopg.Error) as caught:
        call()
    error = from_psycopg(caught.value)
    assert isinstance(error, expected), error
    assert error.hint
    return error.message


def info(conn: Connection, max_count: int | None = 10_000) -> tasks.Row:
    (row,) = tasks.rows(conn, "select * from pgq_task.get_queue_info(%s, %s)", Q, max_count)
    return row


def sizes(row: tasks.Row) -> dict[str, int]:
    names = ("total", "available", "claimed", "scheduled", "held", "stopped")
    return {name: row[name] for name in names if row[name]}


def test_sizes_are_those_of_each_status(conn: Connection) -> None:
    assert sizes(info(conn)) == {}
    assert (info(conn)["highest_attempts"], info(conn)["oldest"]) == (0, None)
    for priority in (0, 3):
        for _ in range(5):
            tasks.push(conn, Q, priority=priority)
    later = tasks.push(conn, Q, delay=timedelta(minutes=10))
    tasks.push(conn, Q, delay=timedelta(minutes=20))
    for _ in range(3):
        tasks.push(conn, Q, order_key="o")
    conn.execute("select pgq_task.stop(%s)", [tasks.push(conn, Q)])
    tasks.claim(conn, Q, number=4)
    row = info(conn)
    assert sizes(row) == {
        "total": 16,
        "available": 7,
        "claimed": 4,
        "scheduled": 2,
        "held": 2,
        "stopped": 1,
    }
    assert (row["exact"], row["highest_attempts"], row["paused"]) == (True, 1, None)
    assert row["next_time"] == ops.value(conn, "select at from pgq_task.tasks where id = %s", later)
    assert row["oldest"] == ops.value(
        conn, "select min(at) from pgq_task.tasks where status = 'available'"
    )
    assert sizes(row) == {"total": 16} | dict(
        conn.execute("select status, count(*) from pgq_task.tasks group by status").fetchall()
    )


def test_sizes_of_large_queues_are_counted_in_part_and_estimated(conn: Connection) -> None:
    conn.execute(
        "select count(*) from pgq_task.push_many(%s, array(select '1'::jsonb from generate_series(1, 5000)))",  # noqa: E501
        [Q],
    )
    conn.execute("analyze pgq_task.task")
    row = info(conn, 100)
    assert (row["exact"], row["available"]) == (False, 100)
    assert 4000 < row["total"] < 6000
    assert sizes(info(conn, None)) == {"total": 5000, "available": 5000}
    assert info(conn, None)["exact"]
    assert "limit of 0" in refused(lambda: info(conn, 0))


def test_looking_at_a_large_queue_reads_little(conn: Connection) -> None:
    conn.execute(
        "select count(*) from pgq_task.push_many(%s, array(select '1'::jsonb from generate_series(1, 30000)))",  # noqa: E501
        [Q],
    )
    conn.execute("analyze pgq_task.task")
    total = ops.value(conn, "select pg_relation_size('pgq_task.task') / 8192")
    for look in (
        "select * from pgq_task.get_queue_info(null, 100)",
        "select * from pgq_task.list_tasks('mails', max_tasks => 100)",
        "select * from pgq_task.list_tasks('mails', '{\"status\": \"available\"}', 100)",
        "select * from pgq_task.list_tasks('mails', '{\"status\": \"stopped\"}', 100)",
        "select pgq_task.queue_is_empty('{mails}')",
        "select pgq_task.next_time('{mails}')",
    ):
        conn.execute(look)
        (plan,) = conn.execute(f"explain (analyze, buffers, format json) {look}").fetchall()[0]
        read = plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]
        assert read < total / 2, look


def test_looking_at_a_queue_reads_nothing_that_is_dead(conn: Connection, connect: Connect) -> None:
    """However old a session's snapshot is: rows before the lane's mark are not looked at."""
    holder = connect(autocommit=False)
    holder.isolation_level = IsolationLevel.REPEATABLE_READ
    holder.execute("select 1")
    conn.execute(
        "select count(*) from pgq_task.push_many(%s, array(select '1'::jsonb from generate_series(1, 20000)))",  # noqa: E501
        [Q],
    )
    last = ops.value(conn, "select max(pos) from pgq_task.task")
    conn.execute("delete from pgq_task.task")
    while ops.value(conn, "select pg_sequence_last_value(lane_low) from pgq_task.lane") <= last:
        conn.execute("select pgq_task.sweep()")
        time.sleep(0.11)
    tasks.push(conn, Q)
    for look in (
        "select * from pgq_task.get_queue_info('mails')",
        "select * from pgq_task.list_tasks('mails')",
        "select pgq_task.queue_is_empty('{mails}')",
        "select pgq_task.next_time('{mails}')",
    ):
        conn.execute(look)
        (plan,) = conn.execute(f"explain (analyze, buffers, format json) {look}").fetchall()[0]
        read = plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]
        assert read < 150, look


def test_queues_are_empty_when_there_is_no_task_of_any_kind(conn: Connection) -> None:
    def empty() -> bool:
        answer: bool = ops.value(conn, "select pgq_task.queue_is_empty(%s)", [Q, "other"])
        return answer

    conn.execute("select pgq_task.create_queue('other')")
    assert empty()
    for options in ({}, {"delay": timedelta(hours=1)}, {"priority": 9}):
        task = tasks.push(conn, Q, **options)
        assert not empty()
        conn.execute("delete from pgq_task.task where id = %s", [task])
    tasks.push(conn, Q)
    ((task, version),) = tasks.claim(conn, Q)
    assert not empty()
    conn.execute("select pgq_task.finish('w', %s, %s)", [task, version])
    assert empty()
    assert "nowhere" in refused(
        lambda: conn.execute("select pgq_task.queue_is_empty('{nowhere}')"), TaskQueueNotFound
    )


def test_a_queue_is_not_empty_while_its_last_task_is_being_finished(
    conn: Connection, connect: Connect
) -> None:
    """Even if sweeps have passed the task because it is locked."""
    tasks.push(conn, Q)
    ((task, version),) = tasks.claim(conn, Q)
    worker = connect(autocommit=False)
    worker.execute("select pgq_task.finish('w', %s, %s)", [task, version])
    passed = "select pos < pg_sequence_last_value(lane_low) from pgq_task.task, pgq_task.lane"
    while not ops.value(conn, passed):
        conn.execute("select pgq_task.sweep()")
        time.sleep(0.11)
    assert not ops.value(conn, "select pgq_task.queue_is_empty(%s)", [Q])
    worker.commit()
    assert ops.value(conn, "select pgq_task.queue_is_empty(%s)", [Q])


def test_the_next_time_is_that_of_what_can_be_claimed_first(conn: Connection) -> None:
    def next_time() -> object:
        return ops.value(conn, "select pgq_task.next_time(%s)", [Q])

    assert next_time() is None
    later = tasks.push(conn, Q, delay=timedelta(hours=1))
    assert next_time() == ops.value(conn, "select at from pgq_task.tasks where id = %s", later)
    now = tasks.push(conn, Q, priority=-5)
    assert next_time() == ops.value(conn, "select at from pgq_task.tasks where id = %s", now)
    tasks.claim(conn, Q)
    assert next_time() == ops.value(conn, "select at from pgq_task.tasks where id = %s", later)
    assert ops.value(conn, "select pgq_task.server_time() - clock_timestamp() < '1 minute'")


@pytest.mark.parametrize(
    ("param", "value", "column", "stored"),
    [
        ("lease", "90 seconds", "lease", timedelta(seconds=90)),
        ("max_attempts", "3", "max_attempts", 3),
        ("max_attempts", None, "max_attempts", None),
        ("error_queue", "broken", "error_queue", "broken"),
        ("error_queue", None, "error_queue", "mails.failed"),
        ("keep", "7 days", "keep", timedelta(days=7)),
        ("keep", "0", "keep", timedelta(0)),
    ],
)
def test_settings_can_be_changed(
    conn: Connection, param: str, value: str | None, column: str, stored: object
) -> None:
    assert ops.value(conn, "select pgq_task.set_queue_config(%s, %s, %s)", Q, param, value) == 1
    assert info(conn)[column] == stored


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("param", "value", "message"),
    [
        ("lease", "0", "a lease of 00:00:00"),
        ("lease", "-1 s", "a lease of"),
        ("lease", "for ever", "lease cannot be 'for ever'"),
        ("lease", None, "lease cannot be NULL"),
        ("lease", "11 years", "a lease of"),
        ("max_attempts", "0", "a limit of 0 attempts"),
        ("max_attempts", "many", "max_attempts cannot be 'many'"),
        ("keep", "-1 day", "cannot be kept for"),
        ("keep", None, "keep cannot be NULL"),
        ("error_queue", Q, "would come back to it"),
        ("name", "x", "no task queue parameter 'name'"),
        (None, "x", "no task queue parameter NULL"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    conn: Connection, param: str, value: str | None, message: str
) -> None:
    before = info(conn)
    assert message in refused(
        lambda: conn.execute("select pgq_task.set_queue_config(%s, %s, %s)", [Q, param, value])
    )
    assert info(conn) == before
    assert "nowhere" in refused(
        lambda: conn.execute("select pgq_task.set_queue_config('nowhere', 'lease', '1 s')"),
        TaskQueueNotFound,
    )


def test_error_queues_do_not_go_round(conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue('a'), pgq_task.create_queue('mails.failed')")
    conn.execute("select pgq_task.set_queue_config('a', 'error_queue', %s)", [Q])
    assert "would come back" in refused(
        lambda: conn.execute("select pgq_task.set_queue_config('mails.failed', 'error_queue', 'a')")
    )
    assert "empty" in refused(
        lambda: conn.execute("select pgq_task.set_queue_config('a', 'error_queue', '')"),
        InvalidName,
    )
    # by a queue that is not there yet
    conn.execute("select pgq_task.create_queue('b.failed')")
    assert "would come back" in refused(
        lambda: conn.execute("select pgq_task.set_queue_config('b.failed', 'error_queue', 'b')")
    )


def test_names_leave_room_for_the_error_queue(conn: Connection) -> None:
    longest = "ä" * 124
    conn.execute("select pgq_task.create_queue(%s)", [longest])
    task = tasks.push(conn, longest)
    ((_, version),) = tasks.claim(conn, longest)
    conn.execute("select pgq_task.fail('w', %s, %s, 'bad', final => true)", [task, version])
    failed = tasks.task(conn, task)
    assert failed is not None
    assert failed["queue"] == longest + ".failed"
    # Its own error queue could have no name, and sweeps would find no place for the task.
    assert "too long" in refused(
        lambda: conn.execute(
            "select pgq_task.set_queue_config(%s, 'max_attempts', '1')", [longest + ".failed"]
        ),
        InvalidName,
    )
    assert "250 bytes" in refused(
        lambda: conn.execute("select pgq_task.create_queue(%s)", ["ä" * 125])
    )


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unique_key": ""}, "a unique_key of 0 bytes"),
        ({"unique_key": "x" * 1001}, "a unique_key of 1001 bytes"),
        ({"order_key": "ä" * 501}, "an order_key of 1002 bytes"),
        ({"headers": [1]}, "no JSON object"),
        ({"headers": "x", "unique_key": "x"}, "no JSON object"),
        ({"delay": timedelta(days=300_000)}, "too long"),
    ],
)
def test_attributes_that_cannot_be_kept_are_refused(
    conn: Connection, options: dict[str, object], message: str
) -> None:
    assert message in refused(lambda: tasks.push(conn, Q, **options))
    if "unique_key" not in options and "delay" not in options:
        many = "order_keys => array[null, %s]" if "order_key" in options else "headers => %s"
        given = options.get("order_key", Jsonb(options.get("headers")))
        call = f"select pgq_task.push_many(%s, array['1', '2']::jsonb[], {many})".encode()
        assert message in refused(lambda: conn.execute(call, [Q, given]))
    assert tasks.statuses(conn) == {}


def test_pushes_with_the_same_priority_do_not_wait_for_each_other(
    conn: Connection, connect: Connect
) -> None:
    tasks.push(conn, Q, priority=5)
    first, second = connect(autocommit=False), connect()
    tasks.push(first, Q, priority=5)
    second.execute("set lock_timeout = '10 s'")
    tasks.push(second, Q, priority=5)


def test_a_lane_that_is_made_twice_at_once_is_made_once(conn: Connection, connect: Connect) -> None:
    first, second = connect(autocommit=False), connect(autocommit=False)
    second.isolation_level = IsolationLevel.REPEATABLE_READ
    second.execute("select from pgq_task.lane")
    tasks.push(first, Q, priority=-5)
    first.commit()
    tasks.push(second, Q, priority=-5)
    tasks.push(second, Q, priority=-6)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(tasks.push, first, Q, priority=-6)
        tasks.wait_until_blocked(conn, first)
        second.commit()
        call.result()
    first.commit()
    assert len(tasks.claim(conn, Q, number=9)) == 4


def test_a_lane_that_was_made_since_the_snapshot_is_not_made_again(
    conn: Connection, connect: Connect
) -> None:
    """For a session that waited for the one that makes it."""
    first, second = connect(autocommit=False), connect(autocommit=False)
    second.isolation_level = IsolationLevel.REPEATABLE_READ
    second.execute("select from pgq_task.lane")
    tasks.push(first, Q, priority=-5)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(tasks.push, second, Q, priority=-5)
        tasks.wait_until_blocked(conn, second)
        first.commit()
        call.result()
    second.commit()
    assert len(tasks.claim(conn, Q, number=9)) == 2


def test_a_queue_with_tasks_is_dropped_only_if_forced(conn: Connection) -> None:
    tasks.push(conn, Q, priority=2)
    for force in (False, None):
        assert "a task" in refused(
            lambda force=force: conn.execute("select pgq_task.drop_queue(%s, %s)", [Q, force]),  # type: ignore[misc]
            TaskQueueNotEmpty,
        )
    conn.execute("select pgq_task.index_payload(%s)", [Q])
    conn.execute("select pgq_task.set_queue_config(%s, 'keep', '1 day')", [Q])
    (queue_id,) = conn.execute("select queue_id from pgq_task.queue").fetchall()[0]
    conn.execute("select pgq_task.drop_queue(%s, true)", [Q])
    assert tasks.statuses(conn) == {}
    left = (
        "select relname from pg_class"
        " where relnamespace = 'pgq_task'::regnamespace and relname ~ %s"
    )
    assert conn.execute(left, [f"_{queue_id}(_|$)"]).fetchall() == []
    assert "does not exist" in refused(
        lambda: conn.execute("select pgq_task.drop_queue(%s)", [Q]), TaskQueueNotFound
    )


@pytest.mark.parametrize("move", [False, True])
def test_a_session_that_has_used_a_queue_to_be_dropped_goes_on(
    conn: Connection, connect: Connect, move: bool
) -> None:
    """Even with a priority that is new in the queue."""
    conn.execute("select pgq_task.create_queue('another')")
    task = tasks.push(conn, "another", priority=8)
    user, dropper = connect(autocommit=False), connect()
    tasks.push(user, Q)
    with ThreadPoolExecutor(1) as pool:
        drop = pool.submit(dropper.execute, "select pgq_task.drop_queue('mails', true)")
        tasks.wait_until_blocked(conn, dropper)
        if move:
            tasks.modify(user, changes=[{"id": task, "version": 1, "queue": Q}])
        else:
            tasks.push(user, Q, priority=7)
        user.commit()
        drop.result()
    assert ops.value(conn, "select count(*) from pgq_task.task") == (0 if move else 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda conn: tasks.push(conn, Q),
        lambda conn: tasks.push(conn, Q, priority=7),
        lambda conn: tasks.push(conn, Q, unique_key="k"),
        lambda conn: tasks.modify(conn, inserts=[{"queue": Q}]),
        lambda conn: tasks.modify(conn, changes=[{"id": 1, "version": 1, "queue": Q}]),
        lambda conn: conn.execute("select pgq_task.push_many(%s, array['1'::jsonb])", [Q]),
        lambda conn: conn.execute("select pgq_task.claim(array[%s], 'w')", [Q]),
        lambda conn: conn.execute(
            "select pgq_task.finish_and_claim('w', id, version, %s)"
            "  from pgq_task.claim('{another}', 'w')",
            [Q],
        ),
    ],
    ids=[
        "push",
        "priority",
        "push_once",
        "insert",
        "move",
        "push_many",
        "claim",
        "finish_and_claim",
    ],
)
def test_waiting_for_a_queue_to_be_dropped_fails_when_it_is_gone(
    conn: Connection, connect: Connect, call: Callable[[Connection], object]
) -> None:
    conn.execute("select pgq_task.create_queue('another')")
    tasks.push(conn, "another")
    dropper, user = connect(autocommit=False), connect()
    dropper.execute("select pgq_task.drop_queue('mails')")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(call, user)
        tasks.wait_until_blocked(conn, user)
        dropper.commit()
        assert refused(waiting.result, TaskQueueNotFound)
    assert ops.value(conn, "select count(*) from pgq_task.task") == 1


@pytest.mark.parametrize(
    "push",
    [
        lambda conn: tasks.push(conn, Q),
        lambda conn: tasks.push(conn, Q, unique_key="k"),
        lambda conn: tasks.modify(conn, inserts=[{"queue": Q}]),
        lambda conn: conn.execute("select pgq_task.push_many(%s, array['1'::jsonb])", [Q]),
    ],
    ids=["push", "push_once", "modify", "push_many"],
)
def test_no_task_is_left_of_a_queue_that_was_dropped_meanwhile(
    conn: Connection, connect: Connect, push: Callable[[Connection], object]
) -> None:
    """A drop waits for sessions that have pushed; a push behind it fails."""
    early, late, dropper = connect(autocommit=False), connect(autocommit=False), connect()
    late.isolation_level = IsolationLevel.REPEATABLE_READ
    late.execute("select from pgq_task.queue")
    push(early)
    with ThreadPoolExecutor(1) as pool:
        drop = pool.submit(dropper.execute, "select pgq_task.drop_queue('mails', true)")
        tasks.wait_until_blocked(conn, dropper)
        early.commit()
        drop.result()
    assert ops.value(conn, "select count(*) from pgq_task.task") == 0
    assert Q in refused(lambda: push(late), TaskQueueNotFound)
    late.rollback()
    assert ops.value(conn, "select count(*) from pgq_task.task") == 0
