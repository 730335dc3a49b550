"""The marks at which claims begin pass no task for good, whatever is going on while they move.

A sweep passes what stands before the time of the sweep before it: `swept` makes enough of them that
everything that was there before is passed, unless there is a reason not to.
"""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from psycopg import IsolationLevel

from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.task_ops import sweep, sweep_until

QUEUE = "tasks"
LOW = "select pgq_task._time_of(low) from pgq_task.marked_lane"


@pytest.fixture
def tasks(conn: Connection) -> Connection:
    conn.execute("select pgq_task.create_queue(%s)", [QUEUE])
    return conn


def push(conn: Connection, **options: object) -> int:
    return task_ops.push(conn, QUEUE, 1, **options)


def claim(conn: Connection, lease: str = "1 hour", number: int = 100) -> list[int]:
    return sorted(task_ops.ids(task_ops.claim(conn, QUEUE, number=number, lease=lease)))


def swept(conn: Connection) -> None:
    """All marks stand behind what was there before, where they may."""
    sweep(conn, 3)


def mark_passed(conn: Connection, moment: object) -> bool:
    return bool(ops.value(conn, f"select ({LOW}) > %s", moment))


def tasks_passed(conn: Connection) -> bool:
    return bool(
        ops.value(conn, f"select bool_and(pgq_task._time_of(pos) < ({LOW})) from pgq_task.task")
    )


def now(conn: Connection) -> object:
    return ops.value(conn, "select clock_timestamp()")


@pytest.mark.parametrize(
    "way", ["read committed", "repeatable read", "serializable", "savepoint", "prepared"]
)
def test_what_was_pushed_long_before_its_commit_is_claimed(
    tasks: Connection, connect: Connect, way: str
) -> None:
    pusher = connect(autocommit=False)
    xid = pusher.xid(1, "pgq_task", "pushed")
    if way == "prepared":
        pusher.tpc_begin(xid)
    elif way == "savepoint":
        pusher.execute("savepoint s")
    else:
        pusher.execute(f"set transaction isolation level {way}".encode())
    task = push(pusher)
    if way == "prepared":
        pusher.tpc_prepare()
        pusher.close()
    pushed = now(tasks)
    swept(tasks)
    other = push(tasks)
    assert claim(tasks) == [other]
    swept(tasks)
    assert mark_passed(tasks, pushed)
    if way == "prepared":
        connect().tpc_commit(xid)
    else:
        pusher.commit()
    assert claim(tasks) == []
    sweep(tasks)
    assert claim(tasks) == [task]


def test_the_youngest_transaction_is_not_forgotten(tasks: Connection, connect: Connect) -> None:
    """A snapshot does not list transactions with a later id than the last one that has ended."""
    swept(tasks)
    pusher = connect(autocommit=False)
    task = push(pusher)
    # Unless a later one, of autovacuum or so, has ended meanwhile.
    while ops.value(tasks, "select count(*) from pg_snapshot_xip(pg_current_snapshot())"):
        pusher.rollback()
        task = push(pusher)
    swept(tasks)
    pusher.commit()
    sweep(tasks)
    assert claim(tasks) == [task]


SHARE = "select from pgq_task.task for key share"


@pytest.mark.parametrize(
    ("before", "shared"),
    [
        ("", False),
        ("select pg_current_xact_id(); savepoint s", False),
        ("", True),
        # The xmax is a multixact with two members that are one.
        (f"{SHARE}; savepoint s", False),
    ],
    ids=["transaction", "savepoint", "several", "twice"],
)
def test_a_claim_that_is_rolled_back_late_leaves_its_tasks_to_others(
    tasks: Connection, connect: Connect, before: str, shared: bool
) -> None:
    """Locked by a transaction, by one in it, or by several: an xmax may be each of them."""
    first, second = push(tasks), push(tasks)
    swept(tasks)
    sharer, claimer = connect(autocommit=False), connect(autocommit=False)
    if shared:
        sharer.execute(SHARE)
    claimer.execute(before.encode())
    assert claim(claimer, number=2) == [first, second]
    swept(tasks)
    assert tasks_passed(tasks)
    assert claim(tasks) == []
    claimer.rollback()
    sweep(tasks)
    assert claim(tasks) == [first, second]
    sharer.rollback()


def test_a_finish_that_is_rolled_back_late_is_undone(tasks: Connection, connect: Connect) -> None:
    task = push(tasks)
    swept(tasks)
    assert claim(tasks, lease="1 millisecond") == [task]
    worker = connect(autocommit=False)
    worker.execute("select pgq_task.finish('me', %s, 2)", [task])
    swept(tasks)
    assert claim(tasks) == []
    worker.rollback()
    sweep(tasks)
    assert claim(tasks) == [task]


def test_a_task_whose_worker_has_died_is_claimed_after_its_lease(tasks: Connection) -> None:
    """After a second the sweep takes it out of the way, to where its lease ends."""
    task = push(tasks)
    claimed = now(tasks)
    assert claim(tasks) == [task]
    sweep_until(tasks, lambda: mark_passed(tasks, claimed))
    assert ops.value(tasks, "select clock_timestamp() - %s", claimed) >= timedelta(seconds=1)
    assert claim(tasks) == []
    end_lease(tasks, task)
    assert sweep_until(tasks, lambda: claim(tasks)) == [task]


def test_a_task_that_was_claimed_just_now_stops_the_mark(tasks: Connection) -> None:
    """A task that will be gone soon is not moved; and not passed, as its lease may end soon."""
    task = push(tasks)
    swept(tasks)
    assert claim(tasks) == [task]
    place = ops.value(tasks, "select pos from pgq_task.task")
    [marks] = tasks.execute("select low, ahead from pgq_task.marked_lane").fetchall()

    def swept_at_once() -> bool:
        # A sweep that came too late has moved both.
        tasks.execute("update pgq_task.mark set low = %s, ahead = %s", marks)
        tasks.execute(
            "update pgq_task.task set last_attempt = clock_timestamp(), pos = %s", [place]
        )
        sweep(tasks)
        return bool(
            ops.value(
                tasks,
                "select max(sweep_time) < max(last_attempt) + interval '1 second'"
                " from pgq_task.sweep, pgq_task.task",
            )
        )

    wait_until(swept_at_once)
    assert ops.value(tasks, "select pos from pgq_task.task") == place
    assert ops.value(tasks, LOW) == ops.value(
        tasks, "select pgq_task._time_of(pos) from pgq_task.task"
    )


def test_a_sweep_may_be_rolled_back(tasks: Connection, connect: Connect) -> None:
    """The marks that it has moved, and the rows that it noted, go together."""
    waiting, first, second = push(tasks), push(tasks), push(tasks)
    swept(tasks)
    holder, sweeper = connect(autocommit=False), connect(autocommit=False)
    holder.execute("select from pgq_task.task where id in (%s, %s) for update", [waiting, first])
    while not ops.value(sweeper, "select pgq_task.sweep()"):
        sweeper.rollback()
    # Two do not run at once, and this one is not too soon.
    tasks.execute("select pg_sleep(0.2)")
    assert ops.value(tasks, "select pgq_task.sweep()") is False
    sweeper.rollback()
    holder.rollback()
    assert claim(tasks) == [waiting, first, second]
    sweeper.execute("set transaction isolation level repeatable read")
    with pytest.raises(psycopg.Error, match=r"sweep\(\) must not run in a REPEATABLE READ"):
        sweeper.execute("select pgq_task.sweep()")


def test_a_clock_that_goes_back_hides_no_task(tasks: Connection) -> None:
    """Instead of the clock, all recorded times are moved by an hour."""
    claimed = push(tasks)
    assert claim(tasks, lease="10 minutes") == [claimed]
    available, scheduled = push(tasks), push(tasks, delay="10 minutes")
    swept(tasks)
    hour = 3600 * 1_000_000 * 256
    tasks.execute(
        "update pgq_task.task set pos = pos + %s, created = created + interval '1 hour',"
        " lease = lease + interval '1 hour', last_attempt = last_attempt + interval '1 hour'",
        [hour],
    )
    tasks.execute(
        "update pgq_task.sweep set sweep_time = sweep_time + interval '1 hour',"
        " sweep_began = sweep_began + interval '1 hour',"
        " sweep_bound = sweep_bound + %s, sweep_anew = sweep_anew + interval '1 hour'",
        [hour],
    )
    tasks.execute(
        "update pgq_task.mark set low = low + %s, ahead = ahead + %s",
        [hour, hour],
    )
    assert claim(tasks) == []
    fresh = push(tasks)
    sweep(tasks)
    assert claim(tasks) == [available, fresh]
    # In ten minutes its lease is over, and it stands where that is seen.
    tasks.execute(
        "update pgq_task.task set lease = lease - interval '10 minutes', pos = pos - %s"
        " where id = %s",
        [hour // 6, claimed],
    )
    assert claim(tasks) == [claimed]
    assert ops.value(tasks, "select pos from pgq_task.task where id = %s", scheduled) > ops.value(
        tasks, "select pgq_task._position_of(clock_timestamp() + interval '1 hour')"
    )


def test_the_next_transaction_id_tells_what_32_bits_of_one_mean(conn: Connection) -> None:
    epoch = 1 << 32
    full = "select pgq_task._full_xid(%s::text::xid, %s::text::xid8)::text"
    for xid, following, expected in (
        (7, 9, 7),
        (11, 9, 11),
        (7, 3 * epoch + 9, 3 * epoch + 7),
        (11, 3 * epoch + 9, 3 * epoch + 11),
        (epoch - 5, 3 * epoch + 9, 3 * epoch - 5),
        (5, 3 * epoch - 9, 3 * epoch + 5),
        (epoch - 5, 9, 0),
    ):
        assert ops.value(conn, full, xid, following) == str(expected)


def test_ids_of_another_cluster_do_not_stop_the_sweeps(tasks: Connection) -> None:
    """A database restored into a cluster with lower transaction ids has such ids."""
    swept(tasks)
    tasks.execute("update pgq_task.sweep set sweep_open = '{999999999999}', sweep_open_pos = '{0}'")
    task = push(tasks)
    swept(tasks)
    assert claim(tasks) == [task]
    sweep(tasks)
    last = "select sweep_open from pgq_task.sweep order by sweep_id desc limit 1"
    assert 999999999999 not in map(int, ops.value(tasks, last))


def test_idle_lanes_cost_no_wal(tasks: Connection) -> None:
    """Also beside a busy one, and with tasks for later."""
    tasks.execute("select pgq_task.create_queue('idle_' || n) from generate_series(1, 20) n")
    tasks.execute("select pgq_task.push('idle_' || n, '1') from generate_series(1, 20) n")
    tasks.execute(
        "select pgq_task.finish('me', id, version) from pgq_task.claim("
        " array(select 'idle_' || n from generate_series(1, 20) n), 'me', max_tasks => 100)"
    )
    tasks.execute("select pgq_task.push('idle_1', '1', delay => '1 hour')")
    # In the lanes' range no row is left.
    sweep(tasks, 6)
    marks = (
        "select array_agg(mark_id order by mark_id) from pgq_task.mark where queue_id"
        f" {{}} (select queue_id from pgq_task.queue where queue_name = '{QUEUE}')"
    )
    idle, busy = (ops.value(tasks, marks.format(sign)) for sign in ("<>", "="))
    for _ in range(3):
        push(tasks)
        claim(tasks)
        swept(tasks)
    assert ops.value(tasks, marks.format("<>")) == idle
    assert ops.value(tasks, marks.format("=")) != busy


def test_rows_of_sweeps_are_deleted(tasks: Connection) -> None:
    tasks.execute(
        "insert into pgq_task.sweep (sweep_id, sweep_time, sweep_took, sweep_began, sweep_bound,"
        " sweep_open, sweep_open_pos, sweep_busy, sweep_anew)"
        " select 100 + n, clock_timestamp() - interval '1 minute', '0',"
        " clock_timestamp() - interval '1 minute', 0, '{}', '{}', 0, clock_timestamp()"
        " from generate_series(1, 150) n"
    )
    swept(tasks)
    assert ops.value(tasks, "select count(*) from pgq_task.sweep") < 110


@pytest.mark.slow
def test_thousands_of_lanes_are_swept_in_several_calls(tasks: Connection, connect: Connect) -> None:
    """All at once would take too long. Afterwards those that are empty are removed."""
    lanes = 2100
    tasks.execute("select pgq_task._add_lane(1, n::int2) from generate_series(1, %s) n", [lanes])
    swept(tasks)
    pusher = connect(autocommit=False)
    for priority in (0, 1, lanes // 2, lanes):
        push(pusher, priority=priority)
    sweep(tasks, 9)
    pusher.commit()
    unclaimed = "select count(*) from pgq_task.task where lease is null"
    sweep_until(tasks, lambda: claim(tasks) and ops.value(tasks, unclaimed) == 0)
    tasks.execute("select pgq_task._close_lanes() from generate_series(1, 3)")


def test_sweeps_go_on_while_a_queue_is_dropped(tasks: Connection, connect: Connect) -> None:
    """If it is not dropped after all, tasks that became visible meanwhile are found."""
    swept(tasks)
    pusher = connect(autocommit=False)
    task = push(pusher)
    tasks.execute("select pgq_task.create_queue('another')")
    swept(tasks)
    pusher.commit()
    dropper = connect(autocommit=False)
    dropper.execute("select pgq_task.drop_queue(%s, true)", [QUEUE])
    swept(tasks)
    dropper.rollback()
    swept(tasks)
    assert claim(tasks) == [task]
    tasks.execute("select pgq_task.drop_queue('another')")
    sweep(tasks)


def test_sweeps_go_on_without_an_error_queue(tasks: Connection, connect: Connect) -> None:
    """Tasks of queues with another error queue are not held up either."""
    tasks.execute("select pgq_task.create_queue(q) from unnest('{dead,other}'::text[]) q")
    tasks.execute("select pgq_task.set_queue_config(%s, 'error_queue', 'dead')", [QUEUE])
    for queue in (QUEUE, "other"):
        tasks.execute("select pgq_task.set_queue_config(%s, 'max_attempts', '1')", [queue])
        tasks.execute("select pgq_task.push(%s, '1')", [queue])
        claimed = "select count(*) from pgq_task.claim(array[%s], 'me', '1 ms')"
        assert ops.value(tasks, claimed, queue) == 1
    dropper = connect(autocommit=False)
    dropper.execute("select pgq_task.drop_queue('dead')")
    failed = (
        "select string_agg(queue, ' ' order by queue) from pgq_task.tasks where error is not null"
    )
    sweep_until(tasks, lambda: ops.value(tasks, failed))
    assert ops.value(tasks, failed) == "other.failed"
    dropper.commit()
    sweep_until(tasks, lambda: " " in ops.value(tasks, failed))
    assert ops.value(tasks, failed) == "dead other.failed"


def test_a_key_is_released_after_a_drop_that_failed(tasks: Connection, connect: Connect) -> None:
    first, second = (push(tasks, order_key="k") for _ in range(2))
    tasks.execute("select pgq_task._hold_back(%s)", [second])
    tasks.execute("select pgq_task.set_waiting(array[%s])", [QUEUE])
    dropper, worker = connect(autocommit=False), connect(autocommit=False)
    worker.isolation_level = IsolationLevel.REPEATABLE_READ
    worker.execute(
        "select pgq_task.remove_tasks(%s, jsonb_build_object('ids', array[%s]))", [QUEUE, first]
    )
    worker.commit()
    dropper.execute("drop sequence pgq_task.waiting_1")
    sweep(tasks, 2)
    dropper.rollback()
    sweep_until(tasks, lambda: claim(tasks) == [second])


@pytest.fixture
def lost(tasks: Connection) -> int:
    """A task claimed long ago, followed by many that wait."""
    task = push(tasks)
    task_ops.push_many(tasks, QUEUE, 500)
    claim(tasks, "1 hour", 1)
    tasks.execute("update pgq_task.task set last_attempt = now() - interval '1 minute'")
    return task


def end_lease(conn: Connection, task: int) -> None:
    """Its lease ends, where the sweeps have put it: behind the others."""
    moved = "select pos = pgq_task._position_of(lease) from pgq_task.task where id = %s"
    sweep_until(conn, lambda: ops.value(conn, moved, task))
    conn.execute(
        "update pgq_task.task set lease = now, pos = pgq_task._position_of(now)"
        "  from clock_timestamp() now where id = %s",
        [task],
    )


def test_a_task_of_a_dead_worker_comes_before_later_ones(tasks: Connection, lost: int) -> None:
    end_lease(tasks, lost)
    sweep(tasks, 2)
    # It may stand beside the first of the others, which are all there, in their order.
    claimed = [*claim(tasks, number=1), *claim(tasks, number=1), *claim(tasks, number=500)]
    assert lost in claimed[:2]
    assert [each for each in claimed if each != lost] == [*range(lost + 1, lost + 501)]


def test_it_comes_before_them_once(tasks: Connection, lost: int) -> None:
    """The task may kill its workers, and must not kill one after the other."""
    tasks.execute("update pgq_task.task set attempts = 2 where id = %s", [lost])
    end_lease(tasks, lost)
    sweep(tasks, 2)
    assert [claim(tasks, number=1), claim(tasks, number=1)] == [[lost + 1], [lost + 2]]


def test_its_attempts_are_used_up_while_others_wait(tasks: Connection, lost: int) -> None:
    tasks.execute("select pgq_task.set_queue_config(%s, 'max_attempts', '3')", [QUEUE])
    tasks.execute("update pgq_task.task set attempts = 3 where id = %s", [lost])
    end_lease(tasks, lost)
    buried = "select queue = 'tasks.failed' from pgq_task.tasks where id = %s"
    sweep_until(tasks, lambda: ops.value(tasks, buried, lost))
    assert claim(tasks, number=1) == [lost + 1]
