"""The promise of `replicate`: pgbench runs on the source throughout, tables are added meanwhile,
processes are killed, and afterwards every table's checksum equals the source's.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pgqpy.embedded import Server
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Spawn
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_replicate import PATIENCE, Pair
from tests.fixtures.fix_ticker import StartTicker, eventually

TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")
LIVES = 5
NEWEST = "select coalesce(max(prg_tick), 0) from pgq_ext.progress"
APPLIED = "select max(prg_tick) >= %s from pgq_ext.progress"
BEGUN = "select rpt_state <> 'added' from pgq_ext.replica_table where rpt_source_table = %s"

# pgbench's own table has no key.
KEY = "alter table pgbench_history add column id bigint generated always as identity primary key"
CHECKSUM = "select count(*), coalesce(sum(hashtextextended(t::text, 0)), 0) from {} t"


@contextmanager
def pgbench(server: Server, dsn: str) -> Iterator[subprocess.Popen[str]]:
    """Run pgbench within the block; afterwards its transactions have ended."""
    process = subprocess.Popen(
        [
            *(str(server.bin_dir / "pgbench"), "--no-vacuum", "--client=4", "--jobs=1"),
            # Not at its full rate, which would leave no processor to the others.
            *("--rate=100", "--time=100000", "--protocol=prepared", dsn),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
        assert process.poll() is None, process.stderr and process.stderr.read()
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


def checksum(conn: Connection, table: str) -> tuple[object, ...] | None:
    return conn.execute(CHECKSUM.format(table).encode()).fetchone()


@pytest.fixture
def bank(pair: Pair, server: Server, tmp_path: Path) -> Path:
    """pgbench's tables on both sides, filled in the source; returns the configuration."""
    for dsn, steps in ((pair.source_dsn, "dtgp"), (pair.target_dsn, "tp")):
        subprocess.run(
            [str(server.bin_dir / "pgbench"), "-i", f"-I{steps}", "-q", dsn],
            check=True,
            capture_output=True,
        )
    pair.both(KEY)
    config = tmp_path / "replicate.toml"
    config.write_text(
        f'dsn = "{pair.source_dsn}"\ntarget_dsn = "{pair.target_dsn}"\nqueue = "{pair.queue}"\n'
    )
    return config


@pytest.mark.slow
def test_every_table_is_equal_after_pgbench_and_kills(
    pair: Pair, server: Server, bank: Path, spawn: Spawn, start_ticker: StartTicker
) -> None:
    def cli(*arguments: str) -> None:
        process = spawn("replicate", *arguments, str(bank))
        said, error = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, error or said

    def replicate() -> subprocess.Popen[str]:
        return spawn("run", "replicate", str(bank), stderr=subprocess.DEVNULL)

    def await_begun(table: str) -> None:
        """Wait until it is being copied; that takes a moment yet."""
        eventually(pair.target, BEGUN, table, patience=PATIENCE)

    def advanced(ticks: int) -> None:
        """Wait until this many more ticks are applied."""
        eventually(pair.target, APPLIED, ops.value(pair.target, NEWEST) + ticks, patience=PATIENCE)

    ticker = start_ticker(pair.source_dsn)
    ticker.hear("leading")
    start_ticker(pair.source_dsn)
    with pgbench(server, pair.source_dsn):
        cli("add", "pgbench_accounts", "pgbench_branches")
        for life in range(LIVES):
            running = replicate()
            if life == 0:
                await_begun("pgbench_accounts")
            elif life == 1:
                cli("add", "pgbench_tellers")
                await_begun("pgbench_tellers")
            elif life == 2:
                cli("add", "pgbench_history")
                await_begun("pgbench_history")
                advanced(3)
            elif life == 3:
                ticker.kill()
                advanced(10)
                for table in TABLES:
                    pair.await_state(f"public.{table}", "in_step")
            elif life == 4:
                cli("remove", "pgbench_branches")
                cli("add", "pgbench_branches", "--overwrite")
                advanced(10)
            running.kill()
            running.wait(PATIENCE)
        running = replicate()
        for table in TABLES:
            pair.await_state(f"public.{table}", "in_step")
        cli("compare")

    # Waits until the target has all that is committed, which is all that will ever be.
    cli("compare")
    assert ops.value(pair.source, "select count(*) from pgbench_history") > 0
    for table in TABLES:
        assert checksum(pair.target, table) == checksum(pair.source, table), table
    assert set(pair.states().values()) == {"in_step"}
    running.terminate()
    assert running.wait(PATIENCE) == 0
