"""pgq.seq_setval() and its neighbours, which Londiste and PgQ's tools call: as the caller."""

from __future__ import annotations

from typing import LiteralString

import pytest
from psycopg import errors

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import AsRole, Connection


@pytest.fixture
def admin(conn: Connection, as_role: AsRole) -> Connection:
    """pgq_admin, with a schema of its own."""
    conn.execute("create schema mine authorization pgq_admin")
    return as_role("pgq_admin")


def test_admins_cannot_move_our_sequences(conn: Connection, admin: Connection, queue: str) -> None:
    ours = conn.execute(
        "select format('%s.%s', n.nspname, c.relname) from pg_class c"
        " join pg_namespace n on n.oid = relnamespace"
        " where relkind = 'S' and relowner = 'pgq_owner'::regrole"
    ).fetchall()
    assert ("pgq_ids.test_queue",) in ours
    for (name,) in ours:
        with pytest.raises(errors.InsufficientPrivilege):
            admin.execute("select pgq.seq_setval(%s, 9223372036854775807)", [name])


def test_seq_setval_moves_what_the_caller_may_move_and_never_back(admin: Connection) -> None:
    admin.execute('create sequence mine."A.seq"')
    for value, expected in ((10, 10), (5, 10), (15, 15)):
        assert ops.value(admin, "select pgq.seq_setval('mine.A.seq', %s)", value) == expected
    assert ops.value(admin, "select pgq.seq_getval('mine.A.seq')") == 15
    admin.execute("select setval('mine.\"A.seq\"', 20, false)")
    assert ops.value(admin, "select pgq.seq_setval('mine.A.seq', 17)") == 20


def test_seq_getval_runs_no_code_of_a_view(conn: Connection, admin: Connection) -> None:
    admin.execute("create table mine.ran (actor text)")
    admin.execute(
        "create function mine.evil() returns bigint language sql as"
        " $$ insert into mine.ran values (current_user) returning 1 $$"
    )
    admin.execute("create view mine.seq as select mine.evil() as last_value")
    for call in ("pgq.seq_getval('mine.seq')", "pgq.seq_setval('mine.seq', 5)"):
        with pytest.raises(errors.WrongObjectType):
            conn.execute(f"select {call}".encode())
    assert ops.value(conn, "select count(*) from mine.ran") == 0


def test_grants_are_copied_to_each_role_by_its_name(conn: Connection, admin: Connection) -> None:
    """A role may be called PUBLIC, and is not the public."""
    conn.execute('drop role if exists "PUBLIC"')
    conn.execute('create role "PUBLIC"')
    admin.execute(
        "create table mine.a (); create table mine.b ();"
        'grant select on mine.a to "PUBLIC"; grant delete on mine.a to public;'
        "grant insert on mine.a to pgq_writer with grant option"
    )
    assert ops.value(admin, "select pgq._grant_perms_from('mine', 'a', 'mine', 'b')") == 1
    rights: LiteralString = "select relacl from pg_class where oid = %s::regclass"
    assert ops.value(conn, rights, "mine.b") == ops.value(conn, rights, "mine.a")
    conn.execute('drop owned by "PUBLIC"; drop role "PUBLIC"')


def test_grants_are_copied_as_the_caller(conn: Connection, admin: Connection, queue: str) -> None:
    admin.execute("create table mine.a ()")
    admin.execute("grant select on mine.a to public")
    rights = (
        "select oid::regclass, relacl from pg_class"
        " where relnamespace = 'pgq'::regnamespace order by oid"
    )
    before = conn.execute(rights.encode()).fetchall()
    admin.execute("select pgq._grant_perms_from('mine', 'a', 'pgq', 'event_template')")
    assert conn.execute(rights.encode()).fetchall() == before
