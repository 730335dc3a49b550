"""A new major version of PostgreSQL keeps queues and tasks, by each way that operators take."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from pgqpy.embedded import Server
from pgqpy.embedded._programs import process_options, server_account
from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops
from tests.fixtures.dumps import use_up_transaction_ids
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import with_schema

OLD, NEW = 16, 18
LOGICAL: dict[str, str | int | bool] = {
    "wal_level": "logical",
    "max_worker_processes": 20,
    "max_logical_replication_workers": 12,
    "max_sync_workers_per_subscription": 8,
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory of the servers' user."""
    with tempfile.TemporaryDirectory(prefix="pgqpy-") as made:
        if account := server_account():
            os.chown(made, account.pw_uid, account.pw_gid)
        yield Path(made)


def run(folder: Path, *command: object) -> str:
    """Run a program of PostgreSQL; returns what it writes."""
    done = subprocess.run(
        [str(word) for word in command],
        **process_options(server_account()) | {"cwd": folder},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def prepare(conn: Connection) -> None:
    """A restricted queue, a captured table, and tasks."""
    conn.execute("create role writer in role pgq_writer")
    conn.execute("select pgq.create_queue('q'), pgq.restrict_queue('q')")
    conn.execute("select pgq.grant_queue('q', '{insert}', 'writer')")
    conn.execute("select pgq.set_queue_config('q', 'key_window', '1 hour')")
    conn.execute("create table item (id int primary key)")
    conn.execute("select pgq.capture_table('item', 'q')")
    ops.rotate_whenever_asked(conn, "q")
    ops.register(conn, "q", "c")
    ops.finish(conn, ops.open_batch(conn, "q", "c", "read before"))
    conn.execute("select pgq_task.create_queue('work')")
    task_ops.push_many(conn, "work", 3)


def write(conn: Connection) -> None:
    """Events in an open batch, ticked, not ticked, delayed and retried; a claimed task."""
    batch = ops.open_batch(conn, "q", "c", "in a batch", "retried", "dead")
    ids: dict[str, int] = dict(
        conn.execute("select ev_data, ev_id from pgq.get_batch_events(%s)", [batch]).fetchall()
    )
    conn.execute("select pgq.event_retry(%s, %s, 0)", [batch, ids["retried"]])
    conn.execute("select pgq.event_dead_letter(%s, %s, 'bad')", [batch, ids["dead"]])
    conn.execute("select pgq.insert_event_at('q', now(), 'test', 'delayed')")
    conn.execute("select pgq.insert_event_once('q', 'key', 'test', 'once')")
    ops.insert_ticked(conn, "q", "ticked")
    ops.insert(conn, "q", "not ticked")
    assert task_ops.claim(conn, "work")


def check(conn: Connection) -> None:
    """All is as it was, and goes on."""
    assert ops.value(conn, "show server_version_num") >= f"{NEW}0000"
    conn.execute("set role writer")
    ops.insert(conn, "q", "after it")
    with ops.refused("42501"):
        conn.execute("select pgq.next_batch('q', 'c')")
    conn.execute("reset role")
    conn.execute("insert into item values (1)")
    conn.execute("select pgq.insert_event_once('q', 'key', 'test', 'again')")
    batch = ops.value(conn, "select sub_batch from pgq.subscription")
    assert ops.payloads(conn, batch) == ["in a batch", "retried", "dead"]
    ops.finish(conn, batch)
    conn.execute("select pgq.maint_retry_events()")
    found = sorted(ops.deliver(conn, "q", "c"))
    assert found == ["after it", "delayed", "not ticked", "once", "retried", "ticked", '{"id":1}']
    assert ops.value(conn, "select ev_data from pgq.dead_letter") == "dead"
    ops.rotate_idle(conn, "q", "c", times=4)
    statuses = sorted(task_ops.statuses(conn).values())
    assert statuses == ["available", "available", "claimed"]
    assert len(task_ops.claim(conn, "work", number=5)) == 2


def test_pg_upgrade_needs_nothing(folder: Path) -> None:
    old, new = Server(folder / "old", version=OLD), Server(folder / "new", version=NEW)
    with old, psycopg.connect(with_schema(old.dsn), autocommit=True) as conn:
        prepare(conn)
        write(conn)
    with new:
        pass
    # Clusters of the new version have them.
    run(folder, old.bin_dir / "pg_checksums", "--enable", "-D", old.data_dir)
    run(
        folder,
        *(new.bin_dir / "pg_upgrade", "--username=postgres", "--no-sync", f"--socketdir={folder}"),
        *(f"--old-bindir={old.bin_dir}", f"--new-bindir={new.bin_dir}"),
        *(f"--old-datadir={old.data_dir}", f"--new-datadir={new.data_dir}"),
    )
    with new, psycopg.connect(new.dsn, autocommit=True) as conn:
        check(conn)


@pytest.mark.parametrize("ahead", ["old", "new"])
def test_logical_replication_needs_adopting_at_most(folder: Path, ahead: str) -> None:
    """Managed databases call it blue and green. Sequences are copied at the end, as they do."""
    with (
        Server(version=OLD, settings=LOGICAL) as old,
        Server(version=NEW, settings=LOGICAL) as new,
        psycopg.connect(with_schema(old.dsn), autocommit=True) as source,
        psycopg.connect(new.dsn, autocommit=True) as target,
    ):
        use_up_transaction_ids(source if ahead == "old" else target)
        prepare(source)
        source.execute("create publication everything for all tables")
        roles = run(folder, old.bin_dir / "pg_dumpall", "--roles-only", f"--dbname={old.dsn}")
        tables = run(folder, new.bin_dir / "pg_dump", "--schema-only", f"--dbname={old.dsn}")
        for name, dumped in ("roles", roles.replace("CREATE ROLE postgres;", "")), ("all", tables):
            file = folder / name
            file.write_text(dumped)
            run(folder, new.bin_dir / "psql", "-qX", "-v", "ON_ERROR_STOP=1", "-f", file, new.dsn)
        target.execute(
            sql.SQL("create subscription s connection {} publication everything").format(old.dsn)
        )
        ready = "select bool_and(srsubstate = 'r') from pg_subscription_rel"
        wait_until(lambda: ops.value(target, ready))
        write(source)
        here = ops.value(source, "select pg_current_wal_lsn()")
        there = "select replay_lsn >= %s from pg_stat_replication"
        wait_until(lambda: ops.value(source, there, here))
        target.execute("drop subscription s")
        for schema, name in source.execute(
            "select schemaname, sequencename from pg_sequences"
        ).fetchall():
            sequence = sql.Identifier(schema, name)
            state = sql.SQL("select last_value, is_called from {}").format(sequence)
            target.execute(
                "select setval(%s::regclass, %s, %s)",
                [sequence.as_string(target), *source.execute(state).fetchall()[0]],
            )
        if ahead == "old":
            with ops.refused("PQ009", match="adopt_restored"):
                ops.insert(target, "q", "after it")
            target.execute("select pgq.adopt_restored()")
        check(target)
