"""``make demo``: three results equal, and a database left as it was found."""

from __future__ import annotations

import importlib.util
import re
import shutil
import signal
import sys
import zipfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from examples.demo import __main__ as demo
from examples.demo.flights import PACKAGE
from examples.demo.results import compare
from pgqpy.doctor import Verdict, examine
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_console import csrf
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_example import Program, Run
from tests.fixtures.fix_ticker import eventually

pytestmark = pytest.mark.slow

PATIENCE = 300.0
Refused = Callable[..., str]

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def fewer_flights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where a package has 30,000 of the flights: to read all takes seconds."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    packages = tmp_path_factory.mktemp("packages")
    data = packages / PACKAGE / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").touch()
    original = Path(spec.origin).parent / "data"
    shutil.copy(original / "airlines.csv", data)
    with zipfile.ZipFile(original / "flights.csv.zip") as files:
        lines = files.read("flights.csv").splitlines(keepends=True)
    with zipfile.ZipFile(data / "flights.csv.zip", "w") as files:
        files.writestr("flights.csv", b"".join(lines[:30_001]))
    return str(packages)


@pytest.fixture
def start(request: pytest.FixtureRequest, run: Run, fewer_flights: str) -> Run:
    """``start("--no-spark")`` starts the demo at a terminal of 100 columns.

    On all flights in a test that is marked ``spark``.
    """
    environment = {"COLUMNS": "100"}
    if not request.node.get_closest_marker("spark"):
        environment["PYTHONPATH"] = fewer_flights

    def start_one(*arguments: str) -> Program:
        command = (sys.executable, "-m", "examples.demo", *arguments)
        return run(*command, environment=environment)

    return start_one


def finish(program: Program) -> tuple[int, str]:
    """Exit code and output."""
    return program.wait(PATIENCE), "\n".join(program.lines)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """``refused("--no-spark")``: the words with which the demo, run in this process, ends."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def run_here(*arguments: str, code: int = 1) -> str:
        monkeypatch.setattr(sys, "argv", ["demo", *arguments])
        try:
            ended = demo.main()
        except SystemExit as wrong_usage:
            ended = int(wrong_usage.code or 0)
        said = capsys.readouterr()
        assert ended == code, said
        return said.out + said.err

    return run_here


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
    code, output = finish(start("--dsn", empty_dsn, "--flights", "20000", "--chart", str(chart)))
    assert code == 0, output
    assert re.search(r"Equal: (\d\d) of \1 airlines; by airline and month, (\d\d) of \2\.", output)
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


def test_what_is_not_its_own_is_not_touched(refused: Refused, dsn: str, conn: Connection) -> None:
    arguments = ("--dsn", dsn, "--no-spark", "--flights", "3000")
    for theirs, word in (
        ("select pgq.create_queue('flights')", "queue 'flights'"),
        ("create schema pgqpy_demo", "schema pgqpy_demo"),
    ):
        conn.execute(theirs.encode())
        before = remains(conn)
        output = refused(*arguments)
        assert word in output
        assert "the demo did not make it" in output
        assert remains(conn) == before


def test_a_schema_pgq_of_another_program_is_not_touched(refused: Refused, empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn) as conn:
        conn.execute("create schema pgq")
    assert "another program's" in refused("--dsn", empty_dsn, "--no-spark")
    with psycopg.connect(empty_dsn) as conn:
        assert conn.execute("select to_regnamespace('pgqpy_demo')").fetchone() == (None,)


def test_what_it_cannot_work_with_is_said(
    refused: Refused, dsn: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = "postgresql://127.0.0.1:1/nowhere"
    output = refused("--no-spark", "--dsn", nowhere)
    assert "error: " in output
    assert "127.0.0.1" in output
    # Without --dsn there is no database in which --keep could keep anything.
    monkeypatch.setenv("PGQPY_DSN", dsn)
    assert "--dsn" in refused("--keep", code=2)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "")
    assert "openjdk-17-jre-headless" in refused("--dsn", dsn)
    assert remains(conn) == (False, 0)


def at_work(program: Program, conn: Connection) -> list[psutil.Process]:
    """Wait until its consumer is at work; its processes."""
    eventually(conn, "select to_regclass('pgqpy_demo.batch_log') is not null", patience=PATIENCE)
    eventually(conn, "select count(*) > 3 from pgqpy_demo.batch_log", patience=PATIENCE)
    children: list[psutil.Process] = psutil.Process(program.process.pid).children(recursive=True)
    return children


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_stops_its_processes_and_tidies_up(
    start: Run, refused: Refused, dsn: str, conn: Connection, number: signal.Signals
) -> None:
    """Nor is a password shown, by its output or by the commands of its processes."""
    secret = make_conninfo(dsn, password="open-sesame")
    program = start("--dsn", secret, "--no-spark", "--flights", "30000")
    children = at_work(program, conn)
    # It does not end before another one has begun, which it does not meet.
    program.process.send_signal(signal.SIGSTOP)
    assert "Another demo is running" in refused("--dsn", dsn, "--no-spark", "--flights", "3000")
    commands = " ".join(word for child in children for word in child.cmdline())
    program.process.send_signal(signal.SIGCONT)
    program.process.send_signal(number)
    code, output = finish(program)
    assert code == 130, output
    assert "Stopped" in output
    assert "Traceback" not in output
    assert "pgqpy ticker" in commands
    assert "sesame" not in output + commands
    assert len(children) == 2
    _, alive = psutil.wait_procs(children, timeout=PATIENCE)
    assert not alive
    assert remains(conn) == (False, 0)


def test_a_session_that_is_lost_ends_the_demo_and_another_tidies_up(
    start: Run, dsn: str, conn: Connection
) -> None:
    """Ctrl-C in the middle of a statement may leave a session that takes no other."""
    program = start("--dsn", dsn, "--no-spark", "--flights", "30000")
    at_work(program, conn)
    conn.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where application_name = 'pgqpy demo: reader'"
    )
    code, output = finish(program)
    assert code == 1
    assert "error: " in output
    assert remains(conn) == (False, 0)


def test_a_consumer_that_dies_ends_the_demo_with_its_last_words(
    start: Run, dsn: str, conn: Connection
) -> None:
    program = start("--dsn", dsn, "--no-spark", "--flights", "30000")
    (consumer,) = [
        child
        for child in at_work(program, conn)
        if "examples.demo.delay_counter" in child.cmdline()
    ]
    consumer.kill()
    code, output = finish(program)
    assert code == 1
    assert "delay_counter ended with code -9" in output
    assert remains(conn) == (False, 0)


def test_killed_it_leaves_no_process_and_the_next_run_tidies_up(
    start: Run, dsn: str, conn: Connection
) -> None:
    program = start("--dsn", dsn, "--no-spark", "--flights", "30000")
    children = at_work(program, conn)
    program.process.kill()
    _, alive = psutil.wait_procs(children, timeout=PATIENCE)
    assert not alive
    assert remains(conn) == (True, 1)
    code, output = finish(start("--dsn", dsn, "--no-spark", "--flights", "3000"))
    assert code == 0, output
    assert remains(conn) == (False, 0)


def test_console_and_doctor_name_the_trouble_and_say_when_it_is_over(
    start: Run, dsn: str, conn: Connection
) -> None:
    program = start("--dsn", dsn, "--no-spark", "--flights", "20000", "--ui")
    link = program.hear("The console: ", PATIENCE).split()[-1]
    with httpx.Client(base_url=link.partition("/sign-in")[0], timeout=PATIENCE) as console:

        def press(action: str, kind: str = "") -> None:
            form = {"action": action, "kind": kind, "csrf": csrf(console.get("/trouble").text)}
            headers = {"Sec-Fetch-Site": "same-origin"}
            assert console.post("/trouble", data=form, headers=headers).status_code == 303

        def until(is_named: bool, in_console: str, by_doctor: str) -> None:
            def says() -> bool:
                report = examine(conn, stuck_after=timedelta(seconds=2))
                told = [each.message for each in report.findings if each.verdict is not Verdict.OK]
                return (
                    (in_console in console.get("/").text)
                    == any(by_doctor in each for each in told)
                    == is_named
                )

            wait_until(says)

        console.get(link)
        for kind, *words in (
            ("Kill the ticker", "<dd>none <small>", "no pgqpy ticker leads"),
            ("Stop a consumer", "delay_counter is stuck", "delay_counter is stuck"),
            ("Hold the horizon", "nightly report", "nightly report"),
            ("Insert a poison event", "delay_counter fails", "delay_counter fails"),
        ):
            until(False, *words)
            press("make", kind)
            until(True, *words)
            press("end")
            until(False, *words)
    assert program.interrupt() == 130
    assert remains(conn) == (False, 0)
