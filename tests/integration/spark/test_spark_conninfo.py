"""Executors connect with all of the driver's settings, and with none of their own."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import pgqpy
from pgqpy_consumers.spark._ranges import conninfo


def test_executors_need_no_service_file(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = tmp_path / "pg_service.conf"
    settings = conninfo_to_dict(dsn)
    service.write_text("\n".join(["[shop]", *(f"{key}={settings[key]}" for key in settings)]))
    monkeypatch.setenv("PGSERVICEFILE", str(service))
    monkeypatch.setenv("PGSERVICE", "shop")
    with pgqpy.connect("") as conn:
        known = conninfo(conn)
    monkeypatch.delenv("PGSERVICE")
    monkeypatch.delenv("PGSERVICEFILE")
    with psycopg.connect(known) as conn:
        assert conn.info.dbname == settings["dbname"]


def test_executors_need_no_environment_and_no_password_file(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passwords = tmp_path / "pgpass"
    passwords.write_text("*:*:*:*:open sesame")
    passwords.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    monkeypatch.setenv("PGSSLMODE", "disable")
    with pgqpy.connect(dsn) as conn:
        known = conninfo_to_dict(conninfo(conn))
    assert (known["password"], known["sslmode"]) == ("open sesame", "disable")
