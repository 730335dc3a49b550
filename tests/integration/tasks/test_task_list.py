"""Tasks are found by what they are, and changed and removed by the hundred."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqpy.errors import InvalidTask, TaskConflict, TaskQueueNotFound, from_psycopg
from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops as tasks
from tests.fixtures.fix_db import Connect, Connection

Q, R = "mails", "letters"


@pytest.fixture(autouse=True)
def task_queues(conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue(q) from unnest(%s::text[]) q", [[Q, R]])


def found(
    conn: Connection, conditions: dict[str, Any] | None = None, limit: int | None = 100
) -> list[int]:
    filters = None if conditions is None else Jsonb(conditions)
    return [
        task
        for (task,) in conn.execute(
            "select id from pgq_task.list_tasks(%s, %s, %s)", [Q, filters, limit]
        ).fetchall()
    ]


def change(conn: Connection, conditions: object, to: object, **options: Any) -> int:
    named = "".join(f", {name} => %({name})s" for name in options)
    row = conn.execute(
        f"select pgq_task.change_tasks(%(q)s, %(f)s, %(c)s{named})".encode(),
        options | {"q": Q, "f": Jsonb(conditions), "c": Jsonb(to)},
    ).fetchone()
    assert row is not None
    return int(row[0])


def remove(conn: Connection, conditions: object, **options: Any) -> int:
    named = "".join(f", {name} => %({name})s" for name in options)
    row = conn.execute(
        f"select pgq_task.remove_tasks(%(q)s, %(f)s{named})".encode(),
        options | {"q": Q, "f": Jsonb(conditions)},
    ).fetchone()
    assert row is not None
    return int(row[0])


def requeue(conn: Connection, conditions: object = None) -> int:
    count: int = ops.value(
        conn, "select pgq_task.requeue(%s, %s)", f"{Q}.failed", conditions and Jsonb(conditions)
    )
    return count


def refused(call: Callable[[], object], expected: type[Exception] = InvalidTask) -> str:
    with pytest.raises(psycopg.Error) as caught:
        call()
    error = from_psycopg(caught.value)
    assert isinstance(error, expected), error
    assert error.hint
    return error.message


def test_each_condition_finds_what_meets_it(conn: Connection) -> None:
    plain = tasks.push(conn, Q, {"to": "a", "lines": [1, 2]}, headers={"lang": "de"}, priority=2)
    # Behind tomorrow, whatever the time is now.
    later = tasks.push(conn, Q, {"to": "b"}, delay=timedelta(days=3), unique_key="u")
    first = tasks.push(conn, Q, order_key="o", priority=1)
    second = tasks.push(conn, Q, order_key="o", priority=1)
    stopped = tasks.push(conn, Q, priority=-1)
    conn.execute("select pgq_task.stop(%s)", [stopped])
    failed = tasks.push(conn, Q, priority=9)
    ((_, version),) = tasks.claim(conn, Q)
    conn.execute("select pgq_task.fail('w', %s, %s, 'Host NOT found: 50%%')", [failed, version])
    tasks.push(conn, R, {"to": "a"})
    everything = [failed, plain, first, second, later, stopped]
    assert found(conn) == found(conn, {}) == everything
    for conditions, expected in (
        ({"status": "available"}, [failed, plain, first]),
        ({"status": ["scheduled", "stopped"]}, [later, stopped]),
        ({"status": "scheduled"}, [later]),
        ({"status": "stopped"}, [stopped]),
        ({"status": "held"}, [second]),
        ({"status": "claimed"}, []),
        ({"status": []}, []),
        ({"ids": [stopped, plain, -1]}, [plain, stopped]),
        ({"payload": {"to": "a"}}, [plain]),
        ({"payload": {"lines": [2]}}, [plain]),
        ({"headers": {"lang": "de"}}, [plain]),
        ({"error": "not found: 50%"}, [failed]),
        ({"error": "h%t"}, []),
        ({"priority": 1}, [first, second]),
        ({"unique_key": "u"}, [later]),
        ({"order_key": "o", "status": "available"}, [first]),
        ({"attempts": 1}, [failed]),
        ({"created_after": "2020-01-01"}, everything),
        ({"created_before": "2020-01-01"}, []),
        ({"at_before": "tomorrow"}, [failed, plain, first]),
        ({"at_after": "tomorrow"}, [later, stopped]),
    ):
        assert found(conn, conditions) == expected, conditions
    tasks.claim(conn, Q, claimant="me")
    assert found(conn, {"status": "claimed"}) == found(conn, {"claimant": "me"}) == [failed]


def test_lists_are_as_long_as_wanted_and_cover_all_queues_if_none_is_named(
    conn: Connection,
) -> None:
    ids = [tasks.push(conn, Q, priority=n % 2) for n in range(6)]
    other = tasks.push(conn, R)
    assert found(conn, limit=4) == [ids[1], ids[3], ids[5], ids[0]]
    assert len(found(conn, limit=None)) == 6
    listed = tasks.rows(conn, "select * from pgq_task.list_tasks()")
    assert [row["id"] for row in listed] == [other, *found(conn)]
    assert listed == tasks.rows(
        conn, "select * from pgq_task.tasks order by queue, priority desc, at, id"
    )


def test_tasks_that_stand_nowhere_are_listed_last(conn: Connection) -> None:
    first, second = (tasks.push(conn, Q, order_key="o") for _ in range(2))
    third = tasks.push(conn, Q)
    conn.execute("select pgq_task._hold_back(%s)", [second])
    assert found(conn) == [first, third, second]
    assert found(conn, limit=2) == [first, third]
    assert tasks.statuses(conn)[second] == "held"


def test_times_in_filters_are_those_that_were_written(conn: Connection) -> None:
    """Another DateStyle must not change them: there IST is a zone of Israel or of India."""
    task = tasks.push(conn, Q)
    hour = timedelta(hours=1)
    now: datetime = ops.value(conn, "select created from pgq_task.task")
    conn.execute("set datestyle = 'SQL, DMY'")
    conn.execute("set timezone = 'Asia/Kolkata'")
    assert found(conn, {"created_after": (now - hour).isoformat()}) == [task]
    assert found(conn, {"created_after": (now + hour).isoformat()}) == []
    assert found(conn, {"created_before": (now + hour).isoformat()}) == [task]
    assert found(conn, {"at_before": (now - hour).isoformat()}) == []


def test_of_many_queues_those_are_listed_that_have_tasks(conn: Connection) -> None:
    conn.execute("select pgq_task._add_lane(1, n::int2) from generate_series(1, 500) n")
    ids = [tasks.push(conn, Q, priority=p) for p in (3, 400)]
    ids.append(tasks.push(conn, R))
    listed = conn.execute("select id from pgq_task.list_tasks()").fetchall()
    assert [task for (task,) in listed] == [ids[2], ids[1], ids[0]]


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ([], "the filter is no JSON object"),
        ({"stat": "held"}, "unknown condition 'stat'"),
        ({"status": "waiting"}, "no status"),
        ({"status": None}, "no status"),
        ({"status": ["held", "waiting"]}, "no status"),
        ({"ids": ["x"]}, "ids cannot be read"),
        ({"ids": None}, "no id"),
        ({"priority": None}, "priority is null"),
        ({"priority": 99999}, "priority cannot be read"),
        ({"unique_key": ["a"]}, "unique_key is"),
        ({"created_after": "soon"}, "created_after cannot be read"),
        ({"at_before": {}}, "at_before is {}"),
    ],
)
def test_filters_that_make_no_sense_are_refused(
    conn: Connection, conditions: Any, message: str
) -> None:
    task = tasks.push(conn, Q)
    assert message in refused(lambda: found(conn, conditions))
    assert message in refused(lambda: remove(conn, conditions))
    assert message in refused(lambda: change(conn, conditions, {"stop": True}))
    assert tasks.statuses(conn) == {task: "available"}


def test_limits_and_queues_that_make_no_sense_are_refused(conn: Connection) -> None:
    assert "limit of 0" in refused(lambda: found(conn, limit=0))
    assert "limit of -1" in refused(lambda: remove(conn, {}, max_tasks=-1))
    for call in ("list_tasks('x')", "remove_tasks('x', null)", "requeue('x')"):
        assert "'x'" in refused(
            lambda call=call: conn.execute(f"select pgq_task.{call}".encode()),  # type: ignore[misc]
            TaskQueueNotFound,
        )


def test_what_a_filter_says_is_data(conn: Connection) -> None:
    tasks.push(conn, Q, {"it's": "\\'; drop table pgq_task.task; --"})
    nasty = {"it's": "\\'; drop table pgq_task.task; --"}
    assert len(found(conn, {"payload": nasty})) == 1
    for name in ("error", "claimant", "unique_key", "order_key"):
        assert found(conn, {name: "') or true or ('%s%%s\\"}) == []


def test_payloads_can_be_indexed_queue_by_queue(conn: Connection) -> None:
    ids = [tasks.push(conn, Q, {"n": n % 10}) for n in range(30)]
    before = found(conn, {"payload": {"n": 3}})
    statement = ops.value(conn, "select pgq_task.payload_index_sql(%s)", Q)
    conn.execute(statement)
    assert ops.value(conn, "select pgq_task.index_payload(%s)", Q) == 0
    assert ops.value(conn, "select pgq_task.drop_payload_index(%s)", Q) == 1
    assert ops.value(conn, "select pgq_task.drop_payload_index(%s)", Q) == 0
    assert ops.value(conn, "select pgq_task.index_payload(%s)", Q) == 1
    assert found(conn, {"payload": {"n": 3}}) == before == [ids[3], ids[13], ids[23]]
    assert "nowhere" in refused(
        lambda: conn.execute("select pgq_task.index_payload('nowhere')"), TaskQueueNotFound
    )


def test_an_index_that_was_not_completed_is_made_again(conn: Connection, connect: Connect) -> None:
    tasks.push(conn, Q, 1)
    blocker, builder = connect(autocommit=False), connect()
    tasks.push(blocker, Q, 2)
    builder.execute("set statement_timeout = '200 ms'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        builder.execute(ops.value(conn, "select pgq_task.payload_index_sql(%s)", Q))
    blocker.commit()
    assert found(conn, {"payload": 2})
    assert ops.value(conn, "select pgq_task.index_payload(%s)", Q) == 1
    assert found(conn, {"payload": 2})


def test_claims_touch_no_index_of_payloads(conn: Connection) -> None:
    conn.execute("select pgq_task.index_payload(%s)", [Q])
    for n in range(20):
        tasks.push(conn, Q, {"n": n})
    conn.execute("vacuum pgq_task.task")
    with conn.transaction():
        assert len(tasks.claim(conn, Q, number=20)) == 20
        updated, hot = conn.execute(
            "select n_tup_upd, n_tup_hot_upd from pg_stat_xact_user_tables"
            " where relid = 'pgq_task.task'::regclass"
        ).fetchall()[0]
    assert (updated, hot) == (20, 20)


def test_many_are_changed_in_one_call(conn: Connection) -> None:
    mine = [tasks.push(conn, Q, {"to": "a"}, headers={"h": 1}) for _ in range(4)]
    others = [tasks.push(conn, Q, {"to": "b"}) for _ in range(2)]
    assert change(conn, {"payload": {"to": "a"}}, {"delay": "1 hour"}, max_tasks=3) == 3
    assert found(conn, {"status": "scheduled"}) == mine[:3]
    assert change(conn, {"status": "scheduled"}, {"queue": R, "priority": 4, "delay": "0"}) == 3
    assert (
        ops.value(
            conn,
            "select count(*) from pgq_task.tasks where queue = %s and priority = 4"
            " and status = 'available'",
            R,
        )
        == 3
    )
    assert [task for task, _ in tasks.claim(conn, R, number=9)] == mine[:3]
    assert change(conn, {"payload": {"to": "b"}}, {"stop": True}) == 2
    assert found(conn, {"status": "stopped"}) == others
    assert change(conn, {"status": "stopped"}, {"delay": "0"}) == 2
    assert change(conn, {"payload": {"to": "unknown"}}, {"stop": True}) == 0
    assert [task for task, _ in tasks.claim(conn, Q, number=9)] == [mine[3], *others]


def test_claimed_tasks_are_left_alone_unless_they_are_asked_for(
    conn: Connection, connect: Connect
) -> None:
    claimed, free, locked = (tasks.push(conn, Q) for _ in range(3))
    tasks.claim(conn, Q)
    worker = connect(autocommit=False)
    worker.execute("select from pgq_task.task where id = %s for update", [locked])
    conn.execute("set lock_timeout = '30 s'")
    assert change(conn, {}, {"stop": True}) == 1
    assert tasks.statuses(conn) == {claimed: "claimed", free: "stopped", locked: "available"}
    worker.rollback()
    assert remove(conn, {"status": ["claimed", "stopped"]}) == 1
    assert remove(conn, {"status": "claimed"}, claimed=True) == 1
    assert tasks.statuses(conn) == {locked: "available"}
    assert [c["reason"] for c in lost(conn, claimed, 2)] == ["missing"]


def lost(conn: Connection, task: int, version: int) -> list[dict[str, Any]]:
    with pytest.raises(psycopg.Error) as caught:
        conn.execute("select pgq_task.finish('w', %s, %s)", [task, version])
    error = from_psycopg(caught.value)
    assert isinstance(error, TaskConflict)
    return error.conflicts


def test_removing_waits_for_the_claims_that_it_is_to_override(
    conn: Connection, connect: Connect
) -> None:
    tasks.push(conn, Q)
    worker = connect(autocommit=False)
    tasks.claim(worker, Q)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(remove, conn, {}, claimed=True)
        tasks.wait_until_blocked(connect(), conn)
        worker.commit()
        assert call.result() == 1


def test_all_tasks_of_a_key_can_be_removed_or_moved(conn: Connection) -> None:
    ids = [tasks.push(conn, Q, order_key="o") for _ in range(20)]
    conn.execute("select pgq_task._hold_back(id) from pgq_task.task")
    assert remove(conn, {"order_key": "o"}, max_tasks=5) == 5
    assert [task for task, _ in tasks.claim(conn, Q, number=9)] == [ids[5]]
    assert change(conn, {"order_key": "o"}, {"queue": R}) == 14
    assert [task for task, _ in tasks.claim(conn, R, number=9)] == [ids[6]]
    assert remove(conn, {}, claimed=True) == 1


def test_of_those_that_go_at_once_the_first_that_is_left_comes(conn: Connection) -> None:
    for call in ("remove", "move", "pop"):
        ids = [tasks.push(conn, Q, order_key="o") for _ in range(6)]
        conn.execute("select pgq_task._hold_back(id) from pgq_task.task")
        if call == "pop":
            conn.execute("select pgq_task.pop(%s)", [Q])
            remove(conn, {"ids": ids[1:2]})
        gone = {"ids": [*ids[:3], ids[4]]}
        assert (change(conn, gone, {"queue": R}) if call == "move" else remove(conn, gone)) >= 2
        assert [task for task, _ in tasks.claim(conn, Q, number=9)] == [ids[3]]
        remove(conn, {"ids": ids[3:4]}, claimed=True)
        assert [task for task, _ in tasks.claim(conn, Q, number=9)] == [ids[5]]
        conn.execute("delete from pgq_task.task")


def test_more_than_fit_into_one_step_are_changed_and_removed(conn: Connection) -> None:
    conn.execute(
        "select count(*) from pgq_task.push_many(%s, array(select '1'::jsonb from generate_series(1, 10500)), order_keys => array(select (n / 100)::text from generate_series(1, 10500) n))",  # noqa: E501
        [Q],
    )
    assert change(conn, {}, {"priority": 1, "attempts": 2}) == 10_500
    assert ops.value(
        conn, "select count(*) from pgq_task.task where priority = 1 and attempts = 2"
    ) == 10_500  # fmt: skip
    assert remove(conn, {"attempts": 2}) == 10_500
    assert tasks.statuses(conn) == {}


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("to", "message"),
    [
        ({}, "the change says nothing"),
        ([], "the change says nothing"),
        ({"id": 1}, "or names a task"),
        ({"prio": 1}, "unknown attribute 'prio'"),
        ({"delay": "-1 s"}, "negative"),
        ({"at": "infinity"}, "infinity"),
        ({"stop": True, "delay": "0"}, "more than one of"),
    ],
)
def test_changes_that_make_no_sense_are_refused(conn: Connection, to: object, message: str) -> None:
    task = tasks.push(conn, Q)
    tasks.push(conn, Q)
    assert message in refused(lambda: change(conn, {}, to))
    assert "nowhere" in refused(lambda: change(conn, {}, {"queue": "nowhere"}), TaskQueueNotFound)
    assert "collision" in refused(lambda: change(conn, {}, {"unique_key": "k"}), TaskConflict)
    assert tasks.statuses(conn)[task] == "available"


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("to", "message", "error"),
    [
        ({"queue": "nowhere"}, "nowhere", TaskQueueNotFound),
        ({"at": "infinity"}, "infinity", InvalidTask),
        ({"delay": "-1 s"}, "negative", InvalidTask),
        ({"at": "2200-01-01", "delay": "1 s"}, "a time and a delay", InvalidTask),
    ],
)
def test_they_are_refused_also_if_there_is_nothing_to_change(
    conn: Connection, to: object, message: str, error: type[Exception]
) -> None:
    assert message in refused(lambda: change(conn, {"ids": []}, to), error)


def test_an_error_queue_to_which_nothing_has_come_is_empty(conn: Connection) -> None:
    listed: LiteralString = "select id from pgq_task.list_tasks(%s)"
    assert conn.execute(listed, [f"{Q}.failed"]).fetchall() == []
    conn.execute("select pgq_task.set_queue_config(%s, 'error_queue', 'bad')", [Q])
    assert conn.execute(listed, ["bad"]).fetchall() == []
    assert f"{Q}.failed" in refused(
        lambda: conn.execute(listed, [f"{Q}.failed"]), TaskQueueNotFound
    )


def test_a_long_error_is_kept_once(conn: Connection) -> None:
    tasks.push(conn, Q)
    ((task, version),) = tasks.claim(conn, Q)
    error = "x" * 3_000_000
    conn.execute("select pgq_task.fail('w', %s, %s, %s, final => true)", [task, version, error])
    row = tasks.task(conn, task)
    assert row is not None
    assert row["error"] == error
    assert row["headers"]["reason"] == "x" * 1000


def bury(conn: Connection, task: int, reason: str = "bad") -> None:
    ((_, version),) = tasks.claim(conn, Q)
    conn.execute("select pgq_task.fail('w', %s, %s, %s, final => true)", [task, version, reason])


def test_failed_tasks_go_back_to_where_they_came_from(conn: Connection) -> None:
    plain = tasks.push(conn, Q, 1)
    bury(conn, plain)
    keyed = tasks.push(conn, Q, 2, headers={"lang": "de"}, unique_key="u", order_key="o")
    bury(conn, keyed, "worse")
    handmade = tasks.push(conn, f"{Q}.failed", 3)
    assert requeue(conn, {"error": "WORSE"}) == 1
    back = tasks.task(conn, keyed)
    assert back is not None
    assert (back["queue"], back["headers"], back["unique_key"]) == (Q, {"lang": "de"}, "u")
    assert (back["order_key"], back["attempts"], back["error"]) == ("o", 0, "worse")
    assert requeue(conn) == 1
    again = tasks.task(conn, plain)
    assert again is not None
    assert (again["queue"], again["headers"], again["status"]) == (Q, None, "available")
    assert requeue(conn) == 0
    assert tasks.statuses(conn)[handmade] == "available"


def test_headers_survive_the_error_queue_whatever_they_are_called(conn: Connection) -> None:
    """Includes errors of earlier failures, in the error queue of the error queue."""
    own = {"origin": "Rome", "reason": "ides", "unique_key": "k", "before": {"x": None}}
    task = tasks.push(conn, Q, headers=own)
    bury(conn, task)
    failed = tasks.task(conn, task)
    assert failed is not None
    assert (failed["headers"]["origin"], failed["headers"]["before"]) == (Q, own)
    ((_, version),) = tasks.claim(conn, f"{Q}.failed")
    conn.execute("select pgq_task.fail('w', %s, %s, 'worse', final => true)", [task, version])
    assert ops.value(conn, "select pgq_task.requeue('mails.failed.failed')") == 1
    again = tasks.task(conn, task)
    assert again is not None
    assert (again["queue"], again["headers"]) == (f"{Q}.failed", failed["headers"])
    assert requeue(conn) == 1
    back = tasks.task(conn, task)
    assert back is not None
    assert (back["queue"], back["headers"]) == (Q, own)


def test_a_header_that_is_null_is_none(conn: Connection) -> None:
    task = tasks.push(conn, Q, headers=None)
    bury(conn, task)
    assert requeue(conn) == 1
    back = tasks.task(conn, task)
    assert back is not None
    assert (back["queue"], back["headers"]) == (Q, None)


def test_only_what_has_failed_is_sent_back(conn: Connection) -> None:
    """A replayed task says where it is from as well, and so may any other."""
    task = tasks.push(conn, f"{Q}", headers={"origin": R})
    assert ops.value(conn, "select pgq_task.requeue(%s)", Q) == 0
    assert found(conn) == [task]


def test_failed_tasks_whose_key_is_taken_stay(conn: Connection) -> None:
    ids = []
    for _ in range(2):
        ids.append(tasks.push(conn, Q, unique_key="u"))
        bury(conn, ids[-1])
    other = tasks.push(conn, Q, unique_key="u")
    assert requeue(conn) == 0
    conn.execute("delete from pgq_task.task where id = %s", [other])
    assert requeue(conn) == 1
    assert found(conn) == ids[:1]
    conn.execute("delete from pgq_task.task where id = %s", [ids[0]])
    conn.execute("select pgq_task.drop_queue(%s)", [Q])
    assert Q in refused(lambda: requeue(conn), TaskQueueNotFound)
