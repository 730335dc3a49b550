"""The ticker daemon and PgQ's own, pgqd, each a process with its default settings."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.place import connect
from pgqpy.embedded import Server

PGQD = """
[pgqd]
logfile = {directory}/pgqd.log
pidfile = {directory}/pgqd.pid
base_connstr = host={socket_dir} port=5432 user=postgres
initial_database = postgres
database_list = {database}
syslog = 0
"""


OTHERS = """
select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
"""


@contextmanager
def ticker(dsn: str, **settings: float) -> Iterator[psutil.Process]:
    """Run the ticker; it leads when the block begins. ``settings`` are those of a database."""
    lines = "\n".join(f"{key} = {float(value)}" for key, value in settings.items())
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "ticker.toml")
        config.write_text(f"[defaults]\n{lines}\n")
        log = Path(directory, "log")
        command = [sys.executable, "-m", "pgqpy_ticker", "--config", str(config), "--dsn", dsn]
        with log.open("w") as output, subprocess.Popen(command, stderr=output) as process:
            try:
                while "message=leading" not in log.read_text():
                    if process.poll() is not None:
                        raise RuntimeError(f"the ticker ended: {log.read_text()}")
                    time.sleep(0.05)
                yield psutil.Process(process.pid)
            finally:
                process.terminate()


@contextmanager
def pgqd(server: Server, dsn: str) -> Iterator[psutil.Process]:
    """Run pgqd; it is connected when the block begins."""
    program = shutil.which("pgqd")
    if program is None:
        raise FileNotFoundError("pgqd")
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "pgqd.ini")
        with connect(dsn) as conn:
            database = conn.info.dbname
        config.write_text(
            PGQD.format(directory=directory, socket_dir=server.socket_dir, database=database)
        )
        with subprocess.Popen([program, "-q", str(config)]) as process:
            try:
                with connect(dsn) as conn:
                    while not conn.execute(OTHERS).fetchone():
                        time.sleep(0.05)
                yield psutil.Process(process.pid)
            finally:
                process.terminate()
