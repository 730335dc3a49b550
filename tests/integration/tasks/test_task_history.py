"""Finished tasks are kept for as long as their queue says, to be looked at and repeated."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqpy.tasks import Tasks
from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.task_ops import as_role, sweep_until

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
    return task_ops.push(conn, queue, payload, **options)


def finish(conn: Connection, number: int = 1) -> list[int]:
    """Claim this many and finish them one after the other, each with its id as result."""
    claimed = task_ops.claim(conn, QUEUE, number=number)
    for each in claimed:
        conn.execute("select pgq_task.finish('w', %s, %s, to_jsonb(%s))", [*each, each[0]])
    return task_ops.ids(claimed)


def history(conn: Connection, options: str = "", *parameters: object) -> list[int]:
    statement = f"select id from pgq_task.finished_tasks(%s{options and ', ' + options})"
    return [row[0] for row in conn.execute(statement.encode(), [QUEUE, *parameters])]


def test_a_finished_task_is_kept_with_all_that_belongs_to_it(conn: Connection) -> None:
    task = push(conn, {"order": 7}, headers={"from": "shop"}, priority=3)
    task_ops.fail(conn, task_ops.claim(conn, QUEUE)[0], "no ink")
    ((_, version),) = task_ops.claim(conn, QUEUE)
    assert history(conn) == []
    # What is rolled back was not finished.
    with conn.transaction(force_rollback=True):
        conn.execute("select pgq_task.finish('w', %s, %s)", [task, version])
        assert history(conn)
    assert history(conn) == []
    conn.execute("select pgq_task.finish('w', %s, %s, '[1]')", [task, version])
    row = conn.execute(
        "select id, outcome, claimant, attempts, result, error, priority, payload, headers,"
        " finished between last_attempt and clock_timestamp(), created < finished"
        " from pgq_task.finished_tasks(%s)",
        [QUEUE],
    ).fetchone()
    assert row == (
        *(task, "finished", "w", 2, [1], "no ink", 3, {"order": 7}, {"from": "shop"}),
        *(True, True),
    )


def test_tasks_finished_together_are_kept_each_with_its_own_result(conn: Connection) -> None:
    tasks = [push(conn, number) for number in range(3)]
    versions = [version for _, version in task_ops.claim(conn, QUEUE, number=3)]
    results = [Jsonb(task) for task in tasks]
    conn.execute(
        "select pgq_task.finish_many('w', %s, %s, %s)",
        # Nor do a version that is none, or what is named twice, disturb that.
        [tasks * 2 + tasks, [99] * 3 + versions * 2, [None] * 3 + results * 2],
    )
    rows = conn.execute("select id, result from pgq_task.finished_tasks(%s)", [QUEUE]).fetchall()
    assert sorted(rows) == [(task, task) for task in tasks]


def test_a_queue_that_keeps_nothing_has_no_history_and_no_tables(conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue('plain')")
    push(conn, queue="plain")
    task_ops.finish(conn, *task_ops.claim(conn, "plain"))
    assert conn.execute("select * from pgq_task.finished_tasks('plain')").fetchall() == []
    tables = "select count(*) from pg_inherits where inhparent::regclass::text like 'pgq_task.%%'"
    assert ops.value(conn, tables) == 5


def test_a_filter_says_which(conn: Connection) -> None:
    ids = [push(conn, {"odd": number % 2 == 1}) for number in (1, 2, 3)]
    finish(conn)
    finish(conn)
    conn.execute("select pgq_task.pop(%s, claimant => 'me')", [QUEUE])
    for options, expected in (
        ("", [3, 2, 1]),
        ("max_tasks => 2", [3, 2]),
        ("max_tasks => null", [3, 2, 1]),
        ("""payload => '{"odd": true}'""", [3, 1]),
        ("outcome => 'finished'", [2, 1]),
        ("outcome => 'popped'", [3]),
        ("outcome => 'deleted'", []),
        ("finished_before => now() - interval '1 minute'", []),
        ("finished_from => now() - interval '1 minute'", [3, 2, 1]),
    ):
        assert history(conn, options) == [ids[number - 1] for number in expected], options
    assert history(conn, "ids => %s", ids[:1]) == ids[:1]
    popped = "select claimant, payload from pgq_task.finished where outcome = 'popped'"
    assert conn.execute(popped).fetchall() == [("me", {"odd": True})]


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


def tables(conn: Connection, keep: str, step: str, number: int) -> list[int]:
    """The tables that are written at times this far apart."""
    rows = conn.execute(
        "select pgq_task._finished_number(%s, '2026-01-01'::timestamptz + n * %s::interval)"
        " from generate_series(0, %s) n",
        [keep, step, number - 1],
    )
    return [table for (table,) in rows]


def test_the_table_that_is_emptied_next_is_not_written(conn: Connection) -> None:
    found = tables(conn, "3 hours", "30 minutes", 20)
    assert found[::2] == found[1::2]
    rounds = found[::2]
    assert sorted(set(rounds)) == [0, 1, 2, 3, 4]
    assert rounds[:5] == rounds[5:]


def test_a_table_is_old_for_longer_than_it_takes_until_the_next_look(conn: Connection) -> None:
    """Sweeps look every 20 seconds: in less some tables would be at rest only in between."""
    found = tables(conn, "12 seconds", "20 seconds", 15)
    assert found[::3] == found[1::3] == found[2::3]
    assert sorted(found[::3]) == [0, 1, 2, 3, 4]


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
        options: Any = {"priority": number, "order_key": f"key {number}"}
        push(conn, number, headers={"from": "shop"}, **options)
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


def test_a_replay_takes_what_the_filter_says_elsewhere_once(conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue('second try')")
    for number in (1, 2, 3):
        push(conn, number, unique_key=str(number))
    finish(conn, 3)
    for _ in range(2):
        conn.execute("select pgq_task.replay(%s, 'second try', payload => '2')", [QUEUE])
    rows = conn.execute("select queue, payload, headers ->> 'origin' from pgq_task.tasks")
    assert rows.fetchall() == [("second try", 2, QUEUE)]


def test_readers_see_and_administrators_replay(conn: Connection) -> None:
    push(conn)
    finish(conn)
    as_role(conn, "pgq_reader")
    assert len(history(conn)) == 1
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute("select * from pgq_task.finished")
    as_role(conn, "pgq_admin")
    assert len(conn.execute("select pgq_task.replay(%s)", [QUEUE]).fetchall()) == 1


def test_sweeps_empty_what_is_old(conn: Connection) -> None:
    push(conn)
    finish(conn)
    conn.execute("update pgq_task.finished set finished = finished - interval '61 minutes'")
    sweep_until(conn, lambda: not ops.value(conn, SIZES))


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
    [counted] = tasks.statistics(QUEUE)
    counts = {name: count for name, count in asdict(counted).items() if count}
    assert counts == {"queue": QUEUE, "pushed": 3, "claimed": 2, "finished": 1, "popped": 1}
    assert tasks.statistics() == [counted]
