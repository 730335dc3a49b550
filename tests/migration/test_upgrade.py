"""An upgrade under load: clients of the last release on the new schema, and the other way round.

The last release is the newest tag ``v*``; before the first one, a commit with the same tables.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path

import pytest

from pgqpy.schema import Manifest, migrate
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_example import Program, Run

pytestmark = [pytest.mark.slow, pytest.mark.any_pg]

ROOT = Path(__file__).parents[2]
#: Until there is a release; a change of tables, or of a function's parameters, moves it behind
#: that.
BEFORE_THE_FIRST = "a8f1c0ffd693"
#: Makes the functions of the last release others than those of today.
MARK = "-- of the last release"

PROGRAMS = {
    "producer": """
import signal, sys, time
import psycopg
import pgqpy
from pgqpy.tasks import Tasks

going = True

def stop(*_):
    global going
    going = False

signal.signal(signal.SIGTERM, stop)
number = int(sys.argv[2])
with psycopg.connect(sys.argv[1], autocommit=True) as conn:
    while going:
        with conn.transaction():
            pgqpy.Producer("events").insert_event(conn, "t", str(number))
            Tasks(conn).push("work", number)
        number += 1
        time.sleep(0.01)
print("committed", number, pgqpy.__file__, flush=True)
""",
    "consumer": """
import sys
import pgqpy

class Effects(pgqpy.Consumer):
    queue = "events"
    consumer = "effects"

    def process_event(self, conn, event):
        conn.execute("insert into event_effect values (%s)", [int(event.data)])

Effects(sys.argv[1]).run()
""",
    "worker": """
import sys
from pgqpy.tasks import TaskWorker

class Effects(TaskWorker):
    batch_size = 10

    def process_batch(self, conn, tasks):
        for task in tasks:
            conn.execute("insert into task_effect values (%s)", [task.payload])
        return [None] * len(tasks)

Effects(sys.argv[1], "work").run()
""",
    "ticker": """
import sys
from pgqpy.cli import main

main(["ticker", "--dsn", sys.argv[1]])
""",
    "migrate": """
import sys
from pgqpy.cli import main

main(["migrate", "--dsn", sys.argv[1]])
""",
}


def git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout


@pytest.fixture
def last_release(tmp_path: Path) -> Path:
    """The sources of the last release, each function with a comment more."""
    try:
        tags = git("tag", "--list", "v*", "--sort", "-version:refname").split()
        name = tags[0].decode() if tags else BEFORE_THE_FIRST
        packed = git("archive", "--format", "tar", name, *("pgqpy", "ticker", "sql", "migrations"))
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("the last release is not in this copy: it needs git's history")
    with tarfile.open(fileobj=BytesIO(packed)) as tar:
        tar.extractall(tree := tmp_path / "release", filter="data")
    for path in Manifest.load(tree / "sql").functions:
        path.write_text(path.read_text().replace("\nbegin\n", f"\nbegin\n{MARK}\n"))
    return tree


@pytest.mark.parametrize("first", ["schema", "clients"])
def test_nothing_is_lost_or_doubled_while_both_versions_run(
    other: Connection, empty_dsn: str, last_release: Path, tmp_path: Path, run: Run, first: str
) -> None:
    def start(name: str, tree: Path, *args: object) -> Program:
        path = tmp_path / f"{name}.py"  # not in a tree: Python looks beside it first
        path.write_text(PROGRAMS[name])
        found = ":".join(str(tree / part) for part in ("", "ticker"))
        command = (sys.executable, str(path), empty_dsn, *map(str, args))
        return run(*command, environment={"PYTHONPATH": found})

    def effects() -> tuple[int, int]:
        events: int = ops.value(other, "select count(*) from event_effect")
        tasks: int = ops.value(other, "select count(*) from task_effect")
        return events, tasks

    def go_on() -> None:
        """Wait until events and tasks have had effects since now."""
        events, tasks = effects()
        wait_until(lambda: effects() >= (events + 20, 0) and effects()[1] >= tasks + 20)

    def is_old() -> bool:
        return bool(ops.value(other, "select count(*) from pg_proc where prosrc ~ %s", MARK))

    def produced(tree: Path) -> int:
        """Stop the producer, and count the transactions of all producers so far."""
        assert running["producer"].terminate() == 0, running["producer"].lines
        number, place = running["producer"].hear("committed").split()[1:]
        assert place.startswith(f"{tree}/pgqpy/")
        return int(number)

    def replace(name: str) -> None:
        """Start the new one before the old one stops."""
        old, running[name] = running[name], start(name, ROOT)
        go_on()
        assert old.terminate() == 0, old.lines
        go_on()

    def upgrade_schema() -> None:
        assert is_old()
        migrate(empty_dsn)
        assert not is_old()
        go_on()

    def upgrade_clients() -> None:
        replace("consumer")
        replace("worker")
        running["producer"] = start("producer", ROOT, produced(last_release))
        go_on()

    start("migrate", last_release).finish()
    other.execute("create table event_effect (number int primary key)")
    other.execute("create table task_effect (number int primary key)")
    other.execute("select pgq.create_queue('events'), pgq_task.create_queue('work')")
    ops.register(other, "events", "effects")
    running = {name: start(name, last_release) for name in ("ticker", "consumer", "worker")}
    running["producer"] = start("producer", last_release, 0)
    go_on()
    steps: list[Callable[[], None]] = [upgrade_schema, partial(replace, "ticker"), upgrade_clients]
    for step in steps if first == "schema" else reversed(steps):
        step()
    # Doubled ones would violate a primary key, and end the programs.
    total = produced(ROOT)
    wait_until(lambda: effects() == (total, total))
    for program in running.values():
        assert program.process.poll() in (None, 0), program.lines
