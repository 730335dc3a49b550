"""`pgqpy run replicate` is killed while it copies, and its sessions while it runs."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pgqpy_consumers.replicate.compare import Comparer
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Spawn
from tests.fixtures.fix_db import Connect
from tests.fixtures.fix_replicate import CONSUMER, PATIENCE, Pair
from tests.fixtures.fix_ticker import StartTicker, eventually

ROWS = 60_000
COPIES = "select count(*) from pg_stat_progress_copy where relid = 'large'::regclass"
COPYING = COPIES + " and tuples_processed > 0"


@pytest.fixture
def large(pair: Pair, tmp_path: Path, start_ticker: StartTicker) -> Path:
    """A table whose copy takes a moment; returns the configuration."""
    pair.both("create table large (id int primary key, n int, filler text)")
    pair.source.execute(
        "insert into large select n, 0, repeat('x', 100) from generate_series(1, %s) n", [ROWS]
    )
    pair.manager.add("large")
    start_ticker(pair.source_dsn)
    config = tmp_path / "replicate.toml"
    config.write_text(
        f'dsn = "{pair.source_dsn}"\ntarget_dsn = "{pair.target_dsn}"\nqueue = "{pair.queue}"\n'
    )
    return config


@contextmanager
def changing(pair: Pair, connect: Connect) -> Iterator[None]:
    """Rows come, go and change within the block."""
    stop = threading.Event()

    def change() -> None:
        conn = connect(pair.source_dsn)
        turn = 0
        # Not as fast as it can: replication shall have a processor, too.
        while not stop.wait(0.01):
            turn += 1
            conn.execute("update large set n = n + 1 where id = %s", [turn * 7919 % ROWS])
            conn.execute("insert into large values (%s, 0, 'new')", [ROWS + turn])
            conn.execute("delete from large where id = %s", [ROWS + turn - 10])

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE)


@contextmanager
def half_copied(pair: Pair, connect: Connect) -> Iterator[None]:
    """Keep a copy half way within the block, however late the test looks: another session holds an
    uncommitted row with the key that comes next."""
    other = connect(pair.target_dsn, autocommit=False)
    other.execute("insert into large values (%s, 0, 'in the way')", [ROWS // 2])
    try:
        yield
    finally:
        other.rollback()


def await_equal(pair: Pair) -> None:
    """Wait until the target has all that is committed in the source now; then compare rows."""
    comparer = Comparer(pair.source_dsn, pair.target_dsn, pair.queue, CONSUMER, patience=PATIENCE)
    assert comparer.compare(pair.manager.replica("large")).differences == []
    there, here = pair.rows("select count(*), sum(hashtextextended(t::text, 0)) from large t")
    assert here == there


def replicate(spawn: Spawn, config: Path) -> subprocess.Popen[str]:
    return spawn("run", "replicate", str(config), stderr=subprocess.DEVNULL)


def none_copied(pair: Pair) -> None:
    """Wait until the session of the copy has noticed that it is over, and has left no row."""
    eventually(pair.target, f"select ({COPIES}) = 0", patience=PATIENCE)
    assert ops.value(pair.target, "select count(*) from large") == 0


@pytest.mark.slow
def test_a_copy_that_is_killed_or_whose_table_is_removed_begins_again_and_nothing_is_lost(
    pair: Pair, large: Path, spawn: Spawn, connect: Connect
) -> None:
    with changing(pair, connect):
        for _ in range(2):
            with half_copied(pair, connect):
                running = replicate(spawn, large)
                eventually(pair.target, COPYING, patience=PATIENCE)
                running.kill()
                running.wait(PATIENCE)
            none_copied(pair)
            assert pair.states() == {"public.large": "copying"}
        with half_copied(pair, connect):
            running = replicate(spawn, large)
            eventually(pair.target, COPYING, patience=PATIENCE)
            pair.manager.remove("large")
        none_copied(pair)
        pair.manager.add("large")
        pair.await_state("public.large", "in_step")
    await_equal(pair)
    assert running.poll() is None


@pytest.mark.slow
def test_a_copy_that_is_under_way_does_not_delay_the_end(
    pair: Pair, large: Path, spawn: Spawn, connect: Connect
) -> None:
    """The call would wait for ever: a row of the target is locked."""
    pair.target.execute("insert into large values (1, 0, 'old')")
    locker = connect(pair.target_dsn, autocommit=False)
    locker.execute("select from large for update")
    running = replicate(spawn, large)
    waiting = (
        "select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock'"
        " and starts_with(application_name, 'pgqpy replicate') and datname = current_database()"
    )
    eventually(pair.target, waiting, patience=PATIENCE)
    running.terminate()
    assert running.wait(PATIENCE) == 0
    assert pair.states() == {"public.large": "copying"}
    locker.rollback()


@pytest.mark.slow
def test_sessions_that_are_lost_come_again(
    pair: Pair, large: Path, spawn: Spawn, connect: Connect
) -> None:
    lose = (
        "select count(*) filter (where pg_terminate_backend(pid)) from pg_stat_activity"
        " where starts_with(application_name, 'pgqpy replicate') and datname = current_database()"
    )
    with changing(pair, connect):
        with half_copied(pair, connect):
            running = replicate(spawn, large)
            eventually(pair.target, COPYING, patience=PATIENCE)
            assert ops.value(pair.target, lose) > 0
            eventually(pair.source, lose, patience=PATIENCE)
        pair.await_state("public.large", "in_step")
        for conn in (pair.target, pair.source, pair.target):
            eventually(conn, lose, patience=PATIENCE)
            applied = ops.value(pair.target, "select max(prg_tick) from pgq_ext.progress")
            eventually(
                pair.target,
                "select max(prg_tick) > %s from pgq_ext.progress",
                applied + 2,
                patience=PATIENCE,
            )
    await_equal(pair)
    running.terminate()
    assert running.wait(PATIENCE) == 0
