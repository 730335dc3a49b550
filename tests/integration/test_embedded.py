"""The embedded server: starts anywhere, survives crashes, leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import psycopg
import pytest

from pgqpy.embedded import EmbeddedError, Server, find_bin_dir
from pgqpy.embedded._programs import process_options, server_account
from tests.fixtures.fix_client import PATIENCE


def one(dsn: str, query: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]


def do(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute(statement.encode())


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that the server's user may enter; pytest's are private."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_server_has_its_settings_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever port and host the environment names, and as root by another user."""
    for name, value in {"PGPORT": "1", "PGHOST": "nowhere", "PGDATA": "/nowhere"}.items():
        monkeypatch.setenv(name, value)
    settings = {"max_prepared_transactions": 7, "fsync": True, "port": 15432}
    with Server(settings=settings) as server:
        assert one(server.dsn, "show port") == "15432"
        assert one(server.dsn, "show max_prepared_transactions") == "7"
        assert one(server.dsn, "show fsync") == "on"
        pid = server.pid
        assert psutil.Process(pid).uids().real != 0
        assert server.socket_dir.stat().st_mode & 0o077 == 0
        directories = [server.data_dir, server.socket_dir]
        assert all(directory.is_dir() for directory in directories)
    assert not any(directory.exists() for directory in directories)
    assert not psutil.pid_exists(pid)


def test_unknown_setting_is_reported_in_postgresqls_words() -> None:
    with (
        pytest.raises(EmbeddedError, match="no_such_setting"),
        Server(settings={"no_such_setting": 1}),
    ):
        pass


def test_committed_work_survives_kill_and_a_restart_keeps_the_address() -> None:
    with Server() as server:
        dsn = server.dsn
        do(dsn, "create table kept as select 42 as n")
        server.restart()
        for _ in range(2):
            server.kill()
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(dsn)
            server.restart()
            assert one(dsn, "select n from kept") == 42


def test_several_start_at_once() -> None:
    def start_and_ask(number: int) -> object:
        with Server() as server:
            return one(server.dsn, f"select {number}")

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(start_and_ask, range(3))) == [0, 1, 2]


def test_second_server_on_a_data_directory_is_refused_and_the_next_has_its_data(
    folder: Path,
) -> None:
    data_dir = folder / "data"
    with Server(data_dir) as first:
        do(first.dsn, "create table kept as select 42 as n")
        with pytest.raises(EmbeddedError, match="in use by another"), Server(data_dir):
            pass
    with Server(data_dir) as next_one:
        assert one(next_one.dsn, "select n from kept") == 42
    assert not first.socket_dir.exists()


def test_cluster_that_runs_already_is_left_alone(folder: Path) -> None:
    """A server that we could not start is not stopped."""
    data_dir = folder / "data"
    with Server(data_dir) as server:
        command: list[str | Path] = [server.bin_dir / "pg_ctl", "-w", "-D", data_dir]
    as_server = {"stdout": subprocess.DEVNULL} | process_options(server_account())
    options = f"-c listen_addresses= -k {data_dir}"
    log = data_dir / "log"
    subprocess.run([*command, "-o", options, "-l", log, "start"], check=True, **as_server)
    try:
        with pytest.raises(EmbeddedError, match=r"postmaster\.pid"), Server(data_dir):
            pass
        subprocess.run([*command, "status"], check=True, **as_server)
    finally:
        subprocess.run([*command, "stop"], check=True, **as_server)


def test_directory_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear reader")
    before = tmp_path.stat()
    with pytest.raises(EmbeddedError, match="neither empty nor"), Server(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    assert tmp_path.stat().st_uid == before.st_uid


def test_killed_python_takes_its_server_along() -> None:
    program = """
import sys
from pgqpy.embedded import Server
with Server() as server:
    print(server.pid, server.data_dir, server.socket_dir, sep="\\n", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as python:
        assert python.stdout is not None
        said = [python.stdout.readline().strip() for _ in range(3)]
        postmaster = psutil.Process(int(said[0]))
        data_dir, socket_dir = Path(said[1]), Path(said[2])
        keeper = next(
            child
            for child in psutil.Process(python.pid).children()
            if "pgqpy-keeper" in child.cmdline()
        )
        python.send_signal(signal.SIGKILL)
    keeper.wait(timeout=PATIENCE)
    assert not postmaster.is_running() or postmaster.status() == psutil.STATUS_ZOMBIE
    assert not data_dir.exists()
    assert not socket_dir.exists()


def test_temporary_directory_too_long_for_a_socket_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 100)))
    with pytest.raises(EmbeddedError, match="TMPDIR"), Server():
        pass


def test_missing_version_says_what_to_install() -> None:
    with pytest.raises(EmbeddedError, match="apt-get install postgresql-11"):
        find_bin_dir(11)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another user")
def test_root_can_use_binaries_in_a_private_directory(tmp_path: Path) -> None:
    """A virtual environment in root's home, which the server's user cannot enter."""
    installed = find_bin_dir(18).parent
    private = tmp_path / installed.parent.name
    private.mkdir(mode=0o700)
    (private / installed.name).symlink_to(installed)
    libraries = f"{installed.parent.name}.libs"
    (tmp_path / libraries).symlink_to(installed.parent.with_name(libraries))
    with Server(bin_dir=private / installed.name / "bin") as server:
        assert one(server.dsn, "select 1") == 1
