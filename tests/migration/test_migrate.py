"""Migrating and the way back: repeatable, all or nothing, and never on foreign ground."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from pgqpy import schema
from pgqpy.embedded import Server
from pgqpy.errors import ConnectionFailed, PgqError
from pgqpy.schema import SchemaError
from pgqpy.schema._database import LOCK, SCHEMAS
from pgqpy.schema._fingerprint import note_sql
from tests.fixtures.fix_db import Connect, Connection, create_database

from .catalog import catalog, data

pytestmark = pytest.mark.any_pg

HEAD = schema.history()[-1].id


def has_schema(conn: Connection) -> bool:
    return conn.execute("select to_regnamespace('pgq') is not null").fetchone() == (True,)


def wait_for_lock(conn: Connection, waiters: int, kind: str = "advisory") -> None:
    """Returns when that many sessions wait for a lock of that kind."""
    query = """
        select count(*)
          from pg_locks
          join pg_stat_activity using (pid)
         where datname = current_database()
           and locktype = %s
           and not granted
    """
    while conn.execute(query, [kind]).fetchone() != (waiters,):
        time.sleep(0.005)


def test_migrating_again_only_brings_functions_and_grants_back(
    dsn: str, conn: Connection, queue: str
) -> None:
    before = catalog(conn), data(conn)
    schema.migrate(dsn)
    assert (catalog(conn), data(conn)) == before
    conn.execute("create or replace function pgq.version() returns text return 'broken'")
    conn.execute("revoke usage on schema pgq from public")
    schema.migrate(dsn)
    assert (catalog(conn), data(conn)) == before


def test_a_current_database_is_left_alone_until_something_was_changed(
    dsn: str, conn: Connection, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise AssertionError("it migrates")

    schema.migrate(dsn)
    # Queues are no change, also restricted ones.
    conn.execute("create table source (id int primary key)")
    conn.execute("select pgq.capture_table('source', %s)", [queue])
    conn.execute("select pgq.create_group(%s, 'group', 2, 'ev_data')", [queue])
    conn.execute("select pgq.set_queue_config(%s, 'key_window', '1 day')", [queue])
    conn.execute("select pgq_task.create_queue('work')")
    conn.execute("select pgq_task.set_limits('work', rate => 5, rate_period => '1 s')")
    conn.execute("select pgq_task.set_queue_config('work', 'keep', '1 day')")
    conn.execute("select pgq.restrict_queue(%s), pgq_task.restrict_queue('work')", [queue])
    whole = schema._migration._migrate
    monkeypatch.setattr("pgqpy.schema._migration._migrate", fails)
    assert asyncio.run(schema.async_migrate(dsn)) == HEAD
    for change in (
        "alter function pgq.version() cost 77",
        "grant execute on function pgq._shown(anyelement) to pg_monitor",
        "drop function pgq_coop.finish_batch(bigint)",
        "revoke select on pgq_task.queue from pgq_reader",
        "revoke usage on schema pgq from public",
        "revoke pgq_reader from pgq_admin",
        "alter default privileges for role pgq_owner grant execute on functions to public",
        "comment on table pgq.alembic_version is 'other sources'",
    ):
        conn.execute(change.encode())
        with pytest.raises(AssertionError, match="it migrates"):
            schema.migrate(dsn)
        # As if it had just migrated; the next change is seen by itself.
        conn.execute(note_sql().encode())
        assert schema.migrate(dsn) == HEAD
    conn.execute("comment on table pgq.alembic_version is null")
    whole(dsn, HEAD, node=False)
    assert schema.migrate(dsn) == HEAD


def test_migrating_twice_at_once_is_migrating_once(
    empty_dsn: str, other: Connection, connect: Connect
) -> None:
    gate = connect(empty_dsn, autocommit=False)
    gate.execute(LOCK.encode())
    with ThreadPoolExecutor(3) as pool:
        both = [pool.submit(schema.migrate, empty_dsn) for _ in range(3)]
        wait_for_lock(other, waiters=3)
        assert not has_schema(other)
        gate.commit()
        assert [future.result() for future in both] == [HEAD] * 3


def test_databases_of_a_new_cluster_can_migrate_at_once(server: Server) -> None:
    """The roles, which all of them create, belong to the cluster; the lock to a database."""
    script = schema.upgrade_sql().encode()

    def install_script(dsn: str) -> str | None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(script)
        return schema.current(dsn)

    ways = [schema.migrate, install_script] * 2
    with Server(version=server.version) as fresh, ThreadPoolExecutor(len(ways)) as pool:
        dsns = [fresh.dsn_of(create_database(fresh, "template0")) for _ in ways]
        found = pool.map(lambda way, dsn: way(dsn), ways, dsns)
        assert list(found) == [HEAD] * len(ways)


def test_migrating_does_not_depend_on_the_default_isolation_level(
    empty_dsn: str, other: Connection, connect: Connect
) -> None:
    """A snapshot older than the lock would not see what the one before us has done."""
    other.execute(
        "do $$ begin execute format("
        "'alter database %I set default_transaction_isolation = serializable',"
        " current_database()); end $$"
    )
    gate = connect(empty_dsn, autocommit=False)
    gate.execute(LOCK.encode())
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(schema.migrate, empty_dsn) for _ in range(2)]
        wait_for_lock(other, waiters=2)
        gate.commit()
        assert [future.result() for future in both] == [HEAD] * 2


def test_migrating_goes_on_when_rights_are_granted_meanwhile(
    dsn: str, conn: Connection, connect: Connect
) -> None:
    other_admin = connect(dsn, autocommit=False)
    other_admin.execute("grant select on pgq.queue to public")
    with ThreadPoolExecutor(1) as pool:
        migration = pool.submit(schema.migrate, dsn)
        wait_for_lock(conn, waiters=1, kind="transactionid")
        other_admin.commit()
        assert migration.result() == HEAD


def test_interrupted_migration_leaves_nothing(
    empty_dsn: str, other: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last statement fails; also what came long before it is not there."""
    monkeypatch.setattr(
        "pgqpy.schema._migration._functions_of",
        lambda target, node: schema.Manifest.load().sql("functions") + "select 1 / 0;",
    )
    with pytest.raises(PgqError, match="division by zero"):
        schema.migrate(empty_dsn)
    assert not has_schema(other)
    monkeypatch.undo()
    assert schema.migrate(empty_dsn) == HEAD


def test_migrate_installs_and_downgrade_to_base_removes_everything(
    empty_dsn: str, other: Connection
) -> None:
    assert schema.current(empty_dsn) is None
    assert schema.migrate(empty_dsn) == HEAD
    assert schema.current(empty_dsn) == HEAD
    assert schema.downgrade(empty_dsn, "base") is None
    assert schema.current(empty_dsn) is None
    assert not has_schema(other)
    left = other.execute(
        "select count(*) from pg_class where relowner::regrole::text like 'pgq\\_%'"
    ).fetchone()
    assert left == (0,)
    assert schema.downgrade(empty_dsn, "base") is None


def test_downgrade_that_loses_queues_must_be_forced(dsn: str, conn: Connection, queue: str) -> None:
    conn.execute("select pgq.register_consumer(%s, 'reader')", [queue])
    conn.execute("create table source (id int primary key)")
    conn.execute(
        "create trigger feed after insert on source for each row"
        " execute function pgq.jsontriga('test_queue')"
    )
    with pytest.raises(SchemaError) as caught:
        schema.downgrade(dsn, "base")
    for what in (queue, "1 subscription", "source"):
        assert what in str(caught.value)
    assert has_schema(conn)

    schema.downgrade(dsn, "base", force=True)
    left = "select from pg_namespace where nspname in ('pgq_ids', 'pgq_slots')"
    assert conn.execute(left.encode()).fetchall() == []
    assert not has_schema(conn)
    conn.execute("insert into source values (1)")


def test_tables_that_were_captured_can_be_written_to_after_a_downgrade(
    dsn: str, conn: Connection, queue: str
) -> None:
    conn.execute("create table source (id int primary key)")
    conn.execute("select pgq.capture_table('source', %s)", [queue])
    with pytest.raises(SchemaError, match=r"1 captured table \(public.source\)"):
        schema.downgrade(dsn, "base")
    schema.downgrade(dsn, "base", force=True)
    conn.execute("insert into source values (1)")
    left = "select from pg_proc where prosrc like '-- pgq.capture%'"
    assert conn.execute(left.encode()).fetchall() == []


def test_printed_downgrade_removes_everything(dsn: str, conn: Connection) -> None:
    conn.execute(schema.downgrade_sql("head", "base").encode())
    assert not has_schema(conn)


def test_a_foreign_schema_is_left_alone_and_an_empty_one_is_used(
    empty_dsn: str, other: Connection
) -> None:
    for name in SCHEMAS:
        other.execute(f"create schema {name} create table theirs ()".encode())
        for change in (schema.migrate, lambda dsn: schema.downgrade(dsn, "base")):
            with pytest.raises(SchemaError, match="not installed by pgqpy"):
                change(empty_dsn)
        other.execute(f"drop table {name}.theirs; drop schema {name}".encode())
    for name in SCHEMAS:
        other.execute(f"create schema {name}".encode())
    schema.migrate(empty_dsn)
    owners = "select distinct nspowner::regrole::text from pg_namespace where nspname = any (%s)"
    assert other.execute(owners, [list(SCHEMAS)]).fetchall() == [("pgq_owner",)]


def test_what_consumers_have_done_outlives_the_schema_pgq_and_is_not_overwritten(
    dsn: str, conn: Connection
) -> None:
    conn.execute("select pgq_ext.set_last_tick('consumer', 7)")
    conn.execute("drop schema pgq cascade")
    with pytest.raises(SchemaError, match="is left over") as caught:
        schema.migrate(dsn)
    assert caught.value.hint is not None
    assert "drop schema if exists pgq_ext, pgq_coop, pgq_task cascade" in caught.value.hint
    conn.execute("drop schema if exists pgq_ext, pgq_coop, pgq_task cascade")
    schema.migrate(dsn)
    assert has_schema(conn)


@pytest.mark.reference
def test_debians_pgq_is_left_alone(pgq_reference_dsn: str, connect: Connect) -> None:
    with pytest.raises(SchemaError, match="belongs to the extension pgq"):
        schema.migrate(pgq_reference_dsn)
    assert connect(pgq_reference_dsn).execute("select pgq.version()").fetchone() is not None


def test_unknown_revision_is_answered_with_the_known_ones(empty_dsn: str) -> None:
    with pytest.raises(SchemaError, match=HEAD):
        schema.migrate(empty_dsn, "no-such-revision")


def test_database_of_a_newer_release_is_left_alone(dsn: str, conn: Connection) -> None:
    conn.execute("update pgq.alembic_version set version_num = '9999'")
    with pytest.raises(SchemaError, match="upgrade pgqpy"):
        schema.migrate(dsn)


def test_unreachable_server_is_an_error_of_ours() -> None:
    with pytest.raises(ConnectionFailed):
        schema.migrate("host=/nowhere")


def test_alembic_of_the_application_and_ours_do_not_meet(empty_dsn: str, other: Connection) -> None:
    other.execute("create table alembic_version (version_num varchar(32) primary key)")
    other.execute("insert into alembic_version values ('theirs')")
    assert schema.migrate(empty_dsn) == HEAD
    assert other.execute("select * from public.alembic_version").fetchall() == [("theirs",)]
