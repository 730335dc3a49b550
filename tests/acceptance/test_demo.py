"""``make demo``: three results equal, and a database left as it was found."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from examples.demo.results import compare
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PATIENCE = 300.0

PNG = b"\x89PNG\r\n\x1a\n"

Run = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Run]:
    """``start("--no-spark")`` starts the demo at a terminal of 100 columns."""
    started: list[subprocess.Popen[str]] = []

    def start_one(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "examples.demo", *arguments],
            cwd=ROOT,
            env=os.environ | {"COLUMNS": "100"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait(PATIENCE)
        assert process.stdout is not None
        process.stdout.close()


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, output


def remains(conn: Connection) -> tuple[bool, int]:
    """Whether the demo's schema exists, and the number of queues."""
    row = conn.execute(
        "select to_regnamespace('pgqpy_demo') is not null, (select count(*) from pgq.queue)"
    ).fetchone()
    assert row is not None
    return row


@pytest.mark.spark
def test_three_results_are_equal_and_nothing_is_left(
    start: Run, empty_dsn: str, tmp_path: Path
) -> None:
    chart = tmp_path / "chart.png"
    code, output = finish(start("--dsn", empty_dsn, "--flights", "30000", "--chart", str(chart)))
    assert code == 0, output
    assert re.search(r"Equal: 16 of 16 airlines; by airline and month, (\d\d) of \1\.", output)
    for name in ("Events in", "Events out", "Latency", "rotation", "What to try next"):
        assert name in output
    assert "Left there, for your own queues: the schema pgq" in output
    assert chart.read_bytes().startswith(PNG)
    with psycopg.connect(empty_dsn) as conn:
        assert remains(conn) == (False, 0)


def test_it_runs_on_a_server_of_its_own(start: Run) -> None:
    code, output = finish(start("--no-spark", "--flights", "3000"))
    assert code == 0, output
    assert "embedded" in output
    assert "Equal: " in output


def test_what_is_kept_can_be_compared_again_and_makes_way_for_the_next(
    start: Run, dsn: str, conn: Connection
) -> None:
    arguments = ("--dsn", dsn, "--no-spark", "--flights", "3000", "--keep")
    for _ in range(2):
        code, output = finish(start(*arguments))
        assert code == 0, output
        assert "Kept in your database: the schema pgqpy_demo and the queue flights" in output
    assert remains(conn) == (True, 1)
    assert compare(conn, spark=False).equal

    # Behind the trigger's back: events that never were.
    conn.execute("set session_replication_role = replica")
    conn.execute("update pgqpy_demo.flight set arr_delay = arr_delay + 1 where id = 7")
    assert not compare(conn, spark=False).equal
    conn.execute("update pgqpy_demo.flight set arr_delay = arr_delay - 1 where id = 7")
    assert compare(conn, spark=False).equal
    conn.execute("delete from pgqpy_demo.flight where id = 7")
    assert not compare(conn, spark=False).equal


def test_a_password_is_not_shown(start: Run, dsn: str) -> None:
    secret = make_conninfo(dsn, password="open-sesame")
    process = start("--dsn", secret, "--no-spark", "--flights", "3000")
    ours = psutil.Process(process.pid).cmdline()
    commands: set[str] = set()
    while process.poll() is None:
        for child in psutil.Process(process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                # Between fork and exec a child shows its parent's.
                commands.update(" ".join(c) for c in [child.cmdline()] if c != ours)
    code, output = finish(process)
    assert code == 0, output
    assert any("ticker" in command for command in commands)
    assert "sesame" not in output + "".join(commands)


@pytest.mark.parametrize(
    ("theirs", "word"),
    [
        ("create schema pgqpy_demo", "schema pgqpy_demo"),
        ("select pgq.create_queue('flights')", "queue 'flights'"),
    ],
)
def test_what_is_not_its_own_is_not_touched(
    start: Run, dsn: str, conn: Connection, theirs: str, word: str
) -> None:
    conn.execute(theirs.encode())
    before = remains(conn)
    code, output = finish(start("--dsn", dsn, "--no-spark", "--flights", "3000"))
    assert code == 1
    assert word in output
    assert "the demo did not make it" in output
    assert "Traceback" not in output
    assert remains(conn) == before


def test_a_schema_pgq_of_another_program_is_not_touched(start: Run, empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn) as conn:
        conn.execute("create schema pgq")
    code, output = finish(start("--dsn", empty_dsn, "--no-spark"))
    assert code == 1
    assert "another program's" in output
    with psycopg.connect(empty_dsn) as conn:
        assert conn.execute("select to_regnamespace('pgqpy_demo')").fetchone() == (None,)


def test_two_demos_do_not_meet_in_one_database(start: Run, dsn: str, conn: Connection) -> None:
    first = start("--dsn", dsn, "--no-spark", "--flights", "30000")
    eventually(conn, "select to_regclass('pgqpy_demo.batch_log') is not null")
    # It does not end before the other one has begun.
    first.send_signal(signal.SIGSTOP)
    try:
        code, output = finish(start("--dsn", dsn, "--no-spark", "--flights", "3000"))
    finally:
        first.send_signal(signal.SIGCONT)
    assert code == 1
    assert "Another demo is running" in output
    code, output = finish(first)
    assert code == 0, output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_stops_its_processes_and_tidies_up(
    start: Run, dsn: str, conn: Connection, number: signal.Signals
) -> None:
    process = start("--dsn", dsn, "--no-spark")
    eventually(conn, "select to_regclass('pgqpy_demo.batch_log') is not null")
    eventually(conn, "select count(*) > 3 from pgqpy_demo.batch_log")
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    code, output = finish(process)
    assert code == 130
    assert "Stopped" in output
    assert "Traceback" not in output
    assert len(children) == 2
    _, alive = psutil.wait_procs(children, timeout=PATIENCE)
    assert not alive
    assert remains(conn) == (False, 0)


def test_a_consumer_that_dies_ends_the_demo_with_its_last_words(
    start: Run, dsn: str, conn: Connection
) -> None:
    process = start("--dsn", dsn, "--no-spark")
    eventually(conn, "select to_regclass('pgqpy_demo.batch_log') is not null")
    eventually(conn, "select count(*) > 3 from pgqpy_demo.batch_log")
    (consumer,) = [
        child
        for child in psutil.Process(process.pid).children()
        if "examples.demo.delay_counter" in child.cmdline()
    ]
    consumer.kill()
    code, output = finish(process)
    assert code == 1
    assert "delay_counter ended with code -9" in output
    assert remains(conn) == (False, 0)


def test_killed_it_leaves_no_process_and_the_next_run_tidies_up(
    start: Run, dsn: str, conn: Connection
) -> None:
    process = start("--dsn", dsn, "--no-spark")
    eventually(conn, "select to_regclass('pgqpy_demo.batch_log') is not null")
    eventually(conn, "select count(*) > 3 from pgqpy_demo.batch_log")
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    finish(process)
    _, alive = psutil.wait_procs(children, timeout=PATIENCE)
    assert not alive
    assert remains(conn) == (True, 1)
    code, output = finish(start("--dsn", dsn, "--no-spark", "--flights", "3000"))
    assert code == 0, output
    assert remains(conn) == (False, 0)


def test_without_java_it_says_what_to_install(
    start: Run, dsn: str, conn: Connection, tmp_path: Path
) -> None:
    code, output = finish(start("--dsn", dsn, PATH=str(tmp_path), JAVA_HOME=""))
    assert code == 1
    assert "openjdk-17-jre-headless" in output
    assert "Traceback" not in output
    assert remains(conn) == (False, 0)


def test_it_uses_only_a_database_that_is_named(start: Run, dsn: str) -> None:
    # Without --dsn there is no database in which --keep could keep anything.
    code, output = finish(start("--keep", PGQPY_DSN=dsn))
    assert code == 2
    assert "--dsn" in output


def test_a_server_that_is_not_there_is_an_error_without_a_traceback(start: Run) -> None:
    code, output = finish(start("--no-spark", "--dsn", "postgresql://127.0.0.1:1/nowhere"))
    assert code == 1
    assert "error: " in output
    assert "127.0.0.1" in output
    assert "Traceback" not in output
