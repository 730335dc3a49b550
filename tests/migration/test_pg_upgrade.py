"""PostgreSQL's own upgrade to a new major version keeps queues and tasks."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgqpy.embedded import Server
from pgqpy.embedded._programs import process_options, server_account
from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import with_schema

OLD, NEW = 16, 18


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory of the servers' user."""
    with tempfile.TemporaryDirectory(prefix="pgqpy-") as made:
        if account := server_account():
            os.chown(made, account.pw_uid, account.pw_gid)
        yield Path(made)


def prepare(conn: Connection) -> None:
    """A queue with events read, in an open batch, ticked, and not; and tasks."""
    conn.execute("create role writer in role pgq_writer")
    conn.execute("select pgq.create_queue('q'), pgq.restrict_queue('q')")
    conn.execute("select pgq.grant_queue('q', '{insert}', 'writer')")
    conn.execute("select pgq.set_queue_config('q', 'key_window', '1 hour')")
    conn.execute("create table item (id int primary key)")
    conn.execute("select pgq.capture_table('item', 'q')")
    ops.rotate_whenever_asked(conn, "q")
    ops.register(conn, "q", "c")
    ops.open_batch(conn, "q", "c", "read before")
    ops.finish(conn, ops.value(conn, "select sub_batch from pgq.subscription"))
    batch = ops.open_batch(conn, "q", "c", "in a batch", "retried", "dead")
    for event, data in conn.execute(
        "select ev_id, ev_data from pgq.get_batch_events(%s)", [batch]
    ).fetchall():
        if data == "retried":
            conn.execute("select pgq.event_retry(%s, %s, 0)", [batch, event])
        elif data == "dead":
            conn.execute("select pgq.event_dead_letter(%s, %s, 'bad')", [batch, event])
    conn.execute("select pgq.insert_event_at('q', now(), 'test', 'delayed')")
    conn.execute("select pgq.insert_event_once('q', 'key', 'test', 'once')")
    ops.insert_ticked(conn, "q", "ticked")
    ops.insert(conn, "q", "not ticked")
    conn.execute("select pgq_task.create_queue('work')")
    task_ops.push_many(conn, "work", 3)
    assert task_ops.claim(conn, "work")


def test_queues_and_tasks_outlive_pg_upgrade(folder: Path) -> None:
    old, new = Server(folder / "old", version=OLD), Server(folder / "new", version=NEW)
    with old, psycopg.connect(with_schema(old.dsn), autocommit=True) as conn:
        prepare(conn)
    with new:
        pass
    for program, *options in (
        # Those of the new version have them.
        (old.bin_dir / "pg_checksums", "--enable", "-D", old.data_dir),
        (new.bin_dir / "pg_upgrade", "--username=postgres", f"--socketdir={folder}",
         f"--old-bindir={old.bin_dir}", f"--new-bindir={new.bin_dir}",
         f"--old-datadir={old.data_dir}", f"--new-datadir={new.data_dir}"),
    ):  # fmt: skip
        done = subprocess.run(
            [program, *options],
            **process_options(server_account()) | {"cwd": folder},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    with new, psycopg.connect(new.dsn, autocommit=True) as conn:
        assert ops.value(conn, "show server_version_num") >= f"{NEW}0000"
        conn.execute("set role writer")
        ops.insert(conn, "q", "after it")
        with ops.refused("42501"):
            conn.execute("select pgq.next_batch('q', 'c')")
        conn.execute("reset role")
        conn.execute("insert into item values (1)")
        again = "select pgq.insert_event_once('q', 'key', 'test', 'once')"
        assert ops.value(conn, again) == ops.value(conn, again)
        batch = ops.value(conn, "select sub_batch from pgq.subscription")
        assert ops.payloads(conn, batch) == ["in a batch", "retried", "dead"]
        ops.finish(conn, batch)
        conn.execute("select pgq.maint_retry_events()")
        found = ops.deliver(conn, "q", "c")
        assert sorted(found) == [
            *("after it", "delayed", "not ticked", "once", "retried", "ticked", '{"id":1}')
        ]
        assert ops.value(conn, "select ev_data from pgq.dead_letter") == "dead"
        ops.rotate_idle(conn, "q", "c", times=4)
        statuses = sorted(task_ops.statuses(conn).values())
        assert statuses == ["available", "available", "claimed"]
        assert len(task_ops.claim(conn, "work", number=5)) == 2
