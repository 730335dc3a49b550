"""Ready-made consumers that are killed."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.fix_cli import Spawn
from tests.fixtures.fix_client import PATIENCE, wait_until
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import StartTicker, eventually

Kill = Callable[..., None]

DONE = """
select pending_events = 0 and current_batch is null from pgq.get_consumer_info(%s, %s)
"""


@pytest.fixture
def kill(
    conn: Connection,
    dsn: str,
    queue: str,
    spawn: Spawn,
    start_ticker: StartTicker,
    tmp_path: Path,
) -> Kill:
    """``kill("webhook", settings, wait, wait, until=done)``: run it, and kill it after each wait;
    then let it do the rest, and stop it when that is done."""
    start_ticker(dsn, retry_period=0.05)
    file = tmp_path / "config.toml"

    def started(name: str, **options: Any) -> subprocess.Popen[str]:
        return spawn("run", name, str(file), "--log-format", "json", **options)

    def kill_it(
        name: str,
        settings: str,
        *waits: Callable[[], object],
        until: Callable[[], object] = lambda: True,
        **options: Any,
    ) -> None:
        file.write_text(f'dsn = "{dsn}"\nqueue = "{queue}"\n{settings}')
        for wait in waits:
            process = started(name, **options)
            wait()
            process.kill()
            process.communicate(timeout=PATIENCE)
        process = started(name, **options)
        wait_until(until)
        eventually(conn, DONE, queue, name, patience=PATIENCE)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=PATIENCE)[1]
        assert process.returncode == 0, said

    return kill_it
