"""Restricted queues, and code of one role that PostgreSQL runs in the session of another.

The owner of a table decides what its indexes and materialized views compute. A superuser's VACUUM,
ANALYZE or REINDEX, or autovacuum, computes it, as the owner but in a superuser's session.
"""

from __future__ import annotations

from typing import LiteralString

import pytest
from psycopg import errors

from pgqpy.errors import PermissionDenied, from_psycopg
from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops as tasks
from tests.fixtures.fix_db import AsRole, Connection, MakeRole

Q = "closed"
THIEF = "test_thief"


@pytest.fixture(autouse=True)
def secret(conn: Connection) -> int:
    conn.execute("select pgq_task.create_queue(%s)", [Q])
    conn.execute("select pgq_task.restrict_queue(%s)", [Q])
    return tasks.push(conn, Q, "a secret")


@pytest.fixture
def thief(conn: Connection, make_role: MakeRole, as_role: AsRole) -> Connection:
    """A role that may call all functions, was granted nothing, and has a schema with a table."""
    make_role("thief", "pgq_reader", "pgq_writer")
    conn.execute(f"create schema thief authorization {THIEF}".encode())
    session = as_role(THIEF)
    session.execute("create table thief.bait (n int); insert into thief.bait values (1)")
    session.execute("create table thief.loot (what text)")
    return session


READ: tuple[LiteralString, ...] = (
    "select payload::text from pgq_task.tasks",
    "select payload::text from pgq_task.list_tasks('closed')",
    "select payload::text from pgq_task.claim(array['closed'], 'thief')",
    "select payload::text from pgq_task.pop('closed')",
    "select total::text from pgq_task.get_queue_info('closed')",
)


def set_trap(thief: Connection, query: LiteralString) -> None:
    """``thief.trap(int)``, declared immutable, writes down what the query finds."""
    thief.execute(
        "create function thief.look() returns void language plpgsql as $$"
        " begin"
        f"   insert into thief.loot values ('it ran'), (({query}));"
        " exception when insufficient_privilege then"
        "    insert into thief.loot values ('denied');"
        " end $$".encode()
    )
    thief.execute(
        "create function thief.trap(n int) returns int language plpgsql immutable as $$ begin"
        f" if session_user <> '{THIEF}' then perform thief.look(); end if;"
        " return n; end $$".encode()
    )


def loot(conn: Connection) -> set[str | None]:
    return {what for (what,) in conn.execute("select what from thief.loot")}


@pytest.mark.parametrize("query", READ)
def test_maintenance_by_a_superuser_opens_nothing_to_the_owner_of_a_table(
    conn: Connection, thief: Connection, query: LiteralString
) -> None:
    set_trap(thief, query)
    thief.execute("create index bait_idx on thief.bait (thief.trap(n))")
    thief.execute("create materialized view thief.view as select thief.trap(n) from thief.bait")
    for maintenance in (
        "analyze thief.bait",
        "vacuum (analyze) thief.bait",
        "reindex table thief.bait",
        "vacuum full thief.bait",
        "cluster thief.bait using bait_idx",
        "create index on thief.bait (thief.trap(n + 1))",
        "refresh materialized view thief.view",
    ):
        thief.execute("truncate thief.loot")
        conn.execute(maintenance)
        assert loot(conn) in ({"denied"}, {"it ran", None}), (query, maintenance)
        assert tasks.statuses(conn) == {1: "available"}


def test_the_message_says_what_to_read_in_a_materialized_view(conn: Connection) -> None:
    with pytest.raises(errors.InsufficientPrivilege) as caught:
        conn.execute("create materialized view v as select id from pgq_task.list_tasks('closed')")
    error = from_psycopg(caught.value)
    assert isinstance(error, PermissionDenied)
    assert "pgq_task.tasks" in (error.hint or "")


def test_a_materialized_view_obeys_rights(conn: Connection, thief: Connection, secret: int) -> None:
    """Refreshed by whichever role."""
    thief.execute("create materialized view thief.view as select id from pgq_task.tasks")
    conn.execute("refresh materialized view thief.view")
    assert conn.execute("select id from thief.view").fetchall() == []
    conn.execute("select pgq_task.grant_queue(%s, '{read}', %s)", [Q, THIEF])
    conn.execute("refresh materialized view thief.view")
    assert conn.execute("select id from thief.view").fetchall() == [(secret,)]


def test_the_view_asks_owner_and_caller_of_a_function(conn: Connection, thief: Connection) -> None:
    count: LiteralString = "select count(*) from pgq_task.tasks"
    for role in (THIEF, "postgres"):
        conn.execute(
            "create or replace function public.look() returns bigint language sql security definer"
            f" begin atomic {count}; end".encode()
        )
        owner = role if role == THIEF else conn.info.user
        conn.execute("grant all on schema public to public")
        conn.execute(f'alter function public.look() owner to "{owner}"'.encode())
        assert ops.value(conn, "select public.look()") == (0 if owner == THIEF else 1)
        assert ops.value(thief, "select public.look()") == 0
    conn.execute("drop function public.look()")


def test_rights_work_in_all_sessions(conn: Connection, thief: Connection, secret: int) -> None:
    conn.execute("select pgq_task.grant_queue(%s, '{read}', %s)", [Q, THIEF])
    for statement in ("select 1", "set transaction read only", "listen something"):
        with thief.transaction():
            thief.execute(statement)
            found = thief.execute("select id from pgq_task.list_tasks('closed')").fetchall()
        assert found == [(secret,)]
        with pytest.raises(errors.InsufficientPrivilege):
            thief.execute("select pgq_task.pop('closed')")
