"""Invalid or late calls for tasks: each an error with a code and a remedy, and no
task is touched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgqpy import errors
from pgqpy.tasks import Move, Pipeline, Task, Tasks, TaskWorker
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_db import Connection

Q = "q"
UNKNOWN, LOST, INVALID, NOT_EMPTY = "PQ070", "PQ071", "PQ072", "PQ073"


class State:
    """A queue with a task that ``me`` has, one that ``me`` had, and one that is unclaimed."""

    def __init__(self, conn: Connection) -> None:
        self.me, self.other = Tasks(conn, "me"), Tasks(conn, "other")
        if not self.me.create_queue(Q):  # another case was here before
            self.me.drop_queue(Q, force=True)
            self.me.create_queue(Q)
        self.me.push(Q, "late")
        (self.late,) = self.me.try_claim(Q, lease=0.001)
        while not (taken := self.other.try_claim(Q, lease=3600)):
            pass
        self.taken = taken[0]
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
def state(conn: Connection) -> Iterator[State]:
    """Fails the test if what it tried has changed anything."""
    made = State(conn)
    before = everything(conn)
    yield made
    assert everything(conn) == before


REFUSED: list[tuple[str, str]] = [
    # wrong versions
    (LOST, "finish('me', %(mine)s, %(mine_version)s - 1)"),
    (LOST, "finish('me', %(mine)s, %(mine_version)s + 1)"),
    (LOST, "finish('me', 4711, 1)"),
    (LOST, "finish('me', null, null)"),
    (LOST, "finish_and_claim('me', %(mine)s, %(mine_version)s + 1, 'q')"),
    (LOST, "finish_and_claim('stranger', %(mine)s, %(mine_version)s, 'q')"),
    (LOST, "finish_and_claim('me', null, null, 'q')"),
    (LOST, "fail('me', %(mine)s, 99, 'why')"),
    (LOST, """modify('me', deletes => '[{"id": 4711, "version": 1}]')"""),
    (LOST, """modify('me', depends => '[{"id": 4711, "version": 1}]')"""),
    (LOST, "stop(4711)"),
    (LOST, "start(%(free)s, 99)"),
    # what others have, and what they took over when the lease was over
    (LOST, "finish('stranger', %(mine)s, %(mine_version)s)"),
    (LOST, "fail('stranger', %(mine)s, %(mine_version)s, 'why')"),
    (LOST, "stop(%(mine)s)"),
    (LOST, "finish('me', %(late)s, %(late_version)s)"),
    (LOST, "fail('me', %(late)s, %(late_version)s, 'why')"),
    # unique keys that others have
    (LOST, """modify('me', '[{"queue": "q", "unique_key": "taken"}]')"""),
    # no such queue
    (UNKNOWN, "push('nosuch', '1')"),
    (UNKNOWN, "push(null, '1')"),
    (UNKNOWN, "push_many('nosuch', array['1']::jsonb[])"),
    (UNKNOWN, "claim(array['nosuch'], 'me')"),
    (UNKNOWN, "claim(array['q', 'nosuch'], 'me')"),
    (UNKNOWN, "pop('nosuch')"),
    (UNKNOWN, """modify('me', '[{"queue": "nosuch"}]')"""),
    (UNKNOWN, "list_tasks('nosuch')"),
    (UNKNOWN, "change_tasks('nosuch', null, '{\"delay\": \"0\"}')"),
    (UNKNOWN, "remove_tasks('nosuch', null)"),
    (UNKNOWN, "requeue('nosuch')"),
    (UNKNOWN, "replay('nosuch')"),
    (UNKNOWN, "finish_and_claim('me', %(mine)s, %(mine_version)s, 'nosuch')"),
    (UNKNOWN, "finish_and_claim('me', %(mine)s, %(mine_version)s, null)"),
    (UNKNOWN, "finished_tasks('nosuch')"),
    (UNKNOWN, "get_statistics('nosuch')"),
    (UNKNOWN, "get_queue_info('nosuch')"),
    (UNKNOWN, "queue_is_empty(array['nosuch'])"),
    (UNKNOWN, "set_waiting(array['nosuch'])"),
    (UNKNOWN, "pause_queue('nosuch')"),
    (UNKNOWN, "resume_queue('nosuch')"),
    (UNKNOWN, "restrict_queue('nosuch')"),
    (UNKNOWN, "grant_queue('nosuch', array['read'], 'pgq_reader')"),
    (UNKNOWN, "set_queue_config('nosuch', 'lease', '1 s')"),
    (UNKNOWN, "drop_queue('nosuch')"),
    (NOT_EMPTY, "drop_queue('q')"),
    # payloads, and lists, that are no JSON
    ("22P02", "push('q', '{')"),
    ("22P02", "push('q', 'hello')"),
    ("22P02", "push('q', 'NaN')"),
    (INVALID, "modify('me', '{}')"),
    (INVALID, "modify('me', '[1]')"),
    (INVALID, """modify('me', '[{"queue": "q", "colour": "red"}]')"""),
    (INVALID, """modify('me', deletes => '[{"id": 1}]')"""),
    (INVALID, """modify('me', '[{"queue": "q", "headers": 1}]')"""),
    (INVALID, "list_tasks('q', '[]')"),
    (INVALID, """list_tasks('q', '{"colour": "red"}')"""),
    (INVALID, """list_tasks('q', '{"status": "asleep"}')"""),
    # times
    (INVALID, "push('q', '1', at => 'infinity')"),
    (INVALID, "push('q', '1', at => now() + interval '1 h', delay => '1 h')"),
    (INVALID, "push('q', '1', delay => '-1 s')"),
    (INVALID, "push_many('q', array['1']::jsonb[], delay => '-1 s')"),
    (INVALID, """modify('me', '[{"queue": "q", "at": "infinity"}]')"""),
    (INVALID, """modify('me', '[{"queue": "q", "at": "yesterday or so"}]')"""),
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
    (INVALID, "set_queue_config('q', 'max_attempts', '0')"),
    (INVALID, "set_queue_config('q', 'lease', '0')"),
    (INVALID, "set_queue_config('q', 'keep', 'for a while')"),
    (INVALID, "set_queue_config('q', 'colour', 'red')"),
    # what fails would come back to where it failed, for ever
    (INVALID, "set_queue_config('q', 'error_queue', 'q')"),
    ("PQ003", "create_queue('')"),
    ("PQ003", "create_queue(null)"),
    ("PQ003", "create_queue(repeat('x', 256))"),
    (INVALID, "create_queue(repeat('x', 249))"),
]


@pytest.mark.one_database
@pytest.mark.parametrize(("code", "call"), REFUSED, ids=[call for _, call in REFUSED])
def test_sql_refuses_it_with_a_code_and_a_remedy(
    conn: Connection, state: State, code: str, call: str
) -> None:
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(f"select * from pgq_task.{call}".encode(), state.names)
    assert caught.value.sqlstate == code
    assert caught.value.diag.message_primary
    # PostgreSQL's own says where the JSON is wrong.
    assert caught.value.diag.message_hint or caught.value.diag.message_detail


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("finish('me', 4711, null)", "'me' does not have task 4711 in version NULL"),
        ("finish('me', null, 1)", "'me' does not have task NULL in version 1"),
        ("finish(null, %(mine)s, null)", "NULL does not have task {mine} in version NULL"),
        ("finish_and_claim('w', null, null, null)", "'w' does not have task NULL in version NULL"),
    ],
)
def test_a_task_that_is_null_is_missing(
    conn: Connection, state: State, call: str, message: str
) -> None:
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(f"select * from pgq_task.{call}".encode(), state.names)
    error = errors.from_psycopg(caught.value)
    assert isinstance(error, errors.TaskConflict)
    assert error.message == message.format(**state.names)
    assert [each["reason"] for each in error.conflicts] == ["missing"]


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        ("create_queue('')", "1 to 248 bytes"),
        ("create_queue(repeat('x', 256))", "1 to 248 bytes"),
        (
            "create_queue(repeat('x', 249) || '.failed')",
            "ends in .failed, as an error queue's does, up to 255",
        ),
        ("create_queue(repeat('x', 249))", "at most 248 bytes, so that its error queue"),
        (
            "set_queue_config('q', 'error_queue', repeat('x', 249))",
            "at most 248 bytes, so that its error queue",
        ),
        ("claim(array['q'], 'me', '11 years')", "more than 0 and at most 10 years"),
        ("set_queue_config('q', 'lease', '0')", "more than 0 and at most 10 years"),
    ],
)
def test_the_remedy_says_what_is_allowed(
    conn: Connection, state: State, call: str, remedy: str
) -> None:
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(f"select * from pgq_task.{call}".encode(), state.names)
    assert remedy in str(caught.value.diag.message_hint)
    with conn.transaction(force_rollback=True):
        conn.execute("select pgq_task.create_queue(repeat('x', 248) || '.failed')")
        conn.execute("select pgq_task.create_queue(repeat('x', 248))")


def test_two_error_queues_that_lead_to_each_other_are_refused(
    conn: Connection, state: State
) -> None:
    with conn.transaction(force_rollback=True):
        state.me.create_queue("w")
        state.me.set_config("w", "error_queue", Q)
        with pytest.raises(errors.InvalidTask, match="would come back"):
            state.me.set_config(Q, "error_queue", "w")


PYTHON: list[tuple[type[Exception], Callable[[State], object]]] = [
    (errors.TaskConflict, lambda s: s.other.finish(s.mine)),
    (errors.TaskConflict, lambda s: s.me.finish(replace(s.mine, version=77))),
    (errors.TaskConflict, lambda s: s.me.finish(s.late)),
    (errors.TaskConflict, lambda s: s.me.fail(s.late, "why")),
    (errors.TaskConflict, lambda s: s.me.modify(deletes=[{"id": s.late.id, "version": 2}])),
    (errors.TaskQueueNotFound, lambda s: s.me.push("nosuch", 1)),
    (errors.TaskQueueNotFound, lambda s: s.me.try_claim([Q, "nosuch"])),
    (errors.InvalidPayload, lambda s: s.me.push(Q, object())),
    (errors.InvalidPayload, lambda s: s.me.push(Q, {"a": math.nan})),
    (errors.InvalidPayload, lambda s: s.me.push(Q, "\0")),
    (errors.InvalidPayload, lambda s: s.me.push_many(Q, [1, {2}])),
    (errors.InvalidPayload, lambda s: s.me.finish(s.mine, result={1})),
    (errors.InvalidTask, lambda s: s.me.push(Q, at=datetime(2030, 1, 1))),  # noqa: DTZ001
    (errors.InvalidTask, lambda s: s.me.push(Q, delay=-1)),
    (errors.InvalidTask, lambda s: s.me.push(Q, priority=40_000)),
    (errors.InvalidTask, lambda s: s.me.push(Q, headers=[1])),  # type: ignore[arg-type]
    (errors.InvalidTask, lambda s: s.me.try_claim([])),
    (errors.InvalidTask, lambda s: s.me.try_claim(Q, max_tasks=0)),
    (errors.InvalidTask, lambda s: s.me.try_claim(Q, lease=0)),
    (errors.InvalidTask, lambda s: s.me.fail(s.mine, "why", delay=-1)),
    (errors.InvalidTask, lambda s: s.me.push_many(Q, {"to": "ann"})),
    (errors.InvalidTask, lambda s: s.me.push_many(Q, "text")),
    (errors.InvalidTask, lambda s: s.me.finish_many([s.mine], results=[1, 2])),
    (errors.InvalidTask, lambda s: s.me.push(Q, delay=timedelta.max)),
    (errors.TaskQueueNotFound, lambda s: s.me.push(7, 1)),  # type: ignore[arg-type]
    (errors.InvalidTask, lambda s: s.me.list(Q, {"status": "asleep"})),
    (errors.TaskQueueNotEmpty, lambda s: s.me.drop_queue(Q)),
    (ValueError, lambda s: s.me.push(Q, delay=math.inf)),
    (ValueError, lambda s: s.me.push(Q, delay=math.nan)),
    (ValueError, lambda s: Move("q", delay=math.inf)),
    (errors.InvalidConsumer, lambda s: TaskWorker("", Q, print, batch_size=0).run()),
    (errors.InvalidConsumer, lambda s: TaskWorker("", Q, print, lease=-1).run()),
    (errors.InvalidConsumer, lambda s: TaskWorker("", Q, print, concurrency=0).run()),
    (errors.InvalidConsumer, lambda s: TaskWorker("", Q).run()),
]


@pytest.mark.one_database
@pytest.mark.any_pg
@pytest.mark.parametrize(("error", "call"), PYTHON)
def test_python_refuses_it_with_a_class_and_a_remedy(
    state: State, error: type[Exception], call: Callable[[State], object]
) -> None:
    with pytest.raises(error) as caught:
        call(state)
    assert str(caught.value)
    if isinstance(caught.value, errors.PgqError) and error is not errors.InvalidPayload:
        assert caught.value.hint


def test_the_error_names_lost_tasks_and_the_reasons(state: State) -> None:
    deletes = [
        {"id": state.late.id, "version": state.late.version},
        {"id": state.mine.id, "version": state.mine.version},
        {"id": 4711, "version": 1},
    ]
    with pytest.raises(errors.TaskConflict) as caught:
        state.other.modify(deletes=deletes)
    found = [(each["id"], each["reason"]) for each in caught.value.conflicts]
    assert sorted(found) == sorted(
        [(state.late.id, "missing"), (state.mine.id, "claimed"), (4711, "missing")]
    )


def test_an_expired_lease_is_valid_until_another_worker_takes_the_task(
    conn: Connection,
) -> None:
    """The version decides, so nothing is done twice, and no work is thrown away."""
    tasks = Tasks(conn, "me")
    tasks.create_queue(Q)
    tasks.push(Q, 1)
    (task,) = tasks.try_claim(Q, lease=0.001)
    conn.execute("select pg_sleep(0.01)")
    tasks.finish(task)
    assert tasks.is_empty(Q)


def nothing(conn: object, task: Task) -> None:
    """A station that does nothing."""


def test_a_pipeline_that_tasks_never_leave_is_refused() -> None:
    pipeline = Pipeline("p", start="a")
    pipeline.direct("a", to="b")(nothing)
    pipeline.direct("b", to="a")(nothing)
    with pytest.raises(errors.InvalidPipeline, match="ever leaves") as caught:
        pipeline.check()
    assert caught.value.hint


@pytest.mark.any_pg
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["push", Q, "[" * 100_000], "nested too deeply"),
        (["push", Q, '"\udcff"'], "not UTF-8"),
        (["push", "\udcff", "1"], "not UTF-8"),
        (["push", Q, "1", "--at", "0001-01-01"], "no time such as"),
        (["push", Q, "1", "--at", "infinity"], "no time such as"),
        (["push", Q, "1", "--priority", "40000"], "range"),
        (["list", Q, "-n", "99999999999"], "range"),
        (["list", Q, "--attempts", "99999999999"], "range"),
        (["show", "99999999999999999999"], "range"),
    ],
)
def test_the_command_line_finds_it_before_it_connects(
    cli: Cli, arguments: list[str], said: str
) -> None:
    assert said in cli.fails("task", *arguments, exit_code=2)


@pytest.mark.any_pg
def test_the_error_of_a_program_that_cannot_be_loaded_is_its_own(cli: Cli, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('no settings')\n")
    said = cli.fails("task", "work", f"{broken}:app")
    assert "RuntimeError: no settings" in said
    assert "defect" not in said
    broken.write_text("def send(:\n")
    assert "SyntaxError" in cli.fails("task", "work", f"{broken}:app")


@pytest.mark.any_pg
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["push", "nosuch", "1"], "pgqpy task create"),
        (["list", Q, "--older-than", "a while"], "a while"),
        (["finish", "4711"], "there is no task 4711"),
        (["config", Q, "error_queue", Q], "would come back"),
        (["drop", Q], "--force"),
        (["push", Q, "1", "--delay", "soon"], "intervals are written like"),
        (["push", Q, "1", "--delay", "1000000 years"], "200 years"),
        (["start", "3", "--delay", "soon"], "cannot be read"),
        (["list", Q, "--older-than", "9999999999 years"], "intervals are written like"),
        (["finish", "--", "-7"], "there is no task -7"),
    ],
)
def test_the_command_line_refuses_it_in_a_line(
    cli: Cli, conn: Connection, arguments: list[str], said: str
) -> None:
    State(conn)
    before = everything(conn)
    assert said in cli.fails("task", *arguments)
    assert everything(conn) == before
