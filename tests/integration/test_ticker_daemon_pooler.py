"""Behind PgBouncer: a pool in session mode is as good as the server, others are refused."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import PATIENCE, StartTicker, eventually

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")

pytestmark = [
    pytest.mark.any_pg,
    pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed"),
]

Pool = Callable[..., str]

SETTINGS = """
[databases]
{dbname} = host={host} port={port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
"""


@pytest.fixture
def pool(dsn: str) -> Iterator[Pool]:
    """``pool("session", size=2)`` is the DSN of a pool of that mode in front of `dsn`."""
    assert PGBOUNCER is not None
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        server = conninfo_to_dict(dsn)
        started: list[subprocess.Popen[bytes]] = []

        def start(mode: str, *, size: int = 5) -> str:
            with socket.create_server(("127.0.0.1", 0)) as free:
                listen = free.getsockname()[1]
            file = Path(folder, f"{mode}.ini")
            file.write_text(SETTINGS.format(**server, listen=listen, mode=mode, size=size))
            # PgBouncer refuses to run as root.
            user = "postgres" if os.geteuid() == 0 else None
            started.append(
                subprocess.Popen([PGBOUNCER, str(file)], user=user, stderr=subprocess.DEVNULL)
            )
            return f"host=127.0.0.1 port={listen} user=postgres dbname={server['dbname']}"

        yield start
        for process in started:
            process.kill()
            process.wait(PATIENCE)


def test_a_pool_in_transaction_mode_is_refused_before_it_keeps_our_lock(
    start_ticker: StartTicker, pool: Pool, conn: Connection
) -> None:
    daemon = start_ticker(pool("transaction"), reconnect_at_most=0.1)
    assert "session mode" in daemon.hear("connected through a pooler")["hint"]
    assert daemon.said("leading") == []
    assert daemon.stop() == 0
    assert conn.execute(
        "select count(*) from pg_locks l join pg_database d on d.oid = l.database "
        "where locktype = 'advisory' and datname = current_database()"
    ).fetchone() == (0,)


def test_a_pool_in_transaction_mode_with_one_session_is_refused_too(
    start_ticker: StartTicker, pool: Pool
) -> None:
    daemon = start_ticker(pool("transaction", size=1), reconnect_at_most=0.1)
    daemon.hear("connected through a pooler")
    assert daemon.said("leading") == []


def test_a_pool_in_session_mode_is_used(
    start_ticker: StartTicker, pool: Pool, conn: Connection, queue: str
) -> None:
    daemon = start_ticker(pool("session"), reconnect_at_most=0.1)
    daemon.hear("leading")
    conn.execute("select pgq.insert_event(%s, 'type', 'data')", [queue])
    eventually(conn, "select last_tick_id > 1 from pgq.get_queue_info(%s)", queue)
    assert daemon.stop() == 0
