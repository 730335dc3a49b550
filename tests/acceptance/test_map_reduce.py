"""The MapReduce example: words are counted exactly, whichever process is killed."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from examples.map_reduce.job import Job, pieces, words
from examples.map_reduce.worker import WordCounter
from pgqpy import Retry
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_example import Run

TEXT = Path(__file__).parents[2] / "docs" / "decisions.md"
# Killed workers' tasks come back when their leases end, and processes start slowly.
KILLED_PATIENCE = 500.0

JOB = Job("test", shards=1)


@pytest.fixture
def counter(conn: Connection, dsn: str) -> WordCounter:
    JOB.create(conn)
    JOB.start(conn, [])
    return WordCounter(JOB, dsn)


def push(conn: Connection, queue: str, payload: str) -> None:
    conn.execute("select pgq_task.push(%s, %s::jsonb)", [queue, payload])


@pytest.mark.slow
def test_workers_killed_at_random_count_each_word_once(dsn: str, run: Run) -> None:
    """The program compares its result with a count in one go, and says so."""
    command = [sys.executable, "-m", "examples.map_reduce", str(TEXT)]
    options = ["--workers", "3", "--kill-every", "30", "--lines", "5"]
    said = run(*command, *options, environment={"PGQPY_DSN": dsn}).finish(KILLED_PATIENCE)
    counts = Counter(words(TEXT.read_text("utf-8")))
    end = f"{counts.total():,} words, {len(counts):,} different ones, exactly those of the text"
    assert said[-1] == end
    killed = re.search(r"(\d+) workers were killed", "\n".join(said))
    assert killed
    assert int(killed[1]) > 3
    assert not [line for line in said if "Traceback" in line]


def test_a_text_is_cut_into_pieces_that_are_all_of_it() -> None:
    text = "one two\nthree\n\nfour"
    assert pieces(text, 2) == ["one two\nthree\n", "\nfour"]
    assert list(words("It's one, two - TWO!")) == ["its", "one", "two", "two"]


def test_a_reduce_adds_up_but_does_not_end_while_something_is_mapped(
    conn: Connection, counter: WordCounter
) -> None:
    push(conn, JOB.map, '"a piece"')
    push(conn, JOB.shuffle(0), '{"a": 1}')
    push(conn, JOB.shuffle(0), '{"a": 2, "b": 1}')
    assert isinstance(counter.reduce(conn, 0), Retry)
    with pytest.raises(Retry), conn.transaction():
        counter.reduce(conn, 0)  # one part is as good as its sum
    assert JOB.left(conn) == {JOB.map: 1, JOB.shuffle(0): 1, JOB.reduce: 1, JOB.result: 0}

    conn.execute("select pgq_task.pop(%s)", [JOB.map])
    assert counter.reduce(conn, 0) is None
    assert JOB.counts(conn) == {"a": 3, "b": 1}


def test_a_reduce_does_not_end_while_another_has_popped_something(
    conn: Connection, connect: Connect, counter: WordCounter
) -> None:
    """Its lease may be over, and its transaction will fail then: the counts come back."""
    for number in (1, 2, 3):
        push(conn, JOB.shuffle(0), f'{{"a": {number}}}')
    other = connect()
    with other.transaction(force_rollback=True):
        other.execute("select pgq_task.pop(%s)", [JOB.shuffle(0)])
        counter.reduce(conn, 0)
        assert JOB.counts(conn) == {}
    assert counter.reduce(conn, 0) is None
    assert JOB.counts(conn) == {"a": 6}
