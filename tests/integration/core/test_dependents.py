"""What any role makes depend on our relations and functions keeps nothing from being dropped.

PostgreSQL asks for no right: a view, or a default, may name any relation by its number.
"""

from __future__ import annotations

from itertools import count
from typing import LiteralString

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops as tasks
from tests.fixtures.fix_db import AsRole, Connection, MakeRole

Q = "orders"
NUMBERS = count()


@pytest.fixture
def stranger(conn: Connection, make_role: MakeRole, as_role: AsRole) -> Connection:
    """A role without any right on what is ours."""
    name = make_role("stranger")
    conn.execute(f"create schema strange authorization {name}".encode())
    return as_role(name)


def depend(conn: Connection, stranger: Connection, pattern: str) -> None:
    """Make views of the stranger's depend on all relations and functions of such names."""
    found = conn.execute(
        "select quote_literal(oid) || '::regclass' from pg_class"
        " where oid::regclass::text ~ %s and relkind in ('S', 'r', 'i')"
        " union all select quote_literal(oid) || '::regprocedure' from pg_proc"
        " where oid::regprocedure::text ~ %s",
        [pattern, pattern],
    ).fetchall()
    assert found
    for (constant,) in found:
        view = f"strange.v{next(NUMBERS)}"
        stranger.execute(f"create view {view} as select {constant} as x".encode())


def test_an_idle_tenant_is_dropped_and_sweeps_go_on(conn: Connection, stranger: Connection) -> None:
    conn.execute("select pgq_task.create_queue('mails')")
    conn.execute("select pgq_task.set_queue_config('mails', 'keep_tenants', '1 day')")
    for tenant in ("a", "b"):
        conn.execute("select pgq_task.create_queue(%s)", [f"mails/{tenant}"])
        depend(conn, stranger, "^pgq_task.waiting|^pgq_task_queues")
        conn.execute("update pgq_task.queue set queue_created = now() - interval '2 days'")
        tasks.sweep_twentieth(conn)
        left: LiteralString = "select array_agg(queue_name) from pgq_task.queue"
        assert ops.value(conn, left) == ["mails"]


def test_a_queue_of_tasks_is_dropped_with_all_that_it_has(
    conn: Connection, stranger: Connection
) -> None:
    conn.execute("select pgq_task.create_queue('mails')")
    conn.execute("select pgq_task.set_queue_config('mails', 'keep', '1 day')")
    conn.execute("select pgq_task.set_limits('mails', 1), pgq_task.index_payload('mails')")
    depend(conn, stranger, "^pgq_task.(waiting|finished|limit|task_payload)_[0-9]|^pgq_task_queues")
    conn.execute("select pgq_task.drop_queue('mails')")


def test_a_queue_of_events_is_opened_and_dropped_by_force(
    conn: Connection, stranger: Connection
) -> None:
    conn.execute("select pgq.create_queue(%s)", [Q])
    conn.execute("select pgq.set_queue_config(%s, 'key_window', '1 day')", [Q])
    conn.execute("select pgq.create_group(%s, 'g', 1, 'ev_extra1 || 1')", [Q])
    conn.execute("select pgq.restrict_queue(%s)", [Q])
    depend(conn, stranger, "^pgq_(ids|slots)|^pgq.event_(key_)?[0-9]+_|_group_key_[0-9]")
    conn.execute("select pgq.restrict_queue(%s, false)", [Q])
    conn.execute("select pgq.drop_queue(%s, true)", [Q])
    assert ops.value(conn, "select count(*) from pgq.queue") == 0


def test_groups_and_staging_tables_are_dropped(conn: Connection, stranger: Connection) -> None:
    conn.execute("select pgq.create_queue(%s)", [Q])
    conn.execute("select pgq.create_group(%s, 'g', 1, 'ev_extra1 || 1')", [Q])
    for _ in range(2):
        conn.execute("select pgq.create_staging('job')")
    depend(conn, stranger, "^pgq_staging|_group_key_[0-9]")
    conn.execute("select pgq.drop_group(%s, 'g')", [Q])
    staged = ops.value(conn, "select min(t) from pgq.staging_tables('job') t")
    assert ops.value(conn, "select pgq.drop_staging(%s)", staged) is True
    assert ops.value(conn, "select pgq.maint_staging('0')") == 1
