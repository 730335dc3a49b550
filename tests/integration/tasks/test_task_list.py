"""Tasks are found by what they are, and changed and removed by the hundred."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqpy.errors import InvalidTask, TaskConflict, TaskQueueNotFound
from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops as tasks
from tests.fixtures.fix_client import PATIENCE
from tests.fixtures.fix_db import Calls, Connect, Connection
from tests.fixtures.task_ops import refused, task_of

Q, R = "mails", "letters"


@pytest.fixture(autouse=True)
def task_queues(conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue(q) from unnest(%s::text[]) q", [[Q, R]])


def found(
    conn: Connection, conditions: dict[str, Any] | None = None, limit: int | None = 100
) -> list[int]:
    filters = None if conditions is None else Jsonb(conditions)
    statement = "select id from pgq_task.list_tasks(%s, %s, %s)"
    return [task for (task,) in conn.execute(statement, [Q, filters, limit])]


def call(conn: Connection, function: str, *arguments: object, **options: object) -> int:
    """The number of tasks that a function has changed."""
    values = [Jsonb(each) if each is not None else None for each in arguments]
    given = ", ".join(["%s"] * len(values) + [f"{name} => %s" for name in options])
    statement = f"select pgq_task.{function}(%s, {given})".encode()
    ((count,),) = conn.execute(statement, [Q, *values, *options.values()]).fetchall()
    return int(count)


def change(conn: Connection, conditions: object, to: object, **options: object) -> int:
    return call(conn, "change_tasks", conditions, to, **options)


def remove(conn: Connection, conditions: object, **options: object) -> int:
    return call(conn, "remove_tasks", conditions, **options)


def requeue(conn: Connection, conditions: object = None, queue: str = f"{Q}.failed") -> int:
    statement = "select pgq_task.requeue(%s, %s)"
    return int(ops.value(conn, statement, queue, conditions and Jsonb(conditions)))


def test_each_condition_finds_what_meets_it(conn: Connection) -> None:
    plain = tasks.push(conn, Q, {"to": "a", "lines": [1, 2]}, headers={"lang": "de"}, priority=2)
    # Behind tomorrow, whatever the time is now.
    later = tasks.push(conn, Q, {"to": "b"}, delay=timedelta(days=3), unique_key="u")
    first = tasks.push(conn, Q, order_key="o", priority=1)
    second = tasks.push(conn, Q, order_key="o", priority=1)
    stopped = tasks.push(conn, Q, priority=-1)
    conn.execute("select pgq_task.stop(%s)", [stopped])
    failed = tasks.push(conn, Q, priority=9)
    tasks.fail(conn, tasks.claim(conn, Q)[0], "Host NOT found: 50%")
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


def test_lists_have_a_limit_and_cover_all_queues_if_none_is_named(conn: Connection) -> None:
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


WRONG: list[tuple[Any, str]] = [
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
]


def test_filters_that_make_no_sense_are_refused(conn: Connection) -> None:
    task = tasks.push(conn, Q)
    for wrong, message in WRONG:
        for attempt in (
            lambda wrong=wrong: found(conn, wrong),
            lambda wrong=wrong: remove(conn, wrong),
            lambda wrong=wrong: change(conn, wrong, {"stop": True}),
        ):
            assert message in refused(attempt)
    assert tasks.statuses(conn) == {task: "available"}
    assert "limit of -1" in refused(lambda: remove(conn, {}, max_tasks=-1))


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
    # Claims touch no index of payloads.
    hot = "select n_tup_upd, n_tup_hot_upd from pg_stat_xact_user_tables where relname = 'task'"
    conn.execute("vacuum pgq_task.task")
    with conn.transaction(force_rollback=True):
        assert len(tasks.claim(conn, Q, number=20)) == 20
        assert conn.execute(hot).fetchall() == [(20, 20)]
    assert ops.value(conn, "select pgq_task.index_payload(%s)", Q) == 0
    assert ops.value(conn, "select pgq_task.drop_payload_index(%s)", Q) == 1
    assert ops.value(conn, "select pgq_task.drop_payload_index(%s)", Q) == 0
    assert ops.value(conn, "select pgq_task.index_payload(%s)", Q) == 1
    assert found(conn, {"payload": {"n": 3}}) == before == [ids[3], ids[13], ids[23]]
    assert "nowhere" in refused(
        lambda: conn.execute("select pgq_task.index_payload('nowhere')"), TaskQueueNotFound
    )


def test_an_index_that_was_not_completed_is_made_again(
    conn: Connection, connect: Connect, calls: Calls
) -> None:
    tasks.push(conn, Q, 1)
    blocker, builder = connect(autocommit=False), connect()
    tasks.push(blocker, Q, 2)
    statement = ops.value(conn, "select pgq_task.payload_index_sql(%s)", Q)
    building = calls.blocked(lambda own: own.execute(statement), builder)
    builder.cancel_safe()
    with pytest.raises(psycopg.errors.QueryCanceled):
        building.result(PATIENCE)
    blocker.commit()
    assert found(conn, {"payload": 2})
    assert ops.value(conn, "select pgq_task.index_payload(%s)", Q) == 1
    assert found(conn, {"payload": 2})


def test_many_are_changed_in_one_call(conn: Connection) -> None:
    mine = [tasks.push(conn, Q, {"to": "a"}, headers={"h": 1}) for _ in range(4)]
    others = [tasks.push(conn, Q, {"to": "b"}) for _ in range(2)]
    assert change(conn, {"payload": {"to": "a"}}, {"delay": "1 hour"}, max_tasks=3) == 3
    assert found(conn, {"status": "scheduled"}) == mine[:3]
    assert change(conn, {"status": "scheduled"}, {"queue": R, "priority": 4, "delay": "0"}) == 3
    assert tasks.ids(tasks.claim(conn, R, number=9)) == mine[:3]
    assert change(conn, {"payload": {"to": "b"}}, {"stop": True}) == 2
    assert found(conn, {"status": "stopped"}) == others
    assert change(conn, {"status": "stopped"}, {"delay": "0"}) == 2
    assert change(conn, {"payload": {"to": "unknown"}}, {"stop": True}) == 0
    assert tasks.ids(tasks.claim(conn, Q, number=9)) == [mine[3], *others]


def test_claimed_tasks_are_left_alone_by_default(conn: Connection, connect: Connect) -> None:
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
    assert "does not have task" in refused(lambda: tasks.finish(conn, (claimed, 2)), TaskConflict)


def test_removing_waits_for_claims(conn: Connection, connect: Connect, calls: Calls) -> None:
    tasks.push(conn, Q)
    worker = connect(autocommit=False)
    tasks.claim(worker, Q)
    removing = calls.blocked(lambda own: remove(own, {}, claimed=True), conn)
    worker.commit()
    assert removing.result() == 1


def test_all_tasks_of_a_key_can_be_removed_or_moved(conn: Connection) -> None:
    ids = [tasks.push(conn, Q, order_key="o") for _ in range(20)]
    conn.execute("select pgq_task._hold_back(id) from pgq_task.task")
    assert remove(conn, {"order_key": "o"}, max_tasks=5) == 5
    assert tasks.ids(tasks.claim(conn, Q, number=9)) == [ids[5]]
    assert change(conn, {"order_key": "o"}, {"queue": R}) == 14
    assert tasks.ids(tasks.claim(conn, R, number=9)) == [ids[6]]
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
        assert tasks.ids(tasks.claim(conn, Q, number=9)) == [ids[3]]
        remove(conn, {"ids": ids[3:4]}, claimed=True)
        assert tasks.ids(tasks.claim(conn, Q, number=9)) == [ids[5]]
        conn.execute("delete from pgq_task.task")


def test_more_than_fit_into_one_step_are_changed_and_removed(conn: Connection) -> None:
    for key in range(105):
        tasks.push_many(conn, Q, 100, str(key))
    assert change(conn, {}, {"priority": 1, "attempts": 2}) == 10_500
    changed = "select count(*) from pgq_task.task where priority = 1 and attempts = 2"
    assert ops.value(conn, changed) == 10_500
    assert remove(conn, {"attempts": 2}) == 10_500
    assert tasks.statuses(conn) == {}


def test_changes_that_make_no_sense_are_refused(conn: Connection) -> None:
    task = tasks.push(conn, Q)
    tasks.push(conn, Q)
    wrong: list[tuple[Any, str, type[Exception]]] = [
        ({}, "the change says nothing", InvalidTask),
        ([], "the change says nothing", InvalidTask),
        ({"id": 1}, "or names a task", InvalidTask),
        ({"prio": 1}, "unknown attribute 'prio'", InvalidTask),
        ({"delay": "-1 s"}, "negative", InvalidTask),
        ({"at": "infinity"}, "infinity", InvalidTask),
        ({"stop": True, "delay": "0"}, "more than one of", InvalidTask),
        ({"at": "2200-01-01", "delay": "1 s"}, "a time and a delay", InvalidTask),
        ({"queue": "nowhere"}, "nowhere", TaskQueueNotFound),
    ]
    for to, message, error in wrong:
        # also if there is nothing to change
        assert message in refused(lambda to=to: change(conn, {}, to), error)  # type: ignore[misc]
        assert message in refused(lambda to=to: change(conn, {"ids": []}, to), error)  # type: ignore[misc]
    assert "collision" in refused(lambda: change(conn, {}, {"unique_key": "k"}), TaskConflict)
    assert tasks.statuses(conn)[task] == "available"


def test_an_error_queue_to_which_nothing_has_come_is_empty(conn: Connection) -> None:
    listed: LiteralString = "select id from pgq_task.list_tasks(%s)"
    assert conn.execute(listed, [f"{Q}.failed"]).fetchall() == []
    conn.execute("select pgq_task.set_queue_config(%s, 'error_queue', 'bad')", [Q])
    assert conn.execute(listed, ["bad"]).fetchall() == []
    assert f"{Q}.failed" in refused(
        lambda: conn.execute(listed, [f"{Q}.failed"]), TaskQueueNotFound
    )


def test_a_long_error_is_kept_once(conn: Connection) -> None:
    task = tasks.push(conn, Q)
    error = "x" * 3_000_000
    bury(conn, error)
    row = task_of(conn, task)
    assert row["error"] == error
    assert row["headers"]["reason"] == "x" * 1000


def bury(conn: Connection, reason: str = "bad", queue: str = Q) -> None:
    tasks.fail(conn, tasks.claim(conn, queue)[0], reason, final=True)


def test_failed_tasks_go_back_to_where_they_came_from(conn: Connection) -> None:
    plain = tasks.push(conn, Q, 1, headers=None)
    bury(conn)
    keyed = tasks.push(conn, Q, 2, headers={"lang": "de"}, unique_key="u", order_key="o")
    bury(conn, "worse")
    handmade = tasks.push(conn, f"{Q}.failed", 3)
    assert requeue(conn, {"error": "WORSE"}) == 1
    back = task_of(conn, keyed)
    assert (back["queue"], back["headers"], back["unique_key"]) == (Q, {"lang": "de"}, "u")
    assert (back["order_key"], back["attempts"], back["error"]) == ("o", 0, "worse")
    assert requeue(conn) == 1
    again = task_of(conn, plain)
    assert (again["queue"], again["headers"], again["status"]) == (Q, None, "available")
    assert requeue(conn) == 0
    assert tasks.statuses(conn)[handmade] == "available"


def test_headers_survive_the_error_queue_whatever_they_are_called(conn: Connection) -> None:
    """Includes errors of earlier failures, in the error queue of the error queue."""
    own = {"origin": "Rome", "reason": "ides", "unique_key": "k", "before": {"x": None}}
    task = tasks.push(conn, Q, headers=own)
    bury(conn)
    failed = task_of(conn, task)
    assert (failed["headers"]["origin"], failed["headers"]["before"]) == (Q, own)
    bury(conn, "worse", f"{Q}.failed")
    assert requeue(conn, queue="mails.failed.failed") == 1
    again = task_of(conn, task)
    assert (again["queue"], again["headers"]) == (f"{Q}.failed", failed["headers"])
    assert requeue(conn) == 1
    back = task_of(conn, task)
    assert (back["queue"], back["headers"]) == (Q, own)


def test_only_what_has_failed_is_sent_back(conn: Connection) -> None:
    """A replayed task says where it is from as well, and so may any other."""
    task = tasks.push(conn, f"{Q}", headers={"origin": R})
    assert requeue(conn, queue=Q) == 0
    assert found(conn) == [task]


def test_failed_tasks_whose_key_is_taken_stay(conn: Connection) -> None:
    ids = []
    for _ in range(2):
        ids.append(tasks.push(conn, Q, unique_key="u"))
        bury(conn)
    other = tasks.push(conn, Q, unique_key="u")
    assert requeue(conn) == 0
    conn.execute("delete from pgq_task.task where id = %s", [other])
    assert requeue(conn) == 1
    assert found(conn) == ids[:1]
    conn.execute("delete from pgq_task.task where id = %s", [ids[0]])
    conn.execute("select pgq_task.drop_queue(%s)", [Q])
    assert Q in refused(lambda: requeue(conn), TaskQueueNotFound)


def test_workers_are_found_among_many_tasks_that_wait(conn: Connection) -> None:
    tasks.push_many(conn, Q, 50)
    tasks.push(conn, R)
    tasks.claim(conn, Q, claimant="swept", lease="1 hour", number=2)
    # A sweep moves them behind the others, if they were not claimed just now.
    conn.execute("update pgq_task.task set last_attempt = last_attempt - interval '2 s'")
    tasks.sweep(conn, 2)
    for queue in (Q, R):
        tasks.claim(conn, queue, claimant="quick", lease="1 hour")
    found = "select claimant, tasks, queues from pgq_task.get_workers(%s)"
    for most in (3, None):
        assert conn.execute(found, [most]).fetchall() == [
            ("swept", 2, [Q]),
            ("quick", 2, [R, Q]),
        ]
    assert "a limit of 0" in refused(lambda: conn.execute(found, [0]))
