"""Counters of the operations on a queue's tasks, kept without waiting and without dead rows."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pgqpy.tasks import Tasks
from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops as tasks
from tests.fixtures.fix_db import Connect, Connection

QUEUE = "jobs"


@pytest.fixture(autouse=True)
def task_queue(conn: Connection) -> None:
    for name in (QUEUE, "others"):
        conn.execute("select pgq_task.create_queue(%s)", [name])


def counted(conn: Connection, queue: str = QUEUE) -> dict[str, int]:
    """The counters that are not zero."""
    (row,) = tasks.rows(conn, "select * from pgq_task.get_statistics(%s)", queue)
    return {name: value for name, value in row.items() if value and name != "queue_name"}


def test_single_tasks_are_counted_from_nothing_on(conn: Connection) -> None:
    assert counted(conn) == {}
    names = conn.execute("select queue_name from pgq_task.get_statistics()").fetchall()
    assert names == [(QUEUE,), ("others",)]
    for _ in range(3):
        tasks.push(conn, QUEUE)
        tasks.push(conn, QUEUE, unique_key="one")
    tasks.finish(conn, *tasks.claim(conn, QUEUE))
    assert counted(conn) == {"pushed": 4, "claimed": 1, "finished": 1}
    conn.execute("select pgq_task.pop(%s, 2)", [QUEUE])
    assert counted(conn) == {"pushed": 4, "claimed": 3, "finished": 1, "popped": 2}


def test_counters_are_reset_for_one_queue_or_for_all(conn: Connection, connect: Connect) -> None:
    for queue in (QUEUE, "others"):
        tasks.push(conn, queue)
        tasks.push(conn, queue, delay=timedelta(hours=1))
    tasks.claim(conn, QUEUE)
    caller = connect(autocommit=False)
    caller.execute("select pgq_task.reset_statistics(%s)", [QUEUE])
    assert counted(conn) == {"pushed": 2, "claimed": 1}
    tasks.push(conn, QUEUE)
    caller.commit()
    assert counted(conn) == {"pushed": 1}
    assert counted(conn, "others") == {"pushed": 2}
    assert [each.pushed for each in Tasks(conn).statistics("o*s")] == [2]
    assert Tasks(conn).statistics("no*") == []
    conn.execute(
        "select pgq_task._add_counted(now() + i * interval '20 s') from generate_series(0, 1) i"
    )
    Tasks(conn).reset_statistics()
    assert counted(conn) == counted(conn, "others") == {}


def test_batches_of_any_size_are_counted_to_the_last_task(conn: Connection) -> None:
    total = 0
    for number in (1, 15, 16, 17, 100, 1000):
        tasks.push_many(conn, QUEUE, number)
        claimed = tasks.claim(conn, QUEUE, number=number)
        ids, versions = [list(each) for each in zip(*claimed, strict=True)]
        for _ in range(2):
            conn.execute("select pgq_task.finish_many('w', %s, %s)", [ids, versions])
        total += number
        assert counted(conn) == {"pushed": total, "claimed": total, "finished": total}


CLAIMED = "jsonb_build_object('id', %(id)s::int8, 'version', %(version)s::int4"
ENDS: list[tuple[str, dict[str, int]]] = [
    ("fail('w', %(id)s, %(version)s, 'no')", {"failed_attempts": 1}),
    ("fail('w', %(id)s, %(version)s, 'no', final => true)", {"failed_attempts": 1, "failed": 1}),
    ("release('w', array[%(id)s], array[%(version)s])", {"released": 1}),
    (f"modify('w', deletes => jsonb_build_array({CLAIMED})))", {"deleted": 1}),
    (f"modify('w', changes => jsonb_build_array({CLAIMED}, 'queue', 'others')))", {"moved": 1}),
    (f"modify('w', changes => jsonb_build_array({CLAIMED}, 'payload', 2)))", {}),
]


@pytest.mark.parametrize(("call", "expected"), ENDS)
def test_whatever_becomes_of_a_task_is_counted_in_the_queue_where_it_was(
    conn: Connection, call: str, expected: dict[str, int]
) -> None:
    tasks.push(conn, QUEUE)
    ((task, version),) = tasks.claim(conn, QUEUE)
    conn.execute(f"select pgq_task.{call}".encode(), {"id": task, "version": version})
    assert counted(conn) == {"pushed": 1, "claimed": 1} | expected
    assert counted(conn, "others") == {}


def test_tasks_inserted_by_modify_and_replayed_are_pushed(conn: Connection) -> None:
    conn.execute("update pgq_task.queue set queue_keep = '1 hour'")
    conn.execute("""select pgq_task.modify('w', '[{"queue": "jobs"}, {"queue": "others"}]')""")
    conn.execute("select pgq_task.pop(%s)", [QUEUE])
    conn.execute("select pgq_task.replay(%s, 'others')", [QUEUE])
    assert counted(conn, "others") == {"pushed": 2}
    assert counted(conn)["pushed"] == 1


def test_counting_blocks_no_session(conn: Connection, connect: Connect) -> None:
    other = connect(autocommit=False)
    tasks.push_many(other, QUEUE, 20)
    tasks.push_many(conn, QUEUE, 20)
    assert counted(conn) == {"pushed": 20}, "not those that are not committed"
    other.commit()
    assert counted(conn) == {"pushed": 40}


LOGS = (
    "select count(*) from (table pgq_task.count_log_even union all table pgq_task.count_log_odd) l"
)


def test_sweeps_add_what_was_counted(conn: Connection, connect: Connect) -> None:
    tasks.push_many(conn, QUEUE, 3)
    tasks.finish(conn, *tasks.claim(conn, QUEUE))
    before = counted(conn)
    other = connect(autocommit=False)
    tasks.push_many(other, QUEUE)
    # The log that is in use stays; if it is large, it gives what is committed.
    for limit, left in ((1 << 40, 4), (0, 1)):
        add_all(conn, limit)
        assert counted(conn) == before
        assert ops.value(other, LOGS) <= left
    other.rollback()
    add_all(conn)
    assert ops.value(conn, LOGS) == 0
    assert counted(conn) == before


def add_all(conn: Connection, limit: int = 0) -> None:
    """Both logs, whichever is written at the moment."""
    for second in ("01", "21"):
        moment = f"2000-01-01 00:00:{second}+00"
        conn.execute("select pgq_task._add_counted(%s, %s)", [moment, limit])


def test_looking_at_the_counters_of_all_queues_holds_no_locks(conn: Connection) -> None:
    """A server has some thousands, and each queue a dozen counters."""
    with conn.transaction():
        conn.execute("select * from pgq_task.get_statistics()")
        assert not ops.value(
            conn,
            "select array_agg(c.relname) from pg_locks l join pg_class c on c.oid = l.relation"
            " where (c.relkind = 'S' or c.relname ~ 'count') and l.pid = pg_backend_pid()",
        )


def test_counters_of_a_queue_begin_anew_with_it(conn: Connection) -> None:
    tasks.push_many(conn, QUEUE)
    conn.execute("select pgq_task.drop_queue(%s, true)", [QUEUE])
    conn.execute("select pgq_task.create_queue(%s)", [QUEUE])
    assert counted(conn) == {}
    conn.execute("select pgq_task.drop_queue(%s)", [QUEUE])
    conn.execute("select pgq_task.drop_queue('others')")
    left = conn.execute(
        "select relname from pg_class where relnamespace = 'pgq_task'::regnamespace"
        " and relkind = 'S' and relname ~ '[0-9]$'"
    ).fetchall()
    assert left == []
