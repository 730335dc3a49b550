"""Debian's pgqd keeps our queues going: it ticks, rotates, and brings retried events back."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgqpy.embedded import Server
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_reference import missing_on_purpose
from tests.fixtures.fix_ticker import PATIENCE, eventually

pytestmark = [pytest.mark.reference, pytest.mark.slow, pytest.mark.any_pg]

CONFIG = """
[pgqd]
logfile = {directory}/pgqd.log
pidfile = {directory}/pgqd.pid
base_connstr = host={socket_dir} port=5432 user=postgres
initial_database = postgres
database_list = {database}
syslog = 0
check_period = 1
retry_period = 0.1
maint_period = 0.1
ticker_period = 0.05
"""


@pytest.fixture
def pgqd(conn: Connection, server: Server, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run pgqd in the foreground, for the database of `conn`."""
    program = shutil.which("pgqd")
    if program is None:
        missing_on_purpose("pgqd")
    config = tmp_path / "pgqd.ini"
    config.write_text(
        CONFIG.format(directory=tmp_path, socket_dir=server.socket_dir, database=conn.info.dbname)
    )
    process = subprocess.Popen([str(program), "-q", str(config)])
    yield process
    process.terminate()
    process.wait(PATIENCE)


@pytest.fixture
def prepared(conn: Connection, queue: str) -> str:
    """A queue with short periods and a consumer, before the daemon starts."""
    ops.rotate_whenever_asked(conn, queue)
    for parameter in ("ticker_max_lag", "ticker_idle_period"):
        conn.execute("select pgq.set_queue_config(%s, %s, '50 ms')", [queue, parameter])
    ops.register(conn, queue, "c")
    return queue


def test_pgqd_ticks_rotates_and_moves_retries(
    conn: Connection, prepared: str, pgqd: subprocess.Popen[bytes]
) -> None:
    tick = "select max(tick_id) from pgq.tick"
    delivered: list[tuple[str, int | None]] = []
    before = 0
    rounds = 0
    # Until retries have come and tables been rotated several times.
    while ops.rotations(conn, prepared) < 3 or not any(retry for _, retry in delivered):
        rounds += 1
        ops.insert(conn, prepared, f"event {rounds}")
        eventually(conn, f"select ({tick}) > %s", before)
        before = ops.value(conn, tick)
        while (batch := ops.value(conn, "select pgq.next_batch(%s, 'c')", prepared)) is not None:
            rows = ops.events(conn, batch)
            delivered += [(row[5], row[3]) for row in rows]
            for row in rows:
                if row[5] == "event 1" and row[3] is None:
                    conn.execute("select pgq.event_retry(%s, %s, 0)", [batch, row[0]])
            ops.finish(conn, batch)
        assert pgqd.poll() is None
        assert rounds < 1000
    pgqd.terminate()
    pgqd.wait(PATIENCE)
    delivered += [(data, None) for data in ops.deliver(conn, prepared, "c")]
    assert sorted(delivered, key=str) == sorted(
        [("event 1", 1), *((f"event {n}", None) for n in range(1, rounds + 1))], key=str
    )


def test_pgqd_finds_our_databases_by_itself(
    conn: Connection, prepared: str, pgqd: subprocess.Popen[bytes]
) -> None:
    """pgqd looks for the schema in the catalog, with a query of its own."""
    eventually(conn, "select count(*) > 2 from pgq.tick")
    with psycopg.connect(conn.info.dsn) as other:
        assert other.execute("select count(*) > 2 from pgq.tick").fetchone() == (True,)
    assert pgqd.poll() is None
    assert prepared
