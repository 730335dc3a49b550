"""Londiste replicates on our schema: Debian's Londiste and pgqd, a root and a branch with our
pgq_node, a leaf with PgQ's, from the first copy to a takeover.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from pgqpy.embedded import Server
from pgqpy.schema import node_sql
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection, create_database, drop_database
from tests.fixtures.fix_reference import missing_on_purpose
from tests.fixtures.fix_ticker import PATIENCE, eventually

pytestmark = [pytest.mark.reference, pytest.mark.slow, pytest.mark.any_pg]

PGQ_NODE, LONDISTE = (
    Path("/usr/share/postgresql/15/contrib", name) for name in ("pgq_node.sql", "londiste.sql")
)

NODE = """
[londiste]
job_name = {name}
db = {dsn}
queue_name = replika
logfile = {folder}/{name}.log
pidfile = {folder}/{name}.pid
use_skylog = 0
loop_delay = 0.4
parallel_copies = 1
local_wm_publish_period = 0.5
global_wm_publish_period = 0.5
"""

PGQD = """
[pgqd]
logfile = {folder}/pgqd.log
pidfile = {folder}/pgqd.pid
base_connstr = host={host} port=5432 user=postgres
initial_database = postgres
database_list = {databases}
syslog = 0
check_period = 1
retry_period = 0.2
maint_period = 0.2
ticker_period = 0.2
"""


@dataclass
class Node:
    """A database of the cascade, and Londiste's configuration for it."""

    name: str
    dsn: str
    conn: Connection
    config: Path

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            ["londiste", str(self.config), *arguments],
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def rows(self) -> list[tuple[object, ...]]:
        return self.conn.execute("select * from public.item order by id").fetchall()

    def replicates_ours(self) -> set[str]:
        """Tables and sequences of our schemas that are replicated."""
        rows = self.conn.execute(
            "select table_name from londiste.table_info where table_name like 'pgq%' "
            "union all select seq_name from londiste.seq_info where seq_name like 'pgq%'"
        ).fetchall()
        return {row[0] for row in rows}

    def has(self, marker: str) -> None:
        """Wait until a change has come."""
        eventually(self.conn, "select exists (select from public.item where note = %s)", marker)


@pytest.fixture
def nodes(server: Server, tmp_path: Path) -> Iterator[list[Node]]:
    """root, branch and leaf, each a database with our schema, a pgq_node and Londiste in it."""
    for program in ("londiste", "pgqd"):
        if shutil.which(program) is None:
            missing_on_purpose(program)
    for file in (PGQ_NODE, LONDISTE):
        if not file.exists():
            missing_on_purpose(str(file))
    found: list[Node] = []
    for name in ("root", "branch", "leaf"):
        database = create_database(server)
        dsn = f"host={server.socket_dir} port=5432 user=postgres dbname={database}"
        conn: Connection = psycopg.connect(dsn, autocommit=True)
        for script in (
            PGQ_NODE.read_text() if name == "leaf" else node_sql(),
            LONDISTE.read_text(),
        ):
            conn.execute(script.encode())
        config = tmp_path / f"{name}.ini"
        config.write_text(NODE.format(name=name, dsn=dsn, folder=tmp_path))
        found.append(Node(name, dsn, conn, config))
    yield found
    for node in found:
        database = node.conn.info.dbname
        node.conn.close()
        drop_database(server, database)


@pytest.fixture
def daemons(nodes: list[Node], server: Server, tmp_path: Path) -> Iterator[ExitStack]:
    """pgqd, and what is started in the stack: all end with the test."""
    config = tmp_path / "pgqd.ini"
    databases = ",".join(node.conn.info.dbname for node in nodes)
    config.write_text(PGQD.format(folder=tmp_path, host=server.socket_dir, databases=databases))
    with ExitStack() as stack:
        start(stack, "pgqd", "-q", str(config))
        yield stack
    # A worker starts its copies in the background; those of a test that fails would go on.
    for pid in tmp_path.glob("*.pid.*"):
        os.kill(int(pid.read_text()), signal.SIGTERM)


def start(stack: ExitStack, *command: str) -> None:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end() -> None:
        process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()

    stack.callback(end)


def test_root_branch_and_leaf_copy_follow_and_take_over(
    nodes: list[Node], daemons: ExitStack
) -> None:
    root, branch, leaf = nodes
    root.conn.execute("create table public.item (id serial primary key, n int, note text)")
    root.conn.execute("insert into public.item (n) select n from generate_series(1, 1000) n")
    root.run("create-root", "root", root.dsn)
    # Named by their schema: "--all" and "missing" mean tables of ours, too.
    root.run("add-table", "public.*")
    root.run("add-seq", "public.*")
    # A table added by mistake can be removed.
    root.run("add-table", "pgq_task.task")
    root.run("add-seq", "--all")
    assert {"pgq_task.task", "pgq_ids.replika"} <= root.replicates_ours()
    root.run("remove-table", "pgq_*.*")
    root.run("remove-seq", "pgq_*.*")
    assert root.replicates_ours() == set()
    # Copies begin after the last tick. One that hears of the mistake later, and not yet of its end,
    # cannot add a table or sequence. Twice: a tick may have been under way.
    for _ in range(2):
        tick = ops.value(root.conn, "select max(tick_id) from pgq.tick")
        root.conn.execute("select pgq.force_tick('replika')")
        eventually(root.conn, "select max(tick_id) > %s from pgq.tick", tick)
    branch.run("create-branch", "branch", branch.dsn, f"--provider={root.dsn}")
    leaf.run("create-leaf", "leaf", leaf.dsn, f"--provider={branch.dsn}")
    for node in (root, branch):
        for setting in ("ticker_max_lag", "ticker_idle_period", "rotation_period"):
            node.conn.execute("select pgq.set_queue_config('replika', %s, '0.2 s')", [setting])
    for node in nodes:
        start(daemons, "londiste", str(node.config), "worker")

    # From the root, so that both copies go on at once.
    for node in (branch, leaf):
        node.conn.execute("create sequence public.item_id_seq")
        node.run("add-table", "item", "--create", "--copy-node=root")
    for node in (branch, leaf):
        eventually(node.conn, "select bool_and(merge_state = 'ok') from londiste.table_info")
        node.run("add-seq", "item_id_seq")
        assert len(node.rows()) == 1000
    assert leaf.rows() == branch.rows() == root.rows()

    root.conn.execute("update public.item set n = -n where id % 10 = 0")
    root.conn.execute("delete from public.item where id % 10 = 1")
    root.conn.execute("insert into public.item (n, note) values (1, 'before')")
    leaf.has("before")
    assert leaf.rows() == branch.rows() == root.rows()

    branch.run("takeover", "root")
    # Maintenance of the old root has sent word of its sequence.
    branch.conn.execute(
        "insert into public.item values (nextval('public.item_id_seq'), 2, 'after')"
    )
    for node in (root, leaf):
        node.has("after")
        assert node.rows() == branch.rows()
    with pytest.raises(psycopg.Error, match="disabled"):
        root.conn.execute("insert into public.item (n) values (3)")
    assert "checksum" in leaf.run("compare", "item")
    for node in (root, branch):
        # Maintenance goes on, and does what pgq_node and Londiste want done.
        eventually(node.conn, "select queue_rotations > 0 from pgq.queue")
    operations = branch.conn.execute("select func_name from pgq.maint_operations()").fetchall()
    assert {("pgq_node.maint_watermark",), ("londiste.root_check_seqs",)} <= set(operations)
    assert ("pgq.maint_refused",) not in operations
