"""Remote consumers written on Debian's python3-pgq keep track of themselves in our pgq_ext."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.acceptance.reference.test_python3_pgq import PYTHON, _installed  # noqa: F401
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import PATIENCE

pytestmark = [pytest.mark.reference, pytest.mark.slow, pytest.mark.any_pg]

#: Dies once, when the target has committed and the source does not know it yet.
CONSUMER = """
import os, sys
from pgq.remoteconsumer import RemoteConsumer, SerialConsumer

kind = {"remote": RemoteConsumer, "serial": SerialConsumer}[sys.argv[1]]

class Copy(kind):
    def process_remote_batch(self, db, batch_id, events, target):
        for ev in events:
            target.cursor().execute("insert into effect values (%s)", [ev.data])

    def process_batch(self, db, batch_id, events):
        super().process_batch(db, batch_id, events)
        if os.path.exists(sys.argv[2]):
            os.unlink(sys.argv[2])
            os._exit(9)

Copy("copy", "db", "target", sys.argv[3:]).start()
"""

CONFIG = """
[copy]
job_name = copy
db = {dsn}
target = {target_dsn}
queue_name = test_queue
logfile = {directory}/copy.log
pidfile = {directory}/copy.pid
use_skylog = 0
# Leave when there is nothing to do.
loop_delay = 0
"""


@pytest.mark.parametrize("kind", ["remote", "serial"])
def test_a_consumer_of_python3_pgq_applies_each_batch_once(
    conn: Connection,
    dsn: str,
    target: Connection,
    target_dsn: str,
    queue: str,
    tmp_path: Path,
    kind: str,
) -> None:
    config = tmp_path / "copy.ini"
    config.write_text(
        CONFIG.format(
            dsn=dsn.replace("%", "%%"), target_dsn=target_dsn.replace("%", "%%"), directory=tmp_path
        )
    )
    die = tmp_path / "die"

    def run(*arguments: str) -> int:
        (tmp_path / "copy.pid").unlink(missing_ok=True)
        done = subprocess.run(
            [PYTHON, "-c", CONSUMER, kind, str(die), str(config), "-q", *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode in (0, 9), done.stderr
        return done.returncode

    target.execute("create table effect (data text)")
    assert run("--register") == 0
    for number in range(3):
        ops.insert(conn, queue, f"event {number}")
        ops.tick(conn, queue)
    die.touch()
    assert run() == 9
    assert ops.value(target, "select count(*) from effect") == 1
    assert run() == 0
    rows = target.execute("select data from effect order by 1").fetchall()
    assert rows == [("event 0",), ("event 1",), ("event 2",)]

    tracked = ops.value(conn, "select last_tick from pgq.get_consumer_info()")
    if kind == "serial":
        assert ops.value(target, "select pgq_ext.get_last_tick('copy')") == tracked
        # The target is restored from an older backup; the source goes back to where that stands.
        target.execute("select pgq_ext.set_last_tick('copy', %s)", [tracked - 1])
        target.execute("delete from effect where data = 'event 2'")
        assert run("--rewind") == 0
        assert run() == 0
        assert ops.value(target, "select count(*) from effect") == 3
    else:
        assert ops.value(target, "select count(*) from pgq_ext.completed_batch") == 1
