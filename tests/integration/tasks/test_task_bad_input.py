"""Invalid or late calls for tasks: each an error with a code and a remedy, and no
task is touched."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from pgqpy import errors
from pgqpy.tasks import Move, Tasks, TaskWorker
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_db import Connection

Q = "q"
UNKNOWN, LOST, INVALID, NOT_EMPTY = "PQ070", "PQ071", "PQ072", "PQ073"


class State:
    """A queue with a task that ``me`` has, one that ``me`` had, and one that is unclaimed."""

    def __init__(self, conn: Connection) -> None:
        self.me, self.other = Tasks(conn, "me"), Tasks(conn, "other")
        self.me.create_queue(Q)
        self.me.push(Q, "late")
        (self.late,) = self.me.try_claim(Q, lease=0.001)
        (self.taken,) = wait_until(lambda: self.other.try_claim(Q, lease=3600))
        self.me.push(Q, "mine")
        (self.mine,) = self.me.try_claim(Q, lease=3600)
        self.free = self.me.push(Q, "free", unique_key="taken")
        self.names = {
            "late": self.late.id,
            "late_version": self.late.version,
            "mine": self.mine.id,
            "mine_version": self.mine.version,
            "free": self.free,
        }


def everything(conn: Connection) -> list[Any]:
    return [
        conn.execute(query).fetchall()
        for query in (
            "select * from pgq_task.task order by id",
            "select * from pgq_task.queue order by queue_id",
            "select * from pgq_task.lane order by queue_id, priority",
        )
    ]


@pytest.fixture
def state(conn: Connection) -> State:
    return State(conn)


def error_of(conn: Connection, name: str, call: Callable[[], object]) -> Exception:
    """The error that a call ends with, without changing anything."""
    before = everything(conn)
    try:
        call()
    except Exception as error:
        assert everything(conn) == before, f"{name} has changed something"
        return error
    raise AssertionError(f"{name} was not refused")


def refusal(conn: Connection, state: State, call: str) -> psycopg.Error:
    """The error that a call in SQL ends with, and that has a remedy."""
    statement = f"select * from pgq_task.{call}".encode()
    error = error_of(conn, call, lambda: conn.execute(statement, state.names))
    assert isinstance(error, psycopg.Error), call
    assert error.diag.message_primary, call
    # PostgreSQL's own says where the JSON is wrong.
    assert error.diag.message_hint or error.diag.message_detail, call
    return error


MINE = "jsonb_build_object('id', %(mine)s, 'version', %(mine_version)s"


REFUSED: list[tuple[str, str]] = [
    # wrong versions
    (LOST, "finish('me', %(mine)s, %(mine_version)s - 1)"),
    (LOST, "finish('me', %(mine)s, %(mine_version)s + 1)"),
    (LOST, "finish('me', 4711, 1)"),
    (LOST, "finish_and_claim('me', %(mine)s, %(mine_version)s + 1, 'q')"),
    (LOST, "finish_and_claim('stranger', %(mine)s, %(mine_version)s, 'q')"),
    (INVALID, "finish_and_claim('me', %(mine)s, %(mine_version)s, 'q', lease => '-1 s')"),
    (LOST, "fail('me', %(mine)s, 99, 'why')"),
    # what others have, and what they took over when the lease was over
    (LOST, "finish('stranger', %(mine)s, %(mine_version)s)"),
    (LOST, "fail('stranger', %(mine)s, %(mine_version)s, 'why')"),
    (LOST, "finish('me', %(late)s, %(late_version)s)"),
    (LOST, "fail('me', %(late)s, %(late_version)s, 'why')"),
    # no such queue
    (UNKNOWN, "push('nosuch', '1')"),
    (UNKNOWN, "push(null, '1')"),
    (UNKNOWN, "push_many('nosuch', array['1']::jsonb[])"),
    (UNKNOWN, "claim(array['nosuch'], 'me')"),
    (UNKNOWN, "claim(array['q', 'nosuch'], 'me')"),
    (UNKNOWN, "pop('nosuch')"),
    (UNKNOWN, """modify('me', '[{"queue": "nosuch"}]')"""),
    (UNKNOWN, f"modify('me', changes => jsonb_build_array({MINE}, 'queue', 'nosuch')))"),
    (UNKNOWN, "list_tasks('nosuch')"),
    (UNKNOWN, "change_tasks('nosuch', null, '{\"delay\": \"0\"}')"),
    (UNKNOWN, "remove_tasks('nosuch', null)"),
    (UNKNOWN, "requeue('nosuch')"),
    (UNKNOWN, "replay('nosuch')"),
    (UNKNOWN, "finish_and_claim('me', %(mine)s, %(mine_version)s, 'nosuch')"),
    (UNKNOWN, "finish_and_claim('me', %(mine)s, %(mine_version)s, null)"),
    (UNKNOWN, "finished_tasks('nosuch')"),
    (UNKNOWN, "get_statistics('nosuch')"),
    (UNKNOWN, "reset_statistics('nosuch')"),
    (UNKNOWN, "get_queue_info('nosuch')"),
    (UNKNOWN, "queue_is_empty(array['nosuch'])"),
    (UNKNOWN, "set_waiting(array['nosuch'])"),
    (UNKNOWN, "pause_queue('nosuch')"),
    (UNKNOWN, "resume_queue('nosuch')"),
    (UNKNOWN, "restrict_queue('nosuch')"),
    (UNKNOWN, "set_queue_config('nosuch', 'lease', '1 s')"),
    (UNKNOWN, "drop_queue('nosuch')"),
    (NOT_EMPTY, "drop_queue('q')"),
    # payloads, and lists, that are no JSON
    ("22P02", "push('q', '{')"),
    ("22P02", "push('q', 'hello')"),
    ("22P02", "push('q', 'NaN')"),
    (INVALID, """modify('me', deletes => '[{"id": 1}]')"""),
    (INVALID, """modify('me', '[{"queue": "q", "skip_collisions": "maybe"}]')"""),
    # times
    (INVALID, "push('q', '1', at => now() + interval '1 h', delay => '1 h')"),
    (INVALID, "push('q', '1', delay => '-1 s')"),
    (INVALID, "push_many('q', array['1']::jsonb[], delay => '-1 s')"),
    (INVALID, "fail('me', %(mine)s, %(mine_version)s, 'why', '-1 s')"),
    (INVALID, "release('me', array[%(mine)s], array[%(mine_version)s], '{-1 s}')"),
    (INVALID, "release('me', array[%(mine)s], array[%(mine_version)s], '{-10 years}')"),
    # what workers say of their tasks
    (INVALID, "heartbeat('me', '{}', array[%(mine)s])"),
    (INVALID, "heartbeat('me', '{}', array[%(mine)s], '{1,2}', '{1}', '{a}')"),
    (INVALID, "heartbeat('me', '{}', array[%(mine)s], '{1}', '{1,2}', '{a}')"),
    (INVALID, "heartbeat('me', '{}', array[%(mine)s], '{1}', '{1}', '{a,b}')"),
    (INVALID, "heartbeat('me', '{}', array[%(mine)s], '{null}', '{1}', '{a}')"),
    (INVALID, "restrict_queue('q', null)"),
    # leases, limits, names
    (INVALID, "claim(array['q'], 'me', '0 s')"),
    (INVALID, "claim(array['q'], 'me', '-1 s')"),
    (INVALID, "renew('me', array[%(mine)s], array[%(mine_version)s], '0 s')"),
    (INVALID, "claim(array['q'], 'me', max_tasks => 0)"),
    (INVALID, "claim(array['q'], 'me', max_tasks => null)"),
    (INVALID, "claim(array['q'], '')"),
    (INVALID, "claim(array['q'], null)"),
    (INVALID, "claim('{}', 'me')"),
    (INVALID, "claim(null, 'me')"),
    (INVALID, "pop('q', 0)"),
    (INVALID, "list_tasks('q', max_tasks => 0)"),
    (INVALID, "remove_tasks('q', null, 0)"),
    (INVALID, "finished_tasks('q', 0)"),
    (INVALID, "get_queue_info('q', 0)"),
    (INVALID, "get_queue_info('*', 1, 0)"),
    (INVALID, "reserve_ids(0)"),
    (INVALID, "finish_and_claim('me', %(mine)s, %(mine_version)s, 'q', lease => '0')"),
    (INVALID, "finish_many('me', array[1::bigint, 2], array[1])"),
    # lists of which one is shorter or longer
    (INVALID, "finish_many('me', array[1::bigint, 2], array[1, 1], array['1']::jsonb[])"),
    (INVALID, "finish_many('me', array[1::bigint], array[1], array['1', '2']::jsonb[])"),
    (INVALID, "finish_many('me', null, null, array['1']::jsonb[])"),
    (INVALID, "fail_many('me', array[1::bigint, 2], array[1, 1], array['why'])"),
    (INVALID, "fail_many('me', array[1::bigint], array[1], array['why', 'why'])"),
    (INVALID, "fail_many('me', array[1::bigint, 2], array[1, 1], null, array['1 s']::interval[])"),
    (INVALID, "fail_many('me', array[1::bigint], array[1], null, '{1 s,1 s}')"),
    (INVALID, "fail_many('me', array[1::bigint, 2], array[1, 1], null, finals => '{true}')"),
    (INVALID, "fail_many('me', array[1::bigint], array[1], null, finals => '{true,true}')"),
    (INVALID, "release('me', array[1::bigint, 2], array[1, 1], array['1 s']::interval[])"),
    (INVALID, "release('me', array[1::bigint], array[1], '{1 s,1 s}')"),
    (INVALID, "release('me', array[1::bigint], array[1], null, '{why,why}')"),
    (INVALID, "push_many('q', '{1,2}', unique_keys => '{a}')"),
    (INVALID, "set_queue_config('q', 'keep', 'for a while')"),
    (INVALID, "set_queue_config('q', 'colour', 'red')"),
    (INVALID, "set_waiting('{}')"),
    (INVALID, "pop('q', null)"),
    (INVALID, "pop('q', 1, '')"),
    (INVALID, "finished_tasks('q', outcome => 'lost')"),
    (INVALID, "replay('q', max_tasks => 0)"),
    (UNKNOWN, "replay('q', 'nosuch')"),
    (UNKNOWN, "grant_queue('nosuch', '{claim}', 'pgq_reader')"),
    (UNKNOWN, "revoke_queue('nosuch', '{claim}', 'pgq_reader')"),
    ("PQ003", "create_queue(null)"),
]


def test_sql_refuses_it_with_a_code_and_a_remedy(conn: Connection, state: State) -> None:
    for code, call in REFUSED:
        assert refusal(conn, state, call).sqlstate == code, call


SETTING, LIMITS, KEY = "set_queue_config('q', ", "set_limits('q', ", "push_unique('q', '1', 'k', "
SAID: list[tuple[str, str]] = [
    (KEY + "unique_while => 'asleep')", "unique_while is 'asleep'"),
    (KEY + "unique_while => null)", "unique_while is NULL"),
    (KEY + "unique_for => '0')", "unique_for is 00:00:00"),
    (KEY + "unique_for => '11 years')", "unique_for is 11 years"),
    (SETTING + "'lease', '0')", "a lease of 00:00:00"),
    (SETTING + "'lease', '-1 s')", "a lease of"),
    (SETTING + "'lease', 'for ever')", "lease cannot be 'for ever'"),
    (SETTING + "'lease', null)", "lease cannot be NULL"),
    (SETTING + "'lease', '11 years')", "a lease of"),
    (SETTING + "'lease', '0')", "more than 0 and at most 10 years"),
    ("claim(array['q'], 'me', '11 years')", "more than 0 and at most 10 years"),
    (SETTING + "'time_limit', '0')", "a time limit of 00:00:00"),
    (SETTING + "'max_attempts', '0')", "a limit of 0 attempts"),
    (SETTING + "'max_attempts', 'many')", "max_attempts cannot be 'many'"),
    (SETTING + "'keep', '-1 day')", "cannot be kept for"),
    (SETTING + "'keep', null)", "keep cannot be NULL"),
    (SETTING + "'error_queue', 'q')", "would come back to it"),
    (SETTING + "'error_queue', repeat('x', 249))", "at most 248 bytes, so that its error queue"),
    (SETTING + "'name', 'x')", "no task queue parameter 'name'"),
    (SETTING + "null, 'x')", "no task queue parameter NULL"),
    ("create_queue('')", "1 to 248 bytes"),
    ("create_queue(repeat('x', 256))", "1 to 248 bytes"),
    ("create_queue(repeat('x', 249) || '.failed')", "as an error queue's does, up to 255"),
    ("create_queue(repeat('x', 249))", "at most 248 bytes, so that its error queue"),
    *(
        (call.format(priority), "whole number between")
        for priority in (40000, -32769, "null")
        for call in (
            "push('q', '1', priority => {})",
            "push('q', '1', priority => {}, unique_key => 'k')",
            "push_many('q', array['1']::jsonb[], priority => {})",
        )
    ),
    *(
        (f"{LIMITS}{name} => {number})", f"a limit of {number} tasks")
        for name in ("max_running", "max_running_per_key", "rate", "rate_per_key")
        for number in (0, -1)
    ),
    *(
        (f"{LIMITS}rate => 1, rate_period => {period})", "a period of")
        for period in ("'0'", "'-1 second'", "'1 year'", "null")
    ),
    *(
        (f"{function}('q', {arguments})", said)
        for function in ("grant_queue", "revoke_queue")
        for arguments, said in (
            ("'{claims}', 'pgq_reader'", "no action 'claims'"),
            ("'{null}', 'pgq_reader'", "no action NULL"),
            ("'{}', 'pgq_reader'", "no action is given"),
            ("'{claim}', 'unknown at all'", "no role 'unknown at all'"),
            ("'{claim}', null", "no role NULL"),
        )
    ),
]


def test_sql_says_what_is_wrong_or_what_is_allowed(conn: Connection, state: State) -> None:
    for call, said in SAID:
        error = refusal(conn, state, call)
        assert error.sqlstate in (INVALID, "PQ003"), call
        assert said in f"{error.diag.message_primary} {error.diag.message_hint}", call
    conn.execute("select pgq_task.create_queue(repeat('x', 248) || '.failed')")
    conn.execute("select pgq_task.create_queue(repeat('x', 248))")


def test_a_task_that_is_null_is_missing(conn: Connection, state: State) -> None:
    mine = state.mine.id
    for call, message in (
        ("finish('me', 4711, null)", "'me' does not have task 4711 in version NULL"),
        ("finish('me', null, 1)", "'me' does not have task NULL in version 1"),
        ("finish(null, %(mine)s, null)", f"NULL does not have task {mine} in version NULL"),
        ("finish_and_claim('w', null, null, null)", "'w' does not have task NULL in version NULL"),
    ):
        error = errors.from_psycopg(refusal(conn, state, call))
        assert isinstance(error, errors.TaskConflict)
        assert error.message == message
        assert [each["reason"] for each in error.conflicts] == ["missing"]


FAR = datetime(2100, 1, 1, tzinfo=UTC)


PYTHON: list[tuple[type[Exception], Callable[[State], object]]] = [
    (errors.TaskConflict, lambda s: s.other.finish(s.mine)),
    (errors.TaskQueueNotFound, lambda s: s.me.push("nosuch", 1)),
    (errors.InvalidPayload, lambda s: s.me.push(Q, object())),
    (errors.InvalidPayload, lambda s: s.me.push(Q, {"a": math.nan})),
    (errors.InvalidPayload, lambda s: s.me.push(Q, b"\x00")),
    (errors.TaskQueueNotFound, lambda s: s.me.wait_until_empty("nosuch")),
    (errors.InvalidTask, lambda s: s.me.wait_until_empty([])),
    (ValueError, lambda s: s.me.wait_until_empty(Q, wait="soon")),  # type: ignore[arg-type]
    (errors.InvalidPayload, lambda s: s.me.push(Q, "\0")),
    (errors.InvalidPayload, lambda s: s.me.push(Q, "\ud800")),
    (errors.InvalidTask, lambda s: s.me.push(Q, headers={1: 2})),  # type: ignore[dict-item]
    (errors.InvalidTask, lambda s: s.me.push(Q, at="tomorrow")),  # type: ignore[arg-type]
    (errors.InvalidTask, lambda s: s.me.push(Q, at=FAR, delay=1)),
    (ValueError, lambda s: s.me.push(Q, delay="soon")),  # type: ignore[arg-type]
    (errors.InvalidTask, lambda s: s.me.try_claim(Q, max_tasks=2**40)),
    (errors.InvalidTask, lambda s: s.me.try_claim(Q, max_tasks=1.5)),  # type: ignore[arg-type]
    (errors.InvalidTask, lambda s: s.me.try_claim([None])),  # type: ignore[list-item]
    (errors.InvalidTask, lambda s: s.me.replay(Q, finished_from=datetime(2026, 1, 1))),  # noqa: DTZ001
    (errors.InvalidPayload, lambda s: s.me.push_many(Q, [1, {2}])),
    (errors.InvalidPayload, lambda s: s.me.finish(s.mine, result={1})),
    (errors.InvalidTask, lambda s: s.me.push(Q, at=datetime(2030, 1, 1))),  # noqa: DTZ001
    (errors.InvalidTask, lambda s: s.me.push(Q, priority=40_000)),
    (errors.InvalidTask, lambda s: s.me.push(Q, priority=True)),
    (errors.InvalidTask, lambda s: s.me.try_claim(Q, max_tasks=True)),
    (errors.InvalidTask, lambda s: s.me.push(Q, headers=[1])),  # type: ignore[arg-type]
    (errors.InvalidTask, lambda s: s.me.try_claim([])),
    (errors.InvalidTask, lambda s: s.me.push_many(Q, {"to": "ann"})),
    (errors.InvalidTask, lambda s: s.me.push_many(Q, "text")),
    (errors.InvalidTask, lambda s: s.me.finish_many([s.mine], results=[1, 2])),
    (errors.InvalidTask, lambda s: s.me.push(Q, delay=timedelta.max)),
    (errors.TaskQueueNotFound, lambda s: s.me.push(7, 1)),  # type: ignore[arg-type]
    (errors.TaskQueueNotEmpty, lambda s: s.me.drop_queue(Q)),
    (ValueError, lambda s: s.me.push(Q, delay=math.inf)),
    (ValueError, lambda s: s.me.push(Q, delay=math.nan)),
    (ValueError, lambda s: Move("q", delay=math.inf)),
    (errors.InvalidConsumer, lambda s: TaskWorker("", Q, print, batch_size=0).run()),
    (errors.InvalidConsumer, lambda s: TaskWorker("", Q, print, lease=-1).run()),
    (errors.InvalidConsumer, lambda s: TaskWorker("", Q, print, concurrency=0).run()),
    (errors.InvalidConsumer, lambda s: TaskWorker("", Q, print, concurrency=True).run()),
    (errors.InvalidConsumer, lambda s: TaskWorker("", Q).run()),
]


LARGE: list[Callable[[Tasks], object]] = [
    lambda t: t.result(2**70),
    lambda t: t.cancel(2**70),
    lambda t: t.stop(2**70, 1),
    lambda t: t.start(1, 2**31),
    lambda t: t.progress(ids=[2**63]),
    lambda t: t.finished(Q, ids=[1, 2**63]),
    lambda t: t.finished(Q, max_tasks=2**31),
    lambda t: t.replay(Q, ids=[-(2**63) - 1]),
    lambda t: t.replay(Q, max_tasks=2**31),
    lambda t: t.pop(Q, max_tasks=2**31),
    lambda t: t.list(Q, max_tasks=2**31),
    lambda t: t.change(Q, None, {"delay": 1}, max_tasks=2**31),
    lambda t: t.remove(Q, None, max_tasks=2**31),
    lambda t: t.requeue(Q, max_tasks=2**31),
    lambda t: t.queues(max_count=2**31),
    lambda t: t.reserve_ids(2**31),
    lambda t: t.set_limits(Q, rate=2**31),
]


@pytest.mark.any_pg
def test_python_refuses_it_with_a_class_and_a_remedy(conn: Connection, state: State) -> None:
    for number, (expected, call) in enumerate(PYTHON):
        name = f"PYTHON[{number}]"
        error = error_of(conn, name, lambda call=call: call(state))  # type: ignore[misc]
        assert isinstance(error, expected), (name, error)
        assert str(error)
        if isinstance(error, errors.PgqError) and expected is not errors.InvalidPayload:
            assert error.hint, name
    for number, large in enumerate(LARGE):
        name = f"LARGE[{number}]"
        error = error_of(conn, name, lambda large=large: large(state.me))  # type: ignore[misc]
        assert isinstance(error, errors.InvalidTask), (name, error)
        assert "Give a whole number between -" in str(error.hint), name
