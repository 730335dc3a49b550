"""Queues of tasks: their settings, their sizes, and that they go without leaving anything."""

from __future__ import annotations

from datetime import timedelta
from typing import LiteralString

import pytest
from psycopg import IsolationLevel
from psycopg.types.json import Jsonb

from pgqpy.errors import InvalidName, TaskQueueNotEmpty, TaskQueueNotFound
from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops as tasks
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_db import Connect, Connection, with_snapshot
from tests.fixtures.task_ops import refused, sweep_until

Q = "mails"


@pytest.fixture(autouse=True)
def task_queue(conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue(%s)", [Q])


def info(conn: Connection, max_count: int | None = 10_000) -> tasks.Row:
    (row,) = tasks.rows(conn, "select * from pgq_task.get_queue_info(%s, %s)", Q, max_count)
    return row


def sizes(row: tasks.Row) -> dict[str, int]:
    names = ("total", "available", "claimed", "scheduled", "held", "stopped")
    return {name: row[name] for name in names if row[name]}


def leave_dead(conn: Connection, number: int) -> None:
    """Delete all tasks after a claim: without one the lane is idle, and not swept for a while."""
    tasks.claim(conn, Q, number=number)
    conn.execute("delete from pgq_task.task")


def read(conn: Connection, look: LiteralString) -> int:
    """The number of pages that a query reads when it is planned."""
    conn.execute(look)
    return tasks.pages_read(conn, look)


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
    tasks.push_many(conn, Q, 5000)
    conn.execute("analyze pgq_task.task")
    row = info(conn, 100)
    assert (row["exact"], row["available"]) == (False, 100)
    assert 4000 < row["total"] < 6000
    assert sizes(info(conn, None)) == {"total": 5000, "available": 5000}
    assert info(conn, None)["exact"]


def test_looking_at_a_large_queue_reads_little(conn: Connection) -> None:
    tasks.push_many(conn, Q, 20_000)
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
        assert read(conn, look) < total / 2, look


def test_looking_at_a_queue_reads_nothing_that_is_dead(conn: Connection, connect: Connect) -> None:
    """However old a session's snapshot is: rows before the lane's mark are not looked at."""
    with_snapshot(connect)
    tasks.push_many(conn, Q, 10_000)
    last = ops.value(conn, "select max(pos) from pgq_task.task")
    leave_dead(conn, 10_000)
    passed = "select low > %s from pgq_task.marked_lane"
    sweep_until(conn, lambda: ops.value(conn, passed, last))
    tasks.push(conn, Q)
    for look in (
        "select * from pgq_task.get_queue_info('mails')",
        "select * from pgq_task.list_tasks('mails')",
        "select pgq_task.queue_is_empty('{mails}')",
        "select pgq_task.next_time('{mails}')",
    ):
        assert read(conn, look) < 150, look


def test_a_queue_is_empty_without_tasks_of_any_kind(conn: Connection, connect: Connect) -> None:
    def empty() -> bool:
        return bool(ops.value(conn, "select pgq_task.queue_is_empty(%s)", [Q, "other"]))

    conn.execute("select pgq_task.create_queue('other')")
    assert empty()
    for options in ({}, {"delay": timedelta(hours=1)}, {"priority": 9}):
        task = tasks.push(conn, Q, **options)
        assert not empty()
        conn.execute("delete from pgq_task.task where id = %s", [task])
    tasks.push(conn, Q)
    claimed = tasks.claim(conn, Q)
    assert not empty()
    # Not while its last task is being finished: sweeps have passed it because it is locked.
    worker = connect(autocommit=False)
    tasks.finish(worker, *claimed)
    passed = "select bool_and(pos < low) from pgq_task.task join pgq_task.marked_lane"
    passed += " using (queue_id, priority)"
    sweep_until(conn, lambda: ops.value(conn, passed))
    assert not empty()
    worker.commit()
    assert empty()


def test_the_next_time_is_that_of_what_can_be_claimed_first(conn: Connection) -> None:
    def next_is(task: int) -> bool:
        query = "select at = pgq_task.next_time('{mails}') from pgq_task.tasks where id = %s"
        return bool(ops.value(conn, query, task))

    assert ops.value(conn, "select pgq_task.next_time('{mails}')") is None
    later = tasks.push(conn, Q, delay=timedelta(hours=1))
    assert next_is(later)
    assert next_is(tasks.push(conn, Q, priority=-5))
    tasks.claim(conn, Q)
    assert next_is(later)
    assert ops.value(conn, "select pgq_task.server_time() - clock_timestamp() < '1 minute'")


def test_settings_can_be_changed(conn: Connection) -> None:
    change = "select pgq_task.set_queue_config(%s, %s, %s)"
    for param, value, stored in (
        ("lease", "90 seconds", timedelta(seconds=90)),
        ("time_limit", "1 hour", timedelta(hours=1)),
        ("time_limit", None, None),
        ("max_attempts", "3", 3),
        ("max_attempts", None, None),
        ("error_queue", "broken", "broken"),
        ("error_queue", None, "mails.failed"),
        ("keep", "7 days", timedelta(days=7)),
        ("keep", "0", timedelta(0)),
    ):
        assert ops.value(conn, change, Q, param, value) == 1
        assert info(conn)[param] == stored


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
    tasks.push(conn, longest)
    tasks.fail(conn, tasks.claim(conn, longest)[0], final=True)
    assert ops.value(conn, "select queue from pgq_task.tasks") == longest + ".failed"
    # Its own error queue could have no name, and sweeps would find no place for the task.
    assert "too long" in refused(
        lambda: conn.execute(
            "select pgq_task.set_queue_config(%s, 'max_attempts', '1')", [longest + ".failed"]
        ),
        InvalidName,
    )


def test_attributes_that_cannot_be_kept_are_refused(conn: Connection) -> None:
    many = "select pgq_task.push_many(%s, array['1', '2']::jsonb[], {})"
    for options, message in (
        ({"unique_key": ""}, "a unique_key of 0 bytes"),
        ({"unique_key": "x" * 1001}, "a unique_key of 1001 bytes"),
        ({"order_key": "ä" * 501}, "an order_key of 1002 bytes"),
        ({"headers": [1]}, "no JSON object"),
        ({"headers": "x", "unique_key": "x"}, "no JSON object"),
        ({"delay": timedelta(days=300_000)}, "too long"),
    ):
        assert message in refused(lambda options=options: tasks.push(conn, Q, **options))  # type: ignore[misc]
    for name, value, message in (
        ("order_keys => array[null, %s]", "ä" * 501, "an order_key of 1002 bytes"),
        ("headers => %s", Jsonb([1]), "no JSON object"),
    ):
        call = many.format(name).encode()
        assert message in refused(lambda call=call, value=value: conn.execute(call, [Q, value]))  # type: ignore[misc]
    assert tasks.statuses(conn) == {}


def test_pushes_of_a_priority_do_not_wait(conn: Connection, connect: Connect) -> None:
    tasks.push(conn, Q, priority=5)
    first, second = connect(autocommit=False), connect()
    tasks.push(first, Q, priority=5)
    second.execute("set lock_timeout = '10 s'")
    tasks.push(second, Q, priority=5)


LANES = "select array_agg(priority order by priority) from pgq_task.lane"
CLOSE = "select pgq_task._close_lanes()"


def test_a_lane_that_is_made_twice_is_one(conn: Connection, connect: Connect) -> None:
    """No session waits for one that makes the same lane, whether its snapshot is old or not."""
    first, second = connect(autocommit=False), with_snapshot(connect)
    for pusher in (first, second, first, second, conn):
        pusher.execute("set lock_timeout = '10 s'")
        tasks.push(pusher, Q, priority=-5)
    first.commit()
    second.commit()
    assert ops.value(conn, LANES) == [-5, -5, -5, 0]
    assert ops.value(conn, "select total from pgq_task.get_queue_info()") == 5
    assert len(conn.execute("select id from pgq_task.list_tasks()").fetchall()) == 5
    conn.execute(CLOSE)
    assert ops.value(conn, LANES) == [-5, 0]
    assert len(tasks.claim(conn, Q, number=9)) == 5


def test_lanes_that_are_empty_are_removed(conn: Connection) -> None:
    tasks.push(conn, Q, priority=5)
    for priority in range(10, 3010):
        conn.execute("select pgq_task._add_lane(1, %s::int2)", [priority])
    for _ in range(3):
        conn.execute(CLOSE)
    assert ops.value(conn, LANES) == [0, 5]
    assert ops.value(conn, "select count(distinct priority) from pgq_task.mark") == 2
    wait_until(lambda: read(conn, "select * from pgq_task.claim('{mails}', 'w')") < 50)
    tasks.push(conn, Q, priority=10)
    assert len(tasks.claim(conn, Q, number=9)) == 1


@pytest.mark.parametrize("looks", [0, 1, 2])
@pytest.mark.parametrize("level", list(IsolationLevel)[1:4:2])
def test_a_lane_is_not_removed_while_a_task_is_pushed_into_it(
    conn: Connection, connect: Connect, looks: int, level: IsolationLevel
) -> None:
    """Neither before nor after it was closed, whichever snapshot the pusher has."""
    tasks.push(conn, Q, priority=5)
    conn.execute("delete from pgq_task.task")
    pusher = with_snapshot(connect, level)
    for _ in range(looks):
        conn.execute(CLOSE)
    task = tasks.push(pusher, Q, priority=5)
    for _ in range(5):
        conn.execute(CLOSE)
    pusher.commit()
    assert [found for found, _ in tasks.claim(conn, Q)] == [task]
    for _ in range(2):
        conn.execute(CLOSE)
    assert ops.value(conn, LANES + " where closed is null") == [0, 5]


def test_a_lane_is_not_removed_while_its_mark_is_behind_a_late_task(
    conn: Connection, connect: Connect
) -> None:
    for _ in range(32):
        tasks.push(conn, Q, priority=5)
    leave_dead(conn, 32)
    pusher = connect(autocommit=False)
    task = tasks.push(pusher, Q, priority=5)
    late = ops.value(pusher, "select pos from pgq_task.task")
    passed = "select min(low) > %s from pgq_task.marked_lane where priority = 5"
    sweep_until(conn, lambda: ops.value(conn, passed, late))
    for _ in range(2):
        conn.execute(CLOSE)
    pusher.commit()
    conn.execute(CLOSE)
    assert ops.value(conn, LANES) == [0, 5]
    sweep_until(conn, lambda: [found for found, _ in tasks.claim(conn, Q)] == [task])


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
