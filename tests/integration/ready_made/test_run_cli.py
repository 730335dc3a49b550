"""``pgqpy run``: as people start it, with their own classes."""

from __future__ import annotations

import json
import os
import pty
import signal
from pathlib import Path

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli, Spawn
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import PATIENCE, eventually

CLASSES = """
from dataclasses import dataclass

import pgqpy
from pgqpy_consumers.ready import setting


class Plain(pgqpy.Consumer):
    \"\"\"Keeps the events' data.\"\"\"

    queue = "test_queue"
    consumer = "plain"
    word = ""

    def process_event(self, conn, event):
        if event.data == "bad":
            conn.execute("insert into no_such_table values (1)")
        conn.execute("insert into seen values (%s)", [self.word + event.data])


class Configured(Plain):
    \"\"\"Keeps the events' data, after a word.\"\"\"

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        dsn: str = setting("The database.")
        word: str = setting("What to write before the data.")

    @classmethod
    def from_config(cls, config):
        made = cls(config.dsn)
        made.word = config.word
        return made


class Asynchronous(pgqpy.AsyncConsumer):
    queue = "test_queue"
    consumer = "plain"

    async def process_event(self, conn, event):
        await conn.execute("insert into seen values (%s)", [event.data])


class Copy(pgqpy.RemoteConsumer):
    queue = "test_queue"
    consumer = "plain"

    def process_remote_event(self, target, event):
        target.execute("insert into seen values (%s)", [event.data])


class Forgotten(Plain):
    async def process_event(self, conn, event):
        ...


class Peculiar(Plain):
    def __init__(self):
        super().__init__()


class Misled(Plain):
    min_lag = 5
"""


@pytest.fixture
def classes(tmp_path: Path, conn: Connection, queue: str) -> str:
    """A file with consumers of `queue`; three events wait for them."""
    conn.execute("create table seen (data text)")
    ops.register(conn, queue, "plain")
    for data in ("a", "b", "c"):
        ops.insert(conn, queue, data)
    ops.tick(conn, queue)
    file = tmp_path / "our_consumers.py"
    file.write_text(CLASSES)
    return str(file)


def seen(conn: Connection) -> list[str]:
    return [data for (data,) in conn.execute("select data from seen order by data")]


@pytest.mark.parametrize("name", ["Plain", "Asynchronous"])
def test_a_consumer_without_settings_needs_no_file(
    cli: Cli, conn: Connection, classes: str, name: str
) -> None:
    cli.ok("run", f"{classes}:{name}", "--until-empty")
    assert seen(conn) == ["a", "b", "c"]


def test_a_consumer_is_made_from_its_file(
    cli: Cli,
    conn: Connection,
    queue: str,
    classes: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORD", "x-")
    file = tmp_path / "config.toml"
    file.write_text(f'dsn = {json.dumps(cli.dsn)}\nword = "${{WORD}}"\n')
    cli.ok("run", f"{classes}:Configured", str(file), "--until-empty")
    assert seen(conn) == ["x-a", "x-b", "x-c"]
    # An option names another database.
    ops.insert(conn, queue, "d")
    ops.tick(conn, queue)
    file.write_text('dsn = "host=/nowhere"\nword = ""\n')
    cli.ok("run", f"{classes}:Configured", str(file), "--until-empty", "--dsn", cli.dsn)
    assert seen(conn) == ["d", "x-a", "x-b", "x-c"]


def test_the_example_of_a_class_says_what_it_does_and_how_to_run_it(cli: Cli, classes: str) -> None:
    assert cli.ok("run", f"{classes}:Configured", "--example") == (
        "# Keeps the events' data, after a word.\n"
        f"# pgqpy run {classes}:Configured Configured.toml\n\n"
        '# The database.\ndsn = "postgresql:///shop"\n\n'
        '# What to write before the data.\nword = "the word"\n'
    )


def test_what_is_wrong_with_the_command_is_said(cli: Cli, classes: str, tmp_path: Path) -> None:
    assert "--list" in cli.fails("run", exit_code=2)
    assert "no consumer 'nothing' is ready" in cli.fails("run", "nothing", exit_code=2)
    said = cli.fails("run", f"{classes}:Configured", exit_code=2)
    assert "needs dsn, word; --example prints one" in said
    assert "has no consumer named Plane" in (said := cli.fails("run", f"{classes}:Plane"))
    assert "it has Plain, Configured, Asynchronous, Copy" in said
    file = tmp_path / "config.toml"
    file.write_text('wrd = "a"\n')
    said = cli.fails("run", f"{classes}:Configured", str(file), exit_code=2)
    assert "unknown key 'wrd'" in said
    assert "did you mean word?" in said
    none = str(tmp_path / "none.toml")
    assert "cannot read" in cli.fails("run", f"{classes}:Configured", none, exit_code=2)


def test_a_consumer_with_a_target_is_told_of_it(
    cli: Cli, conn: Connection, classes: str, tmp_path: Path
) -> None:
    said = cli.fails("run", f"{classes}:Copy", exit_code=2)
    assert "needs target_dsn; --example prints one" in said
    example = cli.ok("run", f"{classes}:Copy", "--example")
    assert "# Copy\n" in example
    assert 'target_dsn = "postgresql://reports.example/reports"' in example
    assert '# consumer = "plain"' in example
    file = tmp_path / "config.toml"
    file.write_text(f"target_dsn = {json.dumps(cli.dsn)}\n")
    cli.ok("run", f"{classes}:Copy", str(file), "--until-empty")
    assert seen(conn) == ["a", "b", "c"]


def test_a_class_that_cannot_work_is_told_so_in_a_line_and_takes_no_event(
    cli: Cli, conn: Connection, classes: str
) -> None:
    for name, wrong in (
        ("Forgotten", "error: Forgotten.process_event must not be `async def`"),
        ("Misled", "error: Misled: min_lag is 5; it must be a timedelta"),
        ("Peculiar", ":Peculiar cannot be made: TypeError: "),
    ):
        said = cli.fails("run", f"{classes}:{name}", "--until-empty")
        assert wrong in said
        assert "Traceback" not in said
        assert "defect" not in said
    cli.ok("run", f"{classes}:Plain", "--until-empty")
    assert seen(conn) == ["a", "b", "c"]


def test_a_batch_that_fails_ends_a_run_until_empty_with_its_error(
    cli: Cli, conn: Connection, queue: str, classes: str
) -> None:
    ops.insert(conn, queue, "bad")
    ops.tick(conn, queue)
    result = cli("run", f"{classes}:Plain", "--until-empty")
    assert result.exit_code == 1
    # The table is the user's: the hint must not be to install our schema.
    assert f'error: {classes}:Plain failed: UndefinedTable: relation "no_such_table"' in (
        result.stderr
    )
    assert "hint: the batch was rolled back; the next run gets it again" in result.stderr
    assert "Traceback" in result.stderr
    assert "bad" not in seen(conn)


def test_a_process_runs_until_sigterm_and_logs_fields(
    spawn: Spawn, conn: Connection, dsn: str, queue: str, classes: str
) -> None:
    process = spawn("run", f"{classes}:Plain", "--dsn", dsn, "--log-format", "json")
    eventually(conn, "select count(*) = 3 from seen")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    lines = [json.loads(line) for line in said.splitlines()]
    assert [line["message"] for line in lines] == [
        "consumer plain started",
        "consumer plain stopped",
    ]
    assert all(line["queue"] == queue for line in lines)


def test_a_terminal_shows_how_far_it_has_come(
    spawn: Spawn, conn: Connection, dsn: str, classes: str
) -> None:
    ours, theirs = pty.openpty()
    process = spawn("run", f"{classes}:Plain", "--dsn", dsn, "--until-empty", stderr=theirs)
    os.close(theirs)
    shown = b""
    # Reading a terminal that no process has open is an error on Linux.
    while piece := _read(ours):
        shown += piece
    os.close(ours)
    assert process.wait(PATIENCE) == 0, shown
    assert b"Plain: 1 batches, 3 events" in shown
    assert b"consumer plain started" in shown


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
