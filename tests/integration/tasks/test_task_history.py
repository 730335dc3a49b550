"""Finished tasks are kept for as long as their queue says, to be looked at and repeated."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from time import monotonic, sleep
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqpy import errors
from pgqpy.tasks import Tasks, TaskStatistics
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import PATIENCE
from tests.fixtures.fix_db import Connect, Connection

QUEUE = "orders"

# A third of it, 10,000 days, is written into one table: the next one's turn comes in 2052.
LONG = "30000 days"
AGE = "update pgq_task.finished set finished = finished - interval '30001 days'"

SIZES = (
    "select coalesce(sum(pg_relation_size(inhrelid)), 0)::int from pg_inherits"
    " where inhparent = 'pgq_task.finished'::regclass"
)


@pytest.fixture(autouse=True)
def task_queue(conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue(%s)", [QUEUE])
    keep(conn, "1 hour")


def keep(conn: Connection, how_long: str) -> None:
    conn.execute(
        "update pgq_task.queue set queue_keep = %s where queue_name = %s", [how_long, QUEUE]
    )


def push(conn: Connection, payload: object = None, queue: str = QUEUE, **options: Any) -> int:
    names = ", ".join(f"{name} => %({name})s" for name in options)
    statement = f"select pgq_task.push(%(queue)s, %(payload)s{names and ', ' + names})"
    row = conn.execute(
        statement.encode(), options | {"queue": queue, "payload": Jsonb(payload)}
    ).fetchone()
    assert row is not None
    return int(row[0])


def claim(conn: Connection, number: int = 1, queue: str = QUEUE) -> list[tuple[int, int]]:
    return conn.execute(
        "select id, version from pgq_task.claim(array[%s], 'worker', null, %s, false)",
        [queue, number],
    ).fetchall()


def finish(conn: Connection, number: int = 1) -> list[int]:
    """Claim this many and finish them one after the other, each with its id as result."""
    claimed = claim(conn, number)
    for task, version in claimed:
        conn.execute(
            "select pgq_task.finish('worker', %s, %s, to_jsonb(%s))", [task, version, task]
        )
    return [task for task, _ in claimed]


def history(conn: Connection, options: str = "", *parameters: object) -> list[int]:
    statement = f"select id from pgq_task.finished_tasks(%s{options and ', ' + options})"
    return [row[0] for row in conn.execute(statement.encode(), [QUEUE, *parameters])]


def test_a_finished_task_is_kept_with_its_result_its_attempts_and_its_worker(
    conn: Connection,
) -> None:
    task = push(conn, {"order": 7}, headers=Jsonb({"from": "shop"}), priority=3)
    ((_, version),) = claim(conn)
    conn.execute("select pgq_task.fail('worker', %s, %s, 'no ink')", [task, version])
    ((_, version),) = claim(conn)
    assert history(conn) == []
    conn.execute("select pgq_task.finish('worker', %s, %s, '[1]')", [task, version])
    row = conn.execute(
        "select id, outcome, claimant, attempts, result, error, priority, payload, headers,"
        " finished between last_attempt and clock_timestamp(), created < finished"
        " from pgq_task.finished_tasks(%s)",
        [QUEUE],
    ).fetchone()
    assert row == (
        *(task, "finished", "worker", 2, [1], "no ink", 3, {"order": 7}, {"from": "shop"}),
        *(True, True),
    )


def test_tasks_finished_together_are_kept_each_with_its_own_result(conn: Connection) -> None:
    tasks = [push(conn, number) for number in range(3)]
    claimed = claim(conn, 3)
    versions = [version for _, version in claimed]
    results = [Jsonb(task) for task in tasks]
    conn.execute(
        "select pgq_task.finish_many('worker', %s, %s, %s)",
        # Nor do a version that is none, or what is named twice, disturb that.
        [tasks * 2 + tasks, [99] * 3 + versions * 2, [None] * 3 + results * 2],
    )
    rows = conn.execute("select id, result from pgq_task.finished_tasks(%s)", [QUEUE]).fetchall()
    assert sorted(rows) == [(task, task) for task in tasks]


def test_what_is_rolled_back_was_not_finished(conn: Connection) -> None:
    push(conn)
    with conn.transaction(force_rollback=True):
        assert finish(conn)
        assert history(conn)
    assert history(conn) == []


def test_a_queue_that_keeps_nothing_has_no_history_and_no_tables(conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue('plain')")
    push(conn, queue="plain")
    ((task, version),) = claim(conn, queue="plain")
    conn.execute("select pgq_task.finish('worker', %s, %s)", [task, version])
    assert conn.execute("select * from pgq_task.finished_tasks('plain')").fetchall() == []
    assert (
        ops.value(
            conn,
            "select count(*) from pg_inherits where inhparent::regclass::text like 'pgq_task.%%'",
        )
        == 5
    )


def test_popped_tasks_are_kept_too(conn: Connection) -> None:
    push(conn, 1)
    conn.execute("select pgq_task.pop(%s, claimant => 'me')", [QUEUE])
    row = conn.execute("select outcome, claimant, payload from pgq_task.finished").fetchone()
    assert row == ("popped", "me", 1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", [3, 2, 1]),
        ("max_tasks => 2", [3, 2]),
        ("max_tasks => null", [3, 2, 1]),
        ("""payload => '{"odd": true}'""", [3, 1]),
        ("outcome => 'finished'", [2, 1]),
        ("outcome => 'popped'", [3]),
        ("outcome => 'deleted'", []),
        ("finished_before => now() - interval '1 minute'", []),
        ("finished_from => now() - interval '1 minute'", [3, 2, 1]),
    ],
)
def test_a_filter_says_which(conn: Connection, options: str, expected: list[int]) -> None:
    for number in (1, 2, 3):
        push(conn, {"number": number, "odd": number % 2 == 1})
    finish(conn)
    finish(conn)
    conn.execute("select pgq_task.pop(%s)", [QUEUE])
    ids = history(conn, options)
    numbers: dict[int, int] = dict(
        conn.execute("select id, (payload ->> 'number')::int from pgq_task.finished").fetchall()
    )
    assert [numbers[each] for each in ids] == expected
    assert history(conn, "ids => %s", ids[:1]) == ids[:1]


def test_the_history_shows_nothing_older_than_the_queue_keeps(conn: Connection) -> None:
    push(conn)
    finish(conn)
    assert len(history(conn)) == 1
    keep(conn, "1 microsecond")
    assert history(conn) == []
    keep(conn, "0")
    assert history(conn) == []
    push(conn)
    finish(conn)
    keep(conn, "1 hour")
    assert len(history(conn)) == 1, "what was finished while nothing was kept"


def test_only_tables_that_are_old_as_a_whole_are_emptied(conn: Connection) -> None:
    keep(conn, LONG)
    push(conn)
    finish(conn)
    assert ops.value(conn, "select pgq_task._expire_finished()") == 0
    conn.execute(AGE)
    push(conn)
    finish(conn)
    assert ops.value(conn, "select pgq_task._expire_finished()") == 0
    assert len(history(conn)) == 1
    conn.execute(AGE)
    assert ops.value(conn, "select pgq_task._expire_finished()") == 1
    assert ops.value(conn, SIZES) == 0
    assert ops.value(conn, "select pgq_task._expire_finished()") == 0


def test_a_table_that_is_being_written_is_left_alone(conn: Connection, connect: Connect) -> None:
    keep(conn, LONG)
    push(conn)
    finish(conn)
    conn.execute(AGE)
    other = connect(autocommit=False)
    push(other)
    finish(other)
    assert ops.value(conn, "select pgq_task._expire_finished()") == 0
    other.commit()
    assert ops.value(conn, "select pgq_task._expire_finished()") == 0, "it has a fresh task now"
    assert len(history(conn)) == 1


def test_a_change_of_how_long_loses_nothing_that_is_to_be_kept(conn: Connection) -> None:
    """The times of the tables change; what was written before may stand in any of them."""
    finished = []
    for how_long in ("3 seconds", "1 hour", "20 seconds", "1 day", "70 minutes"):
        keep(conn, how_long)
        push(conn)
        finished += finish(conn)
        keep(conn, "1 hour")
        conn.execute("select pgq_task._expire_finished()")
    assert sorted(history(conn)) == finished


def test_each_time_has_its_table_and_the_one_that_is_emptied_next_is_not_written(
    conn: Connection,
) -> None:
    slots = [
        slot
        for (slot,) in conn.execute(
            "select pgq_task._finished_number('3 hours', '2026-01-01'::timestamptz"
            " + n * interval '30 minutes') from generate_series(0, 19) n"
        )
    ]
    assert slots[::2] == slots[1::2]
    rounds = slots[::2]
    assert sorted(set(rounds)) == [0, 1, 2, 3, 4]
    assert rounds[:5] == rounds[5:]


def test_a_table_is_old_for_longer_than_it_takes_until_the_next_look(conn: Connection) -> None:
    """Sweeps look every 20 seconds: in less some tables would be at rest only in between."""
    slots = [
        slot
        for (slot,) in conn.execute(
            "select pgq_task._finished_number('12 seconds', '2026-01-01'::timestamptz"
            " + n * interval '20 seconds') from generate_series(0, 14) n"
        )
    ]
    assert slots[::3] == slots[1::3] == slots[2::3]
    assert sorted(slots[::3]) == [0, 1, 2, 3, 4]


def test_nothing_in_the_history_is_ever_updated_or_deleted(conn: Connection) -> None:
    for _ in range(30):
        push(conn)
        finish(conn)
    conn.execute("select pgq_task._expire_finished()")
    conn.execute("select pg_stat_force_next_flush()")
    assert ops.value(
        conn,
        "select array[sum(n_tup_ins), sum(n_tup_upd + n_tup_del)]::int[] from pg_stat_user_tables"
        " where relname like 'finished%%'",
    ) == [30, 0]


def test_looking_at_a_history_locks_no_other_queues(conn: Connection) -> None:
    """Locks are limited, and hundreds of queues may have one."""
    conn.execute("select pgq_task.create_queue('other')")
    conn.execute("select pgq_task.set_queue_config('other', 'keep', '1 day')")
    with conn.transaction():
        history(conn)
        assert not ops.value(
            conn,
            "select array_agg(relation::regclass) from pg_locks, pgq_task.queue"
            " where queue_name = 'other' and relation::regclass::text ~ ('finished_' || queue_id)",
        )


def test_the_tables_go_with_their_queue(conn: Connection) -> None:
    push(conn)
    finish(conn)
    conn.execute("select pgq_task.drop_queue(%s)", [QUEUE])
    assert ops.value(conn, "select count(*) from pgq_task.finished") == 0
    conn.execute("select pgq_task.create_queue(%s)", [QUEUE])
    keep(conn, "1 hour")
    assert history(conn) == []


def test_a_replay_pushes_the_tasks_again_as_they_were(conn: Connection) -> None:
    for number in (1, 2):
        push(
            conn,
            number,
            priority=number,
            order_key=f"key {number}",
            headers=Jsonb({"from": "shop"}),
        )
    first, second = sorted(finish(conn, 2))
    new = [row[0] for row in conn.execute("select pgq_task.replay(%s)", [QUEUE])]
    rows = conn.execute(
        "select t.id, t.payload, t.priority, t.order_key, t.attempts, t.headers - 'finished_at',"
        " (t.headers ->> 'finished_at')::timestamptz = f.finished"
        " from pgq_task.tasks t join pgq_task.finished f on f.id = (t.headers -> 'replay_of')::int8"
        " order by t.payload"
    ).fetchall()
    assert [row[1:] for row in rows] == [
        (1, 1, "key 1", 0, {"from": "shop", "origin": QUEUE, "replay_of": first}, True),
        (2, 2, "key 2", 0, {"from": "shop", "origin": QUEUE, "replay_of": second}, True),
    ]
    assert sorted(new) == sorted(row[0] for row in rows)
    assert len(history(conn)) == 2, "a replay takes nothing away"


def test_a_replay_takes_what_the_filter_says_elsewhere(conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue('second try')")
    for number in (1, 2, 3):
        push(conn, {"number": number})
    finish(conn, 3)
    conn.execute(
        "select pgq_task.replay(%s, 'second try', payload => %s)",
        [QUEUE, Jsonb({"number": 2})],
    )
    rows = conn.execute(
        "select queue, payload, headers ->> 'origin' from pgq_task.tasks"
    ).fetchall()
    assert rows == [("second try", {"number": 2}, QUEUE)]


def test_a_replayed_task_with_a_unique_key_is_there_once(conn: Connection) -> None:
    push(conn, unique_key="one")
    finish(conn)
    conn.execute("select pgq_task.replay(%s)", [QUEUE])
    conn.execute("select pgq_task.replay(%s)", [QUEUE])
    assert ops.value(conn, "select count(*) from pgq_task.tasks") == 1


@pytest.fixture
def reader(connect: Connect) -> Connection:
    conn = connect()
    conn.execute("set role pgq_reader")
    return conn


def test_readers_see_the_history_and_administrators_replay_it(
    conn: Connection, reader: Connection
) -> None:
    push(conn)
    finish(conn)
    assert len(history(reader)) == 1
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        reader.execute("select pgq_task.replay(%s)", [QUEUE])
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        reader.execute("select * from pgq_task.finished")
    reader.execute("set role pgq_admin")
    assert len(reader.execute("select pgq_task.replay(%s)", [QUEUE]).fetchall()) == 1


def test_a_role_that_may_not_read_a_queue_does_not_see_its_history(
    conn: Connection, reader: Connection
) -> None:
    conn.execute("select pgq_task.restrict_queue(%s)", [QUEUE])
    with pytest.raises(psycopg.errors.InsufficientPrivilege) as info:
        history(reader)
    assert info.value.diag.message_hint


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("call", "sqlstate"),
    [
        ("pgq_task.finished_tasks('none')", "PQ070"),
        ("pgq_task.finished_tasks('orders', 0)", "PQ072"),
        ("pgq_task.finished_tasks('orders', outcome => 'lost')", "PQ072"),
        ("pgq_task.replay('none')", "PQ070"),
        ("pgq_task.replay('orders', 'none')", "PQ070"),
        ("pgq_task.replay('orders', 'none', '{}')", "PQ070"),
        ("pgq_task.replay('orders', max_tasks => 0)", "PQ072"),
    ],
)
def test_what_makes_no_sense_is_refused(conn: Connection, call: str, sqlstate: str) -> None:
    push(conn)
    finish(conn)
    with pytest.raises(psycopg.Error) as info:
        conn.execute(f"select * from {call}".encode())
    assert info.value.sqlstate == sqlstate
    assert info.value.diag.message_hint


def test_sweeps_empty_what_is_old(conn: Connection) -> None:
    push(conn)
    finish(conn)
    conn.execute("update pgq_task.finished set finished = finished - interval '61 minutes'")
    deadline = monotonic() + PATIENCE
    while ops.value(conn, SIZES):
        assert monotonic() < deadline
        conn.execute("select pgq_task.sweep()")
        sleep(0.02)


# --- from Python


def test_the_history_replays_and_statistics_from_python(conn: Connection) -> None:
    tasks = Tasks(conn, "worker")
    (other,) = tasks.push_many(QUEUE, [{"n": 1}])
    task = tasks.push(QUEUE, {"n": 2}, headers={"from": "shop"})
    start = datetime.now(UTC) - timedelta(minutes=1)
    assert [each.id for each in tasks.pop(QUEUE)] == [other]
    (claimed,) = tasks.try_claim(QUEUE)
    tasks.finish(claimed, {"ok": True})
    (finished,) = tasks.finished(QUEUE, payload={"n": 2}, finished_from=start, outcome="finished")
    assert (finished.id, finished.queue, finished.result, finished.claimant, finished.headers) == (
        *(task, QUEUE, {"ok": True}, "worker", {"from": "shop"}),
    )
    assert [each.id for each in tasks.finished(QUEUE, max_tasks=1)] == [task]
    (again,) = tasks.replay(QUEUE, ids=[task])
    (replayed,) = tasks.list(QUEUE)
    assert (replayed.id, replayed.payload) == (again, {"n": 2})
    assert tasks.statistics(QUEUE) == [
        TaskStatistics(
            queue=QUEUE,
            pushed=3,
            claimed=2,
            finished=1,
            popped=1,
            failed=0,
            failed_attempts=0,
            released=0,
            moved=0,
            deleted=0,
        )
    ]
    assert tasks.statistics() == tasks.statistics(QUEUE)


def test_mistakes_are_told_in_python_too(conn: Connection) -> None:
    tasks = Tasks(conn)
    with pytest.raises(errors.TaskQueueNotFound):
        tasks.finished("none")
    with pytest.raises(errors.InvalidTask, match="outcome"):
        tasks.finished(QUEUE, outcome="lost")
    with pytest.raises(errors.InvalidTask, match="no time zone"):
        tasks.replay(QUEUE, finished_from=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(errors.InvalidTask, match="limit of 0"):
        tasks.pop(QUEUE, max_tasks=0)
