"""Messages to systemd, by a socket that stands in its place."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pgqpy_ticker.systemd import Systemd


def listener(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.settimeout(5)
    sock.bind("\0" + address[1:] if address[0] == "@" else address)
    return sock


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_hears_each_change_as_one_datagram(tmp_path: Path, abstract: bool) -> None:
    address = f"@pgqpy-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with listener(address) as sock:
        systemd = Systemd(address, None)
        systemd.ready("1 leading")
        assert sock.recv(1000) == b"READY=1\nSTATUS=1 leading"
        systemd.reloading()
        reloading, usec = sock.recv(1000).split(b"\n")
        assert reloading == b"RELOADING=1"
        assert usec.startswith(b"MONOTONIC_USEC=")
        systemd.alive()
        assert sock.recv(1000) == b"WATCHDOG=1"
        systemd.stopping()
        assert sock.recv(1000).startswith(b"STOPPING=1")


def test_a_service_manager_that_went_away_is_no_error(tmp_path: Path) -> None:
    Systemd(str(tmp_path / "unknown"), None).alive()


def test_without_systemd_nothing_is_sent_and_there_is_no_watchdog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    systemd = Systemd()
    systemd.ready("unheard")
    assert systemd.watchdog is None


def test_the_watchdog_period_comes_in_microseconds() -> None:
    assert Systemd("/run/x", "30000000").watchdog == 30.0
