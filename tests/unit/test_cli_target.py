"""Names of databases in messages, without the password."""

from __future__ import annotations

import pytest

from pgqpy.cli._base.errors import Target
from pgqpy.errors import InvalidDsn


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)


def test_a_target_says_host_port_database_and_user() -> None:
    target = Target.from_dsn("postgresql://ann:secret@db.example:5433/shop")
    assert str(target) == 'db.example:5433, database "shop", user "ann"'


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://ann:secret@db.example:5433/shop",
        "host=db.example port=5433 dbname=shop user=ann password=secret",
        "postgresql://ann:secret@/my%20shop?host=/run/postgresql",
        "postgresql://ann:secret@[::1]/shop",
    ],
)
def test_a_target_as_a_uri_is_the_same_target_without_the_password(dsn: str) -> None:
    target = Target.from_dsn(dsn)
    assert Target.from_dsn(target.uri) == target
    assert "secret" not in f"{target} {target.uri}"


def test_libpqs_environment_is_what_an_empty_string_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db.example")
    monkeypatch.setenv("PGUSER", "ann")
    target = Target.from_dsn("")
    assert str(target) == 'db.example:5432, database "ann", user "ann"'


def test_a_broken_connection_string_is_refused_without_quoting_it() -> None:
    with pytest.raises(InvalidDsn) as raised:
        Target.from_dsn("postgresql://ann:sec%zzret@db.example/shop")
    assert "sec" not in str(raised.value)
