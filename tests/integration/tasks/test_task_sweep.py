"""The marks at which claims begin pass no task for good, whatever is going on while they move.

A sweep passes what stands before the time of the sweep before it: `swept` makes enough of them that
everything that was there before is passed, unless there is a reason not to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest
from psycopg import IsolationLevel

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection

QUEUE = "tasks"
LOW = "select pgq_task._time_of(pg_sequence_last_value(lane_low)) from pgq_task.lane"
PATIENCE = 60.0


@pytest.fixture
def tasks(conn: Connection) -> Connection:
    conn.execute("select pgq_task.create_queue(%s)", [QUEUE])
    return conn


def push(conn: Connection, payload: int = 1, **options: object) -> int:
    given = "".join(f", {name} => %({name})s" for name in options)
    statement = f"select pgq_task.push('{QUEUE}', to_jsonb(%(payload)s::int){given})"
    [(task,)] = conn.execute(statement.encode(), options | {"payload": payload}).fetchall()
    return int(task)


def claim(conn: Connection, lease: str | None = None, max_tasks: int = 100) -> list[int]:
    statement = "select id from pgq_task.claim(array[%s], 'me', %s, %s) order by id"
    return [task for (task,) in conn.execute(statement, [QUEUE, lease, max_tasks]).fetchall()]


def sweep(conn: Connection) -> None:
    """One that takes place."""
    wait_until(lambda: ops.value(conn, "select pgq_task.sweep()") is True)


def swept(conn: Connection) -> None:
    """All marks stand behind what was there before, where they may."""
    for _ in range(3):
        sweep(conn)


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def mark_passed(conn: Connection, moment: object) -> bool:
    return bool(ops.value(conn, f"select ({LOW}) > %s", moment))


def tasks_passed(conn: Connection) -> bool:
    return bool(
        ops.value(conn, f"select bool_and(pgq_task._time_of(pos) < ({LOW})) from pgq_task.task")
    )


def now(conn: Connection) -> object:
    return ops.value(conn, "select clock_timestamp()")


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize("savepoint", [False, True])
def test_what_was_pushed_long_before_its_commit_is_claimed(
    tasks: Connection, connect: Connect, isolation: str, savepoint: bool
) -> None:
    pusher = connect(autocommit=False)
    pusher.execute(f"set transaction isolation level {isolation}".encode())
    if savepoint:
        pusher.execute("savepoint s")
    task = push(pusher)
    pushed = now(tasks)
    swept(tasks)
    other = push(tasks)
    assert claim(tasks) == [other]
    swept(tasks)
    assert mark_passed(tasks, pushed)
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


def test_what_was_prepared_is_claimed_when_it_is_committed(
    tasks: Connection, connect: Connect
) -> None:
    pusher = connect(autocommit=False)
    xid = pusher.xid(1, "pgq_task", "pushed")
    pusher.tpc_begin(xid)
    task = push(pusher)
    pusher.tpc_prepare()
    pusher.close()
    pushed = now(tasks)
    swept(tasks)
    assert mark_passed(tasks, pushed)
    connect().tpc_commit(xid)
    sweep(tasks)
    assert claim(tasks) == [task]


@pytest.mark.parametrize("savepoint", ["", "savepoint s", "share"])
def test_a_claim_that_is_rolled_back_late_leaves_its_tasks_to_others(
    tasks: Connection, connect: Connect, savepoint: str
) -> None:
    """Locked by a transaction, by one in it, or by several: an xmax may be each of them."""
    first, second = push(tasks), push(tasks)
    swept(tasks)
    sharer = connect(autocommit=False)
    claimer = connect(autocommit=False)
    if savepoint == "share":
        sharer.execute("select from pgq_task.task for key share")
    elif savepoint:
        claimer.execute("select pg_current_xact_id()")
        claimer.execute(savepoint.encode())
    assert claim(claimer, max_tasks=2) == [first, second]
    swept(tasks)
    assert tasks_passed(tasks)
    assert claim(tasks) == []
    claimer.rollback()
    sweep(tasks)
    assert claim(tasks) == [first, second]
    sharer.rollback()


def test_a_task_that_is_locked_twice_in_one_transaction_is_passed(
    tasks: Connection, connect: Connect
) -> None:
    """Its xmax is a multixact with two members that are one."""
    task = push(tasks)
    swept(tasks)
    holder = connect(autocommit=False)
    holder.execute("select from pgq_task.task for key share")
    holder.execute("savepoint s")
    holder.execute("select from pgq_task.task for update")
    swept(tasks)
    assert tasks_passed(tasks)
    holder.rollback()
    sweep(tasks)
    assert claim(tasks) == [task]


def test_a_task_in_a_transaction_that_ends_it_is_available_again_when_that_fails(
    tasks: Connection, connect: Connect
) -> None:
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
    assert claim(tasks, lease="3 seconds") == [task]

    def passed() -> bool:
        sweep(tasks)
        return mark_passed(tasks, claimed)

    wait_until(passed)
    found: list[int] = []

    def again() -> bool:
        sweep(tasks)
        found.extend(claim(tasks))
        return bool(found)

    wait_until(again)
    assert found == [task]
    assert ops.value(tasks, "select clock_timestamp() - %s", claimed) >= timedelta(seconds=3)


def test_a_task_that_was_claimed_just_now_stops_the_mark(tasks: Connection) -> None:
    """A task that will be gone soon is not moved; and not passed, as its lease may end soon."""
    task = push(tasks)
    swept(tasks)
    assert claim(tasks, lease="1 hour") == [task]
    place = ops.value(tasks, "select pos from pgq_task.task")

    def swept_at_once() -> bool:
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


def test_a_sweep_that_is_rolled_back_leaves_nothing_behind(
    tasks: Connection, connect: Connect
) -> None:
    """The sweep has moved the marks, which no rollback undoes; the rows it noted are lost."""
    waiting, first, second = push(tasks), push(tasks), push(tasks)
    swept(tasks)
    holder = connect(autocommit=False)
    holder.execute("select from pgq_task.task where id in (%s, %s) for update", [waiting, first])
    sweeper = connect(autocommit=False)
    sweep_in_transaction(sweeper)
    sweeper.rollback()
    holder.rollback()
    assert claim(tasks, max_tasks=1) == [second]
    sweep(tasks)
    assert claim(tasks) == [waiting, first]


def sweep_in_transaction(conn: Connection) -> None:
    def done() -> bool:
        if ops.value(conn, "select pgq_task.sweep()"):
            return True
        conn.rollback()
        return False

    wait_until(done)


def test_two_sweeps_do_not_run_at_once(tasks: Connection, connect: Connect) -> None:
    sweeper = connect(autocommit=False)
    sweep_in_transaction(sweeper)
    time.sleep(0.2)
    assert ops.value(tasks, "select pgq_task.sweep()") is False
    sweeper.rollback()
    sweep(tasks)


def test_a_sweep_needs_to_see_what_is_true_now(connect: Connect, tasks: Connection) -> None:
    old = connect(autocommit=False)
    old.execute("set transaction isolation level repeatable read")
    with pytest.raises(
        psycopg.Error, match=r"pgq_task\.sweep\(\) must not run in a REPEATABLE READ"
    ):
        old.execute("select pgq_task.sweep()")


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
        "select setval(lane_ahead, pg_sequence_last_value(lane_ahead) + %s),"
        " setval(lane_low, pg_sequence_last_value(lane_low) + %s) from pgq_task.lane",
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
    def full(xid: int, following: int) -> int:
        return int(
            str(
                ops.value(
                    conn, "select pgq_task._full_xid(%s::text::xid, %s::text::xid8)", xid, following
                )
            )
        )

    epoch = 1 << 32
    assert full(7, 9) == 7
    assert full(11, 9) == 11
    assert full(7, 3 * epoch + 9) == 3 * epoch + 7
    assert full(11, 3 * epoch + 9) == 3 * epoch + 11
    assert full(epoch - 5, 3 * epoch + 9) == 3 * epoch - 5
    assert full(5, 3 * epoch - 9) == 3 * epoch + 5
    assert full(epoch - 5, 9) == 0


def test_ids_of_another_cluster_do_not_stop_the_sweeps(tasks: Connection) -> None:
    """A database restored into a cluster with lower transaction ids has such ids."""
    swept(tasks)
    tasks.execute("update pgq_task.sweep set sweep_open = '{999999999999}', sweep_open_pos = '{0}'")
    task = push(tasks)
    swept(tasks)
    assert claim(tasks) == [task]
    sweep(tasks)
    assert (
        ops.value(
            tasks,
            "select '999999999999' = any(sweep_open)"
            " from pgq_task.sweep order by sweep_id desc limit 1",
        )
        is False
    )


def test_marks_of_another_time_begin_anew(tasks: Connection) -> None:
    """Sequences are dumped later than tables: they may be ahead of what a dump holds."""
    task = push(tasks)
    swept(tasks)
    tasks.execute(
        "select setval(lane_ahead, pgq_task._position_of(clock_timestamp())),"
        " setval(lane_low, pgq_task._position_of(clock_timestamp())),"
        " nextval('pgq_task.sweep_id_seq') from pgq_task.lane"
    )
    assert claim(tasks) == []
    sweep(tasks)
    assert claim(tasks) == [task]


def test_idle_lanes_cost_no_wal(tasks: Connection) -> None:
    for queue in range(20):
        tasks.execute("select pgq_task.create_queue(%s)", [f"idle_{queue}"])
    swept(tasks)
    swept(tasks)
    marks = (
        "select array_agg(pg_sequence_last_value(lane_low) order by queue_id) from pgq_task.lane"
    )
    before = ops.value(tasks, marks)
    swept(tasks)
    assert ops.value(tasks, marks) == before


def test_rows_of_sweeps_are_deleted(tasks: Connection) -> None:
    tasks.execute(
        "insert into pgq_task.sweep (sweep_id, sweep_time, sweep_took, sweep_began, sweep_bound,"
        " sweep_open, sweep_open_pos, sweep_busy, sweep_anew)"
        " select nextval('pgq_task.sweep_id_seq'), clock_timestamp() - interval '1 minute', '0',"
        " clock_timestamp() - interval '1 minute', 0, '{}', '{}', 0, clock_timestamp()"
        " from generate_series(1, 150)"
    )
    swept(tasks)
    assert ops.value(tasks, "select count(*) from pgq_task.sweep") < 110


@pytest.mark.slow
def test_thousands_of_lanes_are_swept_in_several_calls(tasks: Connection, connect: Connect) -> None:
    """All at once would take more locks than a server has."""
    lanes = 1200
    tasks.execute("select pgq_task._add_lane(1, n::int2) from generate_series(1, %s) n", [lanes])
    swept(tasks)
    pusher = connect(autocommit=False)
    for priority in (0, 1, lanes // 2, lanes):
        push(pusher, priority=priority)
    locks = "select count(*) from pg_locks where relation in (select lane_low from pgq_task.lane)"

    def all_marks_moved() -> bool:
        with tasks.transaction():
            tasks.execute("select pgq_task.sweep()")
            assert ops.value(tasks, locks) <= 500
        return bool(
            ops.value(tasks, "select min(pg_sequence_last_value(lane_low)) > 0 from pgq_task.lane")
        )

    wait_until(all_marks_moved)
    for _ in range(9):
        sweep(tasks)
    pusher.commit()

    def found() -> bool:
        sweep(tasks)
        claim(tasks)
        return bool(ops.value(tasks, "select bool_and(lease is not null) from pgq_task.task"))

    wait_until(found)


def test_a_queue_that_is_being_dropped_does_not_hold_up_sweeps(
    tasks: Connection, connect: Connect
) -> None:
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


def test_an_error_queue_that_is_being_dropped_does_not_hold_up_sweeps(
    tasks: Connection, connect: Connect
) -> None:
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
    wait_until(lambda: ops.value(tasks, "select pgq_task.sweep()") and ops.value(tasks, failed))
    assert ops.value(tasks, failed) == "other.failed"
    dropper.commit()
    wait_until(
        lambda: ops.value(tasks, "select pgq_task.sweep()") and " " in ops.value(tasks, failed)
    )
    assert ops.value(tasks, failed) == "dead other.failed"


def test_a_key_of_a_queue_that_is_being_dropped_is_released_if_it_is_not(
    tasks: Connection, connect: Connect
) -> None:
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
    sweep(tasks)
    sweep(tasks)
    dropper.rollback()
    wait_until(lambda: ops.value(tasks, "select pgq_task.sweep()") and claim(tasks) == [second])
