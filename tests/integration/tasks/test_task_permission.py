"""Rights of a role on the tasks of a queue, action by action, by any call."""

from __future__ import annotations

from collections.abc import Callable
from typing import LiteralString

import psycopg
import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

from pgqpy.errors import PermissionDenied, from_psycopg
from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops as tasks
from tests.fixtures.fix_db import AsRole, Connect, Connection, MakeRole

OPEN, CLOSED = "open", "closed"
ROLE, TEAM, OTHER = "test_anna", "test_the team", "test_bert"
ACTIONS = ("insert", "claim", "change", "delete", "read")


@pytest.fixture(autouse=True)
def roles(conn: Connection, make_role: MakeRole) -> None:
    """Anna and Bert may call all functions; Anna is in a team."""
    conn.execute("select pgq_task.create_queue(q) from unnest(%s::text[]) q", [[OPEN, CLOSED]])
    conn.execute("select pgq_task.restrict_queue(%s)", [CLOSED])
    make_role("the team")
    make_role("anna", "pgq_reader", "pgq_writer", TEAM)
    make_role("bert", "pgq_reader", "pgq_writer")


@pytest.fixture
def anna(as_role: AsRole) -> Connection:
    return as_role(ROLE)


def grant(conn: Connection, *actions: str, role: str = ROLE, queue: str = CLOSED) -> None:
    conn.execute("select pgq_task.grant_queue(%s, %s, %s)", [queue, list(actions), role])


def revoke(conn: Connection, *actions: str, role: str = ROLE, queue: str = CLOSED) -> None:
    conn.execute("select pgq_task.revoke_queue(%s, %s, %s)", [queue, list(actions), role])


def denied(call: Callable[[], object]) -> str:
    with pytest.raises(errors.InsufficientPrivilege) as caught:
        call()
    error = from_psycopg(caught.value)
    assert isinstance(error, PermissionDenied)
    assert error.hint
    assert "grant_queue" in error.hint
    return error.message


ONE: LiteralString = "jsonb_build_array(jsonb_build_object('id', %(task)s, 'version', %(version)s))"
CALLS: dict[str, tuple[LiteralString, ...]] = {
    "insert": (
        "select pgq_task.push(%(q)s, '1')",
        "select pgq_task.push(%(q)s, '1', unique_key => 'k')",
        "select pgq_task.push_many(%(q)s, array['1'::jsonb])",
        "select pgq_task.modify('w', '[{\"queue\": \"closed\"}]')",
    ),
    "claim": (
        "select pgq_task.claim(array[%(q)s], 'w')",
        "select pgq_task.pop(%(q)s)",
        "select pgq_task.renew('w', array[%(task)s], array[%(version)s])",
        "select pgq_task.release('w', array[%(task)s], array[%(version)s])",
        "select pgq_task.fail('w', %(task)s, %(version)s, 'bad')",
        "select pgq_task.finish('w', %(task)s, %(version)s)",
        "select pgq_task.finish_and_claim('w', %(task)s, %(version)s, %(q)s)",
        "select pgq_task.finish_many('w', array[%(task)s], array[%(version)s])",
    ),
    "change": (
        "select pgq_task.modify('w', changes => " + ONE + ")",
        "select pgq_task.stop(%(free)s)",
        "select pgq_task.start(%(free)s)",
        "select pgq_task.change_tasks(%(q)s, '{}', '{\"delay\": \"1 s\"}')",
        "select pgq_task.requeue(%(q)s)",
    ),
    "delete": (
        "select pgq_task.modify('w', deletes => " + ONE + ")",
        "select pgq_task.remove_tasks(%(q)s, '{}')",
    ),
    "read": (
        "select pgq_task.list_tasks(%(q)s)",
        "select pgq_task.queue_is_empty(array[%(q)s])",
        "select pgq_task.next_time(array[%(q)s])",
        "select pgq_task.finished_tasks(%(q)s)",
        "select pgq_task.modify('w', depends => " + ONE + ")",
    ),
}
"""The action that each call needs, for a task that 'w' has claimed, and a free one."""


@pytest.mark.parametrize("action", ACTIONS)
def test_each_action_is_granted_by_itself(
    conn: Connection, anna: Connection, as_role: AsRole, action: str
) -> None:
    bert = as_role(OTHER)

    def attempt(role: Connection, statement: LiteralString) -> None:
        free, taken = (tasks.push(conn, CLOSED) for _ in range(2))
        conn.execute("select pgq_task.stop(%s)", [free])
        ((_, version),) = tasks.claim(conn, CLOSED)
        named = {"q": CLOSED, "free": free, "task": taken, "version": version}
        try:
            role.execute(statement, named)
        finally:
            conn.execute("delete from pgq_task.task")

    def refused(role: Connection, statement: LiteralString) -> str:
        return denied(lambda: attempt(role, statement))

    for statement in CALLS[action]:
        assert f"{ROLE} may not {action}" in refused(anna, statement), statement
    grant(conn, action)
    for statement in CALLS[action]:
        attempt(anna, statement)
        refused(bert, statement)
    for other in set(ACTIONS) - {action}:
        refused(anna, CALLS[other][0])
    revoke(conn, action)
    refused(anna, CALLS[action][0])


def test_an_unrestricted_queue_is_open(conn: Connection, anna: Connection) -> None:
    tasks.push(anna, OPEN)
    ((task, version),) = tasks.claim(anna, OPEN)
    tasks.modify(anna, changes=[{"id": task, "version": version}])
    assert tasks.statuses(anna) == {task: "available"}
    # what was granted has no effect then, and is kept
    grant(conn, "claim", role=OTHER, queue=OPEN)
    tasks.push(anna, OPEN)
    conn.execute("select pgq_task.restrict_queue(%s)", [OPEN])
    denied(lambda: tasks.push(anna, OPEN))
    conn.execute("select pgq_task.restrict_queue(%s, false)", [OPEN])
    tasks.push(anna, OPEN)


def test_the_rights_are_those_of_the_current_role(conn: Connection, anna: Connection) -> None:
    grant(conn, "insert", role=TEAM)
    tasks.push(anna, CLOSED)
    conn.execute(f'revoke "{TEAM}" from {ROLE}'.encode())
    denied(lambda: tasks.push(anna, CLOSED))
    # A role that is gone is harmless.
    conn.execute("create role task_test_gone")
    grant(conn, "insert", role="task_test_gone")
    conn.execute("drop role task_test_gone")
    denied(lambda: tasks.push(anna, CLOSED))
    assert ops.value(conn, "select count(*) from pgq_task.get_queue_grants(%s)", CLOSED) == 1
    # One that was set counts instead of the session's.
    conn.execute(f'grant "{TEAM}" to {ROLE}; grant pgq_writer to "{TEAM}"'.encode())
    revoke(conn, "insert", role=TEAM)
    grant(conn, "insert")
    tasks.push(anna, CLOSED)
    anna.execute(f'set role "{TEAM}"'.encode())
    assert f'"{TEAM}" may not insert' in denied(lambda: tasks.push(anna, CLOSED))
    anna.execute("reset role")
    tasks.push(anna, CLOSED)


def test_administrators_may_do_everything(conn: Connection, anna: Connection) -> None:
    denied(lambda: tasks.push(anna, CLOSED))
    conn.execute(f"grant pgq_admin to {ROLE}".encode())
    tasks.push(anna, CLOSED)
    grant(anna, "claim", role=OTHER)
    conn.execute(f"revoke pgq_admin from {ROLE}".encode())
    with pytest.raises(errors.InsufficientPrivilege):
        grant(anna, "claim", role=ROLE)


def test_one_forbidden_queue_among_others_is_told(conn: Connection, anna: Connection) -> None:
    tasks.push(conn, OPEN)
    denied(lambda: tasks.claim(anna, OPEN, CLOSED, number=9))
    denied(lambda: anna.execute("select pgq_task.queue_is_empty(%s::text[])", [[OPEN, CLOSED]]))
    denied(lambda: tasks.modify(anna, inserts=[{"queue": OPEN}, {"queue": CLOSED}]))
    [claimed] = tasks.claim(anna, OPEN)
    # With a task that waits to be claimed in the same step.
    forbidden, waiting = (tasks.push(conn, CLOSED) for _ in range(2))
    [claimed_by_others] = tasks.claim(conn, CLOSED)
    finish: LiteralString = "select pgq_task.finish_and_claim('w', %s, %s, 'closed')"
    denied(lambda: anna.execute(finish, claimed))
    denied(lambda: anna.execute(finish, claimed_by_others))
    left = {claimed[0]: "claimed", forbidden: "claimed", waiting: "available"}
    assert tasks.statuses(conn) == left


def test_moving_a_task_takes_the_right_to_insert(conn: Connection, anna: Connection) -> None:
    task = tasks.push(conn, OPEN)
    there = [{"id": task, "version": 1, "queue": CLOSED}]
    assert "may not insert" in denied(lambda: tasks.modify(anna, changes=there))
    grant(conn, "insert")
    tasks.modify(anna, changes=there)
    back = [{"id": task, "version": 2, "queue": OPEN}]
    assert "may not change" in denied(lambda: tasks.modify(anna, changes=back))
    # There all roles read it.
    grant(conn, "change")
    assert "may not read" in denied(lambda: tasks.modify(anna, changes=back))
    by_id: LiteralString = "select pgq_task.change_tasks('closed', %s, '{\"queue\": \"open\"}')"
    only = Jsonb({"ids": [task]})
    assert "may not read" in denied(lambda: anna.execute(by_id, [only]))
    grant(conn, "claim")
    tasks.modify(anna, changes=back)


def test_a_queue_that_looks_like_a_pattern_is_closed_too(
    conn: Connection, anna: Connection
) -> None:
    conn.execute("select pgq_task.create_queue('clo*'), pgq_task.restrict_queue('clo*')")
    tasks.push(conn, "clo*", "secret")
    listed: LiteralString = "select queue from pgq_task.list_tasks('clo*')"
    assert anna.execute(listed).fetchall() == []
    grant(conn, "read", queue="clo*")
    assert anna.execute(listed).fetchall() == [("clo*",)]


def test_tasks_are_shown_to_roles_that_may_read_them(conn: Connection, anna: Connection) -> None:
    secret = tasks.push(conn, CLOSED, "secret")
    seen = tasks.push(conn, OPEN)
    everything: LiteralString = "select id from pgq_task.list_tasks()"
    assert tasks.statuses(anna) == {seen: "available"}
    assert anna.execute(everything).fetchall() == [(seen,)]
    sizes: LiteralString = "select queue_name, restricted, total from pgq_task.get_queue_info()"
    assert anna.execute(sizes).fetchall() == [(CLOSED, True, None), (OPEN, False, 1)]
    grant(conn, "read")
    assert set(tasks.statuses(anna)) == {secret, seen}
    assert anna.execute(everything).fetchall() == [(secret,), (seen,)]
    assert anna.execute(sizes).fetchall() == [(CLOSED, True, 1), (OPEN, False, 1)]


def test_conditions_on_the_view_see_no_hidden_row(conn: Connection, anna: Connection) -> None:
    """A function in a condition could tell what it was called with."""
    tasks.push(conn, CLOSED, "secret")
    conn.execute("grant create, usage on schema public to public")
    anna.execute(
        "create function public.tell(x jsonb) returns bool language plpgsql cost 0.0000001 as"
        " $$ begin raise exception 'saw %%', x; end $$".replace("%%", "%").encode()
    )
    assert anna.execute("select id from pgq_task.tasks where tell(payload)").fetchall() == []
    anna.execute("drop function public.tell")


def test_operators_of_the_views_reader_are_not_called(conn: Connection, connect: Connect) -> None:
    """An operator that fits the types better than PostgreSQL's would run as a reading superuser."""
    tasks.push(conn, OPEN)
    conn.execute("create function public.trap(float8, int4) returns float8 return 1 / 0")
    conn.execute("create function public.trap(int8, numeric) returns numeric return 1 / 0")
    conn.execute("create operator public.* (leftarg = float8, rightarg = int4, function = trap)")
    conn.execute("create operator public./ (leftarg = int8, rightarg = numeric, function = trap)")
    reader = connect()
    reader.execute("set search_path = public")
    assert len(reader.execute("select at, status from pgq_task.tasks").fetchall()) == 1
    conn.execute("drop function public.trap(float8, int4), public.trap(int8, numeric) cascade")


def test_a_filter_takes_the_right_to_read(conn: Connection, anna: Connection) -> None:
    """The number of tasks found would reveal their contents."""
    task = tasks.push(conn, CLOSED, {"pin": 1234})
    grant(conn, "change", "delete")
    guess = '\'{"payload": {"pin": 1234}}\''
    for call in (
        f"change_tasks('closed', {guess}, '{{\"priority\": 1}}')",
        f"remove_tasks('closed', {guess})",
    ):
        statement = f"select pgq_task.{call}".encode()
        assert "may not read" in denied(lambda statement=statement: anna.execute(statement))  # type: ignore[misc]
    by_id: LiteralString = "select pgq_task.remove_tasks('closed', %s::jsonb)"
    assert ops.value(anna, by_id, f'{{"ids": [{task}]}}') == 1


def test_claims_are_nothing_to_strangers(conn: Connection, anna: Connection) -> None:
    task = tasks.push(conn, CLOSED)
    tasks.claim(conn, CLOSED, claimant="w")
    # Nor do conflicts tell of them.
    with pytest.raises(psycopg.Error) as caught:
        anna.execute("select pgq_task.finish('stranger', %s, 1)", [task])
    assert "'w'" not in str(caught.value.diag.message_detail)
    held: LiteralString = "select id from pgq_task.get_leases('w', array[%s]::bigint[], true)"
    assert anna.execute(held, [task]).fetchall() == []
    conn.execute("select pgq_task.cancel(%s, 'a secret')", [task])
    attend: LiteralString = "select reason from pgq_task.heartbeat('stranger', array[%s]::bigint[])"
    assert anna.execute(attend, [task]).fetchall() == []
    denied(lambda: anna.execute("select pgq_task.set_waiting(%s::text[])", [[OPEN, CLOSED]]))
    grant(conn, "claim")
    assert anna.execute(held, [task]).fetchall() == [(task,)]
    anna.execute("select pgq_task.set_waiting(%s::text[])", [[OPEN, CLOSED]])


def test_an_error_in_a_restricted_queue_is_shown_only_to_its_readers(
    conn: Connection, anna: Connection, as_role: AsRole
) -> None:
    grant(conn, *ACTIONS)
    task = tasks.push(conn, CLOSED, "secret")
    tasks.fail(anna, tasks.claim(anna, CLOSED)[0], final=True)
    assert tasks.statuses(anna) == {task: "available"}
    assert tasks.statuses(as_role(OTHER)) == {}
    assert ops.value(anna, "select pgq_task.requeue('closed.failed')") == 1


def test_grants_are_listed(conn: Connection) -> None:
    grants: LiteralString = "select * from pgq_task.get_queue_grants()"
    assert conn.execute(grants).fetchall() == [(CLOSED, True, None, None)]
    grant(conn, "read", "claim", "claim")
    grant(conn, "insert")
    grant(conn, "read", role=TEAM, queue=OPEN)
    assert conn.execute(grants).fetchall() == [
        (CLOSED, True, ROLE, ["claim", "insert", "read"]),
        (OPEN, False, TEAM, ["read"]),
    ]
    revoke(conn, "claim", "delete")
    revoke(conn, "read", role=TEAM, queue=OPEN)
    assert conn.execute(grants).fetchall() == [(CLOSED, True, ROLE, ["insert", "read"])]
