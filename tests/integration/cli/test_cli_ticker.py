"""`pgqpy ticker` and shell completion: what is started by others."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli, Spawn
from tests.fixtures.fix_client import PATIENCE
from tests.fixtures.fix_db import Connection


def test_the_ticker_ticks_until_it_is_told_to_stop(
    cli: Cli, conn: Connection, queue: str, spawn: Spawn
) -> None:
    assert "no pgqpy ticker" in cli.ok("status")
    ops.insert(conn, queue, "d")
    channel = ops.value(conn, "select pgq.tick_channel(%s)", queue)
    conn.execute(f"listen {channel}")
    ticker = spawn("ticker", "--log-format", "logfmt")
    assert [n.channel for n in conn.notifies(timeout=PATIENCE, stop_after=1)] == [channel]
    # Its session is shown.
    pid = cli.json("status")["server"]["ticker_pid"]
    assert ops.value(conn, "select count(*) from pg_stat_activity where pid = %s", pid) == 1
    ticker.send_signal(signal.SIGINT)
    _, log = ticker.communicate()
    assert ticker.returncode == 0
    assert "Traceback" not in log


def test_a_configuration_that_makes_no_sense_is_wrong_usage(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "ticker.toml"
    config.write_text("htp = ':9187'")
    assert "htp" in cli.fails("ticker", "--config", str(config), exit_code=2)


def test_a_shell_completes_commands_and_the_queues_there_are(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.ok("queue", "create", "flights")
    cli.ok("queue", "create", "flowers")
    cli.ok("consumer", "register", "flights", "counter")

    def completes(words: str) -> list[str]:
        monkeypatch.setenv("_PGQPY_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        return [line.partition(",")[2] for line in cli("").stdout.splitlines()]

    assert completes("pgqpy que") == ["queue"]
    assert completes("pgqpy queue drop fl") == ["flights", "flowers"]
    assert completes("pgqpy consumer seek flights c") == ["counter"]
    assert completes("pgqpy queue config flights rot") == ["rotation_period"]
    monkeypatch.setenv("PGQPY_DSN", "postgresql://127.0.0.1:1/nowhere")
    assert not any(completes("pgqpy queue drop fl"))
