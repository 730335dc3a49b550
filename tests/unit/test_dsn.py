"""Connection strings: where they come from, and that passwords stay secret."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from pgqpy import Consumer, dsn
from pgqpy.errors import InvalidDsn


def test_the_argument_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGQPY_DSN", "dbname=environment")
    assert dsn.resolve("dbname=argument") == "dbname=argument"
    assert dsn.resolve("") == ""
    assert dsn.resolve() == "dbname=environment"
    # Without both libpq decides.
    monkeypatch.delenv("PGQPY_DSN")
    assert dsn.resolve() == ""


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:sec@ret@localhost/db",
        "postgresql://me:sec/ret@localhost/db",
        "postgresql://me:sec:ret@localhost:5432/db?x",
        "password=sec ret host=localhost",
        "postgresql://me:%zzsecret@localhost/db",
    ],
)
def test_a_dsn_that_cannot_be_read_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(InvalidDsn, match="connection string") as info:
        dsn.parse(text)
    assert "sec" not in str(info.value)
    assert info.value.__cause__ is None
    assert "%40" in str(info.value.hint)


def test_a_redacted_dsn_names_the_place_and_not_the_password() -> None:
    shown = dsn.redact("postgresql://me:secret@example.org:5433/db?sslpassword=other")
    assert shown == "host=example.org port=5433 dbname=db user=me"


def test_several_hosts_are_fine() -> None:
    assert dsn.parse("postgresql://a:5432,b:5433/db")["host"] == "a,b"


def test_a_url_or_an_engine_of_sqlalchemy_is_told_from_a_dsn() -> None:
    url = "postgresql+psycopg://me:secret@localhost/db"
    for use in (lambda: dsn.parse(url), lambda: Consumer(sa.create_engine(url))):  # type: ignore[arg-type]
        with pytest.raises(InvalidDsn, match="libpq_dsn") as info:
            use()
        assert "secret" not in str(info.value)
