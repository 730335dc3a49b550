"""`pgqpy ticker` and shell completion: what is started by others."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.fixtures.fix_cli import Cli, Spawn
from tests.fixtures.fix_db import Connection


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_the_ticker_ticks_until_it_is_told_to_stop(
    cli: Cli, conn: Connection, queue: str, spawn: Spawn, stop: signal.Signals
) -> None:
    conn.execute("select pgq.insert_event(%s, 't', 'd')", [queue])
    channel = conn.execute("select pgq.tick_channel(%s)", [queue]).fetchone()
    assert channel is not None
    conn.execute(f"listen {channel[0]}")
    ticker = spawn("ticker", "--log-format", "logfmt")
    assert [n.channel for n in conn.notifies(timeout=30, stop_after=1)] == [channel[0]]
    ticker.send_signal(stop)
    _, log = ticker.communicate()
    assert ticker.returncode == 0
    assert "Traceback" not in log


def test_a_configuration_that_makes_no_sense_is_wrong_usage(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "ticker.toml"
    config.write_text("htp = ':9187'")
    assert "htp" in cli.fails("ticker", "--config", str(config), exit_code=2)


def test_a_shell_completes_commands_and_the_queues_there_are(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, spawn: Spawn
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


def test_a_shell_that_completes_without_a_database_gets_nothing(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGQPY_DSN", "postgresql://127.0.0.1:1/nowhere")
    monkeypatch.setenv("_PGQPY_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "pgqpy queue drop fl")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert cli("").output.strip() == ""
