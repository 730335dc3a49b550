"""`pgqpy spark run`: a consumer's class becomes a program that schedulers understand."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_db import Connection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PROGRAM = """
import pgqpy
from pgqpy_consumers.spark import SparkConsumer
from neighbour import FACTOR

def tenfold(numbers):
    # A function of this file: executors, which do not have it, get it with the task.
    for batch in numbers:
        yield batch.assign(n=[scaled(n) for n in batch["n"]])

def scaled(n):
    return FACTOR * n

class Tenfold(SparkConsumer):
    queue = "test_queue"
    consumer = "tenfold"

    def process_batch(self, spark, batch, df):
        if self.consumer == "clumsy":
            self.conn.execute("select 1 / 0")
        numbers = df.selectExpr("cast(ev_data as long) as n").mapInPandas(tenfold, "n long")
        rows = [(row.n,) for row in numbers.collect()]
        with self.conn.cursor() as cursor:
            cursor.executemany("insert into effect values (%s)", rows)
        if (10_000,) in rows:
            return
        with pgqpy.connect(self.conn.info.dsn, autocommit=True) as conn:
            conn.execute("select pgq.insert_event('test_queue', 'test', '1000')")
            conn.execute("select pgq.force_tick('test_queue')")
            conn.execute("select pgq.ticker('test_queue')")
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of a file with a consumer."""
    # The command configures it; the next test shall not hear of that.
    monkeypatch.setattr(logging.getLogger("pgqpy"), "level", logging.NOTSET)
    (tmp_path / "neighbour.py").write_text("FACTOR = 10\n")
    path = tmp_path / "tenfold_program.py"
    path.write_text(PROGRAM)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return str(path)


def test_once_processes_what_is_there_and_nothing_that_comes_meanwhile(
    cli: Cli, spark: SparkSession, conn: Connection, queue: str, program: str
) -> None:
    conn.execute("create table effect (n int8)")
    ops.register(conn, queue, "tenfold")
    for number in range(3):
        ops.insert(conn, queue, str(number))
        ops.tick(conn, queue)
    cli.ok("spark", "run", f"{program}:Tenfold", "--once")
    assert ops.value(conn, "select array_agg(n order by n) from effect") == [0, 10, 20]
    cli.ok("spark", "run", f"{program}:Tenfold", "--once")
    assert ops.value(conn, "select array_agg(n order by n) from effect") == [0, 10, 20, 10_000]


def test_once_ends_with_1_when_a_batch_failed_and_says_which(
    cli: Cli, spark: SparkSession, conn: Connection, queue: str, program: str
) -> None:
    ops.register(conn, queue, "clumsy")
    ops.insert(conn, queue, "1")
    ops.tick(conn, queue)
    result = cli("spark", "run", f"{program}:Tenfold", "--once", "--consumer", "clumsy")
    assert result.exit_code == 1
    batch = ops.value(conn, "select sub_batch from pgq.subscription")
    assert f"error: batch {batch} failed: DivisionByZero" in result.stderr
    assert "hint: it was rolled back; the next run gets the same batch again" in result.stderr


def test_a_queue_that_is_missing_is_told_as_by_any_command(
    cli: Cli, spark: SparkSession, program: str
) -> None:
    said = cli.fails("spark", "run", f"{program}:Tenfold", "--once", "--queue", "nowhere")
    assert "nowhere" in said
    assert "pgqpy queue list" in said


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{}:Wrong", "has no SparkConsumer named Wrong.*\n.*it has Tenfold"),
        ("{}", "names no class"),
        ("nowhere.py:Tenfold", "no file nowhere.py"),
        ("nowhere:Tenfold", "no module nowhere"),
        ("json:JSONDecoder", "has no SparkConsumer"),
    ],
)
def test_a_class_that_is_not_there_is_told_with_those_that_are(
    cli: Cli, program: str, target: str, message: str
) -> None:
    assert re.search(message, cli.fails("spark", "run", target.format(program)))
