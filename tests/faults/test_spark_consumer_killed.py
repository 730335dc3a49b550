"""Spark consumers as the processes they are: killed, told to stop, watched."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli, Spawn
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE = 300.0

# Each batch waits for leave twice: in a task, and when its effects are written.
PROGRAM = """
import pgqpy
from pgqpy_consumers.spark import SparkConsumer

def wait_for(dsn, what):
    with pgqpy.connect(dsn, autocommit=True, application_name="waits") as conn:
        conn.execute("insert into reached values (%s)", [what])
        conn.execute("select pg_advisory_lock_shared(hashtext(%s))", [what])

class Effects(SparkConsumer):
    queue = "test_queue"
    consumer = "effects"
    batch_size = None
    num_partitions = 2

    def process_batch(self, spark, batch, df):
        dsn = self.conn.info.dsn

        def slowly(rows):
            for each in rows:
                wait_for(dsn, "task")
                yield each

        rows = df.select("ev_id").mapInPandas(slowly, "ev_id long").collect()
        ids = [[row.ev_id] for row in rows]
        with self.conn.cursor() as cursor:
            cursor.executemany("insert into effect values (%s)", ids)
        print("effects written", flush=True)
        wait_for(dsn, "written")

if __name__ == "__main__":
    Effects.main()
"""


@pytest.fixture
def program(tmp_path: Path, conn: Connection, queue: str) -> str:
    """The path of a program whose consumer is registered and has three batches of 20 events."""
    conn.execute("create table effect (ev_id int8)")
    conn.execute("create table reached (what text)")
    ops.register(conn, queue, "effects")
    for _ in range(3):
        for _ in range(20):
            ops.insert(conn, queue, "event")
        ops.tick(conn, queue)
    path = tmp_path / "effects.py"
    path.write_text(PROGRAM)
    return str(path)


@pytest.fixture
def holding(conn: Connection) -> None:
    """Make writes of batches wait until the end of the test, or until it unlocks them."""
    conn.execute("select pg_advisory_lock(hashtext('written'))")


def once(program: str, dsn: str) -> subprocess.Popen[str]:
    """The program as a scheduler starts it."""
    return subprocess.Popen(
        [sys.executable, program, "--once", "--dsn", dsn, "--master", "local[2]"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL for the driver alone; its Java and its Python workers have to find out."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    assert not alive


@pytest.mark.usefixtures("holding")
def test_the_effects_of_a_batch_that_was_killed_happen_once(
    conn: Connection, dsn: str, program: str
) -> None:
    first = once(program, dsn)
    try:
        eventually(
            conn, "select exists (select from reached where what = 'written')", patience=PATIENCE
        )
    finally:
        kill(first)
    batch = ops.value(conn, "select sub_batch from pgq.subscription")
    assert batch is not None
    assert ops.value(conn, "select count(*) from effect") == 0
    conn.execute("select pg_advisory_unlock_all()")

    second = once(program, dsn)
    try:
        _, said = second.communicate(timeout=PATIENCE)
    finally:
        second.kill()
    assert second.returncode == 0, said
    # Not a terminal: only lines for the log.
    assert "\x1b" not in said
    assert [int(n) for n in re.findall("batch (\\d+) of effects: ", said)] == [
        batch, batch + 1, batch + 2,
    ]  # fmt: skip
    delivered = conn.execute(
        "select count(*), times"
        "  from (select count(*) as times from effect group by ev_id) e group by 2"
    ).fetchall()
    assert delivered == [(60, 1)]


class Terminal:
    """A terminal for a process; what it shows is kept."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        self._shown = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        # Linux says EIO when the last process has closed the other end.
        try:
            while part := os.read(self._ours, 4096):
                self._shown += part
        except OSError:
            pass

    @property
    def shown(self) -> str:
        return self._shown.decode(errors="replace")


def test_a_batch_is_watched_and_told_to_stop(
    cli: Cli, conn: Connection, program: str, spawn: Spawn
) -> None:
    # Tasks of the first stage wait, so that there is something to see.
    conn.execute("select pg_advisory_lock(hashtext('task'))")
    terminal = Terminal()
    running = spawn(
        *("spark", "run", f"{program}:Effects", "--master", "local[2]"),
        stderr=terminal.theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(terminal.theirs)
    eventually(conn, "select exists (select from reached)", patience=PATIENCE)
    eventually(
        conn,
        "select exists (select from pg_stat_activity where application_name ~ '0/1 tasks')",
        patience=PATIENCE,
    )
    [consumer] = cli.json("status")["queues"][0]["consumers"]
    assert consumer["progress"]["batch_id"] == consumer["current_batch"]
    assert (consumer["progress"]["tasks_done"], consumer["progress"]["tasks"]) == (0, 1)
    # Nothing is held while Spark computes.
    assert conn.execute(
        "select distinct backend_xmin, backend_xid from pg_stat_activity"
        " where application_name ~ '^pgqpy .*effects( [0-9.]+)?$'"
    ).fetchall() == [(None, None)]

    # The line is drawn a moment after the session has its name.
    batch = rf"batch {consumer['current_batch']} of effects"
    line = batch + r": [\d,]+ events, 0/1 tasks, \d+ s, \d.* behind"
    end = time.monotonic() + PATIENCE
    while not re.search(line, terminal.shown):
        assert time.monotonic() < end, terminal.shown
        time.sleep(0.01)

    running.send_signal(signal.SIGTERM)
    conn.execute("select pg_advisory_unlock_all()")
    said, _ = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, terminal.shown
    assert ops.value(conn, "select count(*) from effect") == 20
    assert said == "effects written\n"
    assert "consumer effects stopped" in terminal.shown
    # The session has gone, and with it what it told.
    assert cli.json("status")["queues"][0]["consumers"][0]["progress"] is None
