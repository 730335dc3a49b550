"""Workers written on Debian's python3-pgq, run by Debian's Python, share our queues."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.acceptance.reference.test_python3_pgq import CONFIG, PYTHON, _installed
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import PATIENCE

pytestmark = [pytest.mark.reference, pytest.mark.slow, pytest.mark.any_pg]
__all__ = ["_installed"]

WORKER = """
import json, os, sys
import pgq

class Worker(pgq.CoopConsumer):
    def process_batch(self, db, batch_id, events):
        curs = db.cursor()
        for ev in events:
            curs.execute("insert into effect values (%s, %s)", [ev.data, self.subconsumer_name])
            if ev.data == "again" and not ev.retry:
                ev.tag_retry(0)
            if ev.data == "die" and self.subconsumer_name == "w1":
                os._exit(9)

Worker("reader", "db", sys.argv[1:]).start()
"""


def run(dsn: str, directory: Path, worker: str, *arguments: str) -> int:
    """The worker's exit code, once there is nothing to do for it."""
    config = directory / f"{worker}.ini"
    more = f"consumer_name = shared\nsubconsumer_name = {worker}\nsubconsumer_timeout = 1 hour"
    text = CONFIG.format(dsn=dsn.replace("%", "%%"), directory=directory, more=more)
    config.write_text(text.replace("reader.pid", f"{worker}.pid"))
    return subprocess.run(
        [PYTHON, "-c", WORKER, str(config), "-q", *arguments],
        timeout=PATIENCE,
        check=False,
        stderr=subprocess.DEVNULL,
    ).returncode


def test_coop_consumers_of_python3_pgq_share_retry_and_take_over(
    conn: Connection, dsn: str, queue: str, tmp_path: Path
) -> None:
    conn.execute("create table effect (data text, worker text)")
    for worker in ("w1", "w2"):
        assert run(dsn, tmp_path, worker, "--register") == 0
    members = "select consumer_name from pgq.get_consumer_info()"
    assert [name for (name,) in conn.execute(members)] == ["shared", "shared.w1", "shared.w2"]

    for data in ("a", "again", "die", "b"):
        ops.insert(conn, queue, data)
        ops.tick(conn, queue)
    assert run(dsn, tmp_path, "w1") == 9
    assert run(dsn, tmp_path, "w2") == 0
    effects = "select data, worker from effect order by data"
    assert conn.execute(effects).fetchall() == [("a", "w1"), ("again", "w1"), ("b", "w2")]

    conn.execute("update pgq.subscription set sub_active = '2005-01-01' where sub_batch > 0")
    assert ops.value(conn, "select pgq.maint_retry_events()") == 1
    ops.tick(conn, queue)
    assert run(dsn, tmp_path, "w2") == 0
    assert conn.execute(effects).fetchall() == [
        ("a", "w1"),
        ("again", "w1"),
        ("again", "w2"),
        ("b", "w2"),
        ("die", "w2"),
    ]
    assert run(dsn, tmp_path, "w2", "--unregister") == 0
    assert [name for (name,) in conn.execute(members)] == ["shared"]
