"""Rights that each function and sequence of the work queue needs, over the catalog.

A function that is new has to be added here, with the right on a restricted queue that it takes.
"""

from __future__ import annotations

import json
import re
from typing import LiteralString

import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops as tasks
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_db import AsRole, Calls, Connect, Connection, MakeRole
from tests.integration.tasks.test_task_permission import CALLS

Q = "closed"
STRANGER = "test_stranger"

DENIED: dict[str, tuple[LiteralString, ...]] = {
    "_push_slowly": ("_push_slowly('closed', '1', null, null, 0, null, null, null)",),
    "push_unique": ("push_unique('closed', '1', 'k')",),
    "push_flow": (
        'push_flow(\'[{"queue": "closed"}]\')',
        'push_flow(\'[{"queue": "open"}, {"queue": "closed", "after": [1]}]\')',
    ),
    "_wake": ("_wake(%(queue)s, 'closed')",),
    "run_periodic": ("run_periodic('p')",),
    "push_periodic": (
        "push_periodic('p', %(due)s, clock_timestamp(), '{}')",
        "push_periodic('p', '2000-01-01', clock_timestamp(), '{}')",
    ),
    "set_periodic": (
        "set_periodic('p', 'closed', '* * * * *', 'UTC', '2')",
        "set_periodic('p', 'open', '* * * * *', 'UTC', '2')",
    ),
    "set_waiting": ("set_waiting('{closed}')",),
    "finish_and_claim": ("finish_and_claim('w', %(task)s, 2, 'open')",),
    "set_station": ("set_station('closed', 'closed', true, '{}')",),
    "fail": ("fail('w', %(task)s, 2, 'bad')", "fail('w', %(task)s, 2, 'bad', final => true)"),
    "fail_many": ("fail_many('w', array[%(task)s], '{2}', '{bad}')",),
    "cancel": ("cancel(%(task)s)",),
    "get_result": ("get_result(%(task)s)",),
    "get_progress": ("get_progress('closed')",),
    "get_statistics": ("get_statistics('closed')",),
}
"""Refused to a role that was granted nothing; `w` has the task, in version 2. So are `CALLS`."""

SILENT: dict[str, LiteralString] = {
    "list_tasks": "select count(*) from pgq_task.list_tasks()",
    "get_stations": "select count(*) from pgq_task.get_stations()",
    "get_queue_info": "select count(total) from pgq_task.get_queue_info('closed')",
    "get_statistics": "select count(*) from pgq_task.get_statistics() where queue_name = 'closed'",
    "get_progress": "select count(*) from pgq_task.get_progress()",
    "get_periodic_info": "select count(payload) from pgq_task.get_periodic_info()",
    "get_flow": "select count(concat(name, state, error, result))"
    " from pgq_task.get_flow(%(flow)s) where concat(name, state, error, result) <> ''",
    "get_workers": "select count(*) from pgq_task.get_workers()",
    "list_flows": "select count(*) from pgq_task.list_flows()",
    "find_queues": "select count(*) from pgq_task.find_queues('{cl*}')",
    "get_leases": "select count(*) from pgq_task.get_leases('w', array[%(task)s]::bigint[], true)",
    "heartbeat": "select count(*) from pgq_task.heartbeat('w', array[%(task)s]::bigint[],"
    " array[%(task)s]::bigint[], '{0.5}', '{1}', '{forged}')",
    "_has_right": "select pgq_task._has_right(%(queue)s, 'read', current_user)::int",
}
"""Calls that reveal nothing of the queue, and change nothing."""

OF_NO_QUEUE = {
    # ids, clocks, places, and what it is given
    *("reserve_ids", "server_time", "_position_of", "_time_of", "_is_parked", "_shown"),
    # what all workers do for all queues
    *("sweep", "catch_up"),
    # with its caller's rights on a table of the application
    *("add_columns", "remove_columns", "table_index_sql", "describe_table", "table_sizes"),
    *("_column_names", "_require_key", "_require_types", "_has_index"),
    *("_raise_invalid", "notify_workers", "_notify_of_table", "_quiet_sequence"),
    *("_table_signal", "was_left", "want_quiet"),
}
"""These do nothing with the tasks of a queue."""


@pytest.fixture
def stranger(conn: Connection, make_role: MakeRole, as_role: AsRole) -> Connection:
    """A reader and writer without grants on the queue."""
    for queue in (Q, "open"):
        conn.execute("select pgq_task.create_queue(%s)", [queue])
    conn.execute("select pgq_task.restrict_queue(%s)", [Q])
    conn.execute("select pgq_task.set_periodic('p', %s, '* * * * *', 'UTC', '1')", [Q])
    return as_role(make_role("stranger", "pgq_reader", "pgq_writer"))


@pytest.fixture
def named(conn: Connection, stranger: Connection) -> dict[str, object]:
    task = tasks.push(conn, Q, "secret")
    tasks.claim(conn, Q, lease="1 hour")
    conn.execute(
        "select pgq_task.heartbeat('w', '{}', array[%s]::bigint[], '{0.1}', '{1}', '{mine}')",
        [task],
    )
    flow = ops.value(conn, 'select flow from pgq_task.push_flow(\'[{"queue": "closed"}]\')')
    conn.execute("update pgq_task.flow_step set result = '1'")
    conn.execute(
        "insert into pgq_task.station select queue_id, 'p', true, '{}' from pgq_task.queue"
        " where queue_name = %s",
        [Q],
    )
    return {
        "task": task,
        "flow": flow,
        "queue": ops.value(conn, "select queue_id from pgq_task.queue where queue_name = %s", Q),
        "due": ops.value(conn, "select last_due from pgq_task.periodic"),
    }


def test_every_function_that_is_granted_is_known_here(conn: Connection) -> None:
    granted = conn.execute(
        "select distinct p.proname from pg_proc p, aclexplode(p.proacl) a"
        " where p.pronamespace = 'pgq_task'::regnamespace"
        " and a.grantee in (0, 'pgq_reader'::regrole, 'pgq_writer'::regrole)"
    ).fetchall()
    called = {re.findall(r"pgq_task\.(\w+)", call)[0] for calls in CALLS.values() for call in calls}
    known = called | DENIED.keys() | SILENT.keys() | OF_NO_QUEUE
    assert {name for (name,) in granted} == known


def test_functions_are_refused_without_a_right_on_the_queue_or_tell_nothing_of_it(
    conn: Connection, stranger: Connection, named: dict[str, object]
) -> None:
    before = tasks.rows(conn, "select * from pgq_task.task")
    pushed = "select pushed from pgq_task.get_statistics(%s)"
    assert ops.value(conn, pushed, Q) == 2
    for name, calls in DENIED.items():
        for call in calls:
            assert call.startswith(name)
            with pytest.raises(errors.InsufficientPrivilege) as caught:
                stranger.execute("select pgq_task." + call, named)
            assert "may not" in str(caught.value), call
    assert tasks.rows(conn, "select * from pgq_task.task") == before
    assert ops.value(conn, "select payload from pgq_task.periodic") == 1
    assert ops.value(conn, pushed, Q) == 2, "a push that is refused is not counted"
    conn.execute("select pgq_task.cancel(%(task)s, 'a secret')", named)
    for name, statement in SILENT.items():
        assert name in statement
        assert stranger.execute(statement, named).fetchone() == (0,), name
    assert ops.value(conn, "select note from pgq_task.progress") == "mine"
    # A worker with the right to claim says how far it is.
    conn.execute("select pgq_task.grant_queue('closed', '{claim}', %s)", [STRANGER])
    assert stranger.execute(SILENT["heartbeat"], named).fetchone() == (1,)
    assert ops.value(conn, "select note from pgq_task.progress") == "forged"


SEQUENCES: LiteralString = (
    "select coalesce(array_agg(c.oid::regclass::text order by c.oid::regclass::text), '{}')"
    " from pg_class c"
    " where c.relkind = 'S' and c.relnamespace in ('pgq_task'::regnamespace,"
    " 'pgq_task_queues'::regnamespace) and c.oid <> 'pgq_task.task_id_seq'::regclass"
    " and case c.relkind when 'S' then"
    "       has_sequence_privilege(%s, c.oid, 'usage, select, update') end"
)


def test_no_sequence_of_a_restricted_queue_is_its_writers(
    conn: Connection, stranger: Connection, named: dict[str, object]
) -> None:
    of_open = ["pgq_task.waiting_2", "pgq_task_queues.open"]
    assert ops.value(conn, SEQUENCES, STRANGER) == of_open
    # Nor of its error queue, which is restricted when it is made.
    conn.execute("select pgq_task.fail('w', %(task)s, 2, 'bad', final => true)", named)
    assert ops.value(conn, SEQUENCES, STRANGER) == of_open
    with pytest.raises(errors.InsufficientPrivilege):
        stranger.execute("select nextval('pgq_task_queues.closed')")
    conn.execute("select pgq_task.restrict_queue(%s, false)", [Q])
    assert ops.value(conn, SEQUENCES, STRANGER) == sorted(
        [*of_open, "pgq_task.waiting_1", "pgq_task_queues.closed"]
    )


def test_a_periodic_task_that_is_being_made_is_not_taken_over(
    conn: Connection, connect: Connect, calls: Calls, stranger: Connection
) -> None:
    owner = connect(autocommit=False)
    conn.execute("select pgq_task.set_periodic('moved', 'open', '* * * * *', 'UTC', '1')")
    make: LiteralString = "select pgq_task.set_periodic(%s, %s, '* * * * *', 'UTC', %s)"
    for name in ("new", "moved"):
        owner.execute(make, [name, Q, "1"])
        taking = calls.blocked(ops.value, stranger, make, name, "open", "2")
        owner.commit()
        with ops.refused("42501"):
            taking.result()
    made = conn.execute("select distinct queue, payload from pgq_task.get_periodic_info()")
    assert made.fetchall() == [(Q, 1)]


@pytest.mark.parametrize("what", ["deletes", "changes", "depends"])
def test_a_task_that_comes_while_rights_are_checked_is_missing(
    conn: Connection, connect: Connect, calls: Calls, stranger: Connection, what: str
) -> None:
    conn.execute("select pgq_task.create_queue('mine')")
    conn.execute(
        "select pgq_task.grant_queue('mine', '{insert,delete,change,read}', %s)", [STRANGER]
    )
    conn.execute("select pgq_task.restrict_queue('mine')")
    own = tasks.push(conn, "mine")
    # Its id and version can be guessed.
    wanted = Jsonb([{"id": own, "version": 1}, {"id": own + 1, "version": 1}])
    holder = connect(autocommit=False)
    holder.execute("lock table pgq_task.queue_grant in access exclusive mode")
    modifying = calls.blocked(
        ops.value, stranger, f"select id from pgq_task.modify('x', {what} => %s)", wanted
    )
    holder.execute(
        "insert into pgq_task.task (id, queue_id, payload)"
        " select %s, queue_id, '1' from pgq_task.queue where queue_name = %s",
        [own + 1, Q],
    )
    holder.commit()
    with ops.refused("PQ071") as refusal:
        modifying.result()
    [conflict] = json.loads(str(refusal.value.diag.message_detail))
    assert (conflict["id"], conflict["reason"]) == (own + 1, "missing")
    left = conn.execute("select id, version from pgq_task.task order by id").fetchall()
    assert left == [(own, 1), (own + 1, 1)]


def test_a_sweep_in_a_transaction_that_stays_open_locks_nothing_of_a_restricted_queue(
    conn: Connection, connect: Connect, stranger: Connection
) -> None:
    """Tables would be locked into which all sessions of the queue write."""
    conn.execute("select pgq_task.set_queue_config(%s, 'keep', '1 minute')", [Q])
    conn.execute("select pgq_task.set_queue_config(%s, 'keep_tenants', '1 minute')", [Q])
    conn.execute("select pgq_task.create_queue(%s)", [f"{Q}/idle"])
    push: LiteralString = (
        "select id from pgq_task.push_unique(%s, '1', 'k', unique_for => '1 hour')"
    )
    conn.execute(push, [Q])
    conn.execute("delete from pgq_task.task")
    for past in (
        "update pgq_task.unique_period set until = now()",
        "update pgq_task.queue set queue_created = now() - interval '1 day'",
        *(
            f"insert into pgq_task.finished_1_{table}"
            " (queue_id, id, priority, created, finished, outcome, attempts)"
            " values (1, 1, 0, now(), now() - interval '1 day', 'finished', 1)"
            for table in range(5)
        ),
    ):
        conn.execute(past.encode())
    conn.execute(
        "create function public.add_counted(timestamptz) returns void language sql security definer"
        " as 'select pgq_task._add_counted($1, 0)'"
    )
    conn.execute("alter function public.add_counted owner to pgq_owner")
    tasks.sweep(conn)
    conn.execute("update pgq_task.sweep set sweep_id = 19 + 20 * sweep_id")
    stranger.execute("begin")
    for second in ("01", "21"):
        stranger.execute("select public.add_counted(%s)", [f"2000-01-01 00:00:{second}+00"])
    wait_until(lambda: ops.value(stranger, "select pgq_task.sweep()"))
    conn.execute("set lock_timeout = '1s'")
    conn.execute("select pgq_task.push(%s, '1')", [f"{Q}/idle"])
    for _ in range(2):
        conn.execute(push, [Q])
        tasks.finish(conn, *tasks.claim(conn, Q))
    stranger.rollback()
    # A role with the right to claim removes it.
    tasks.sweep_twentieth(conn)
    assert ops.value(conn, "select count(distinct tableoid) from pgq_task.finished") == 1
