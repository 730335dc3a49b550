"""The daemon's configuration, and the errors for mistakes in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgqpy_ticker import Config, ConfigError
from pgqpy_ticker.config import address


def load(folder: Path, text: str, *dsns: str) -> Config:
    file = folder / "ticker.toml"
    file.write_text(text)
    return Config.load(file, *dsns)


def names(config: Config) -> list[str]:
    return [database.name for database in config.databases]


def test_databases_are_named_after_their_dsn_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (database,) = Config.from_dsns("host=db dbname=shop").databases
    assert (database.name, database.dsn) == ("shop", "host=db dbname=shop")
    # Those of one name are told apart by their server.
    config = Config.from_dsns("host=a dbname=shop", "postgresql://b:5433/shop", "dbname=other")
    assert names(config) == ["a:5432/shop", "b:5433/shop", "other"]
    monkeypatch.setenv("PGDATABASE", "orders")
    assert names(Config.from_dsns("")) == ["orders"]


def test_a_database_overrides_the_defaults_and_those_the_builtin_ones(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        http = "127.0.0.1:9187"
        [defaults]
        retry_period = 3
        observe_period = 7.5
        [[database]]
        dsn = "dbname=a"
        retry_period = 0.5
        [[database]]
        name = "second"
        dsn = "dbname=b"
        """,
    )
    first, second = config.databases
    assert (first.retry_period, first.observe_period) == (0.5, 7.5)
    assert (second.name, second.retry_period) == ("second", 3.0)
    assert second.poll_busy == 0.002
    assert config.http == "127.0.0.1:9187"


def test_a_reload_reads_the_file_again_and_keeps_what_the_command_line_gave(
    tmp_path: Path,
) -> None:
    text = 'http = ":1"\nlog_level = "debug"\n[[database]]\ndsn = "dbname=a"'
    config = load(tmp_path, text, "dbname=given").overridden(http=":2")
    assert config.source is not None
    config.source.write_text(text.replace("dbname=a", "dbname=b"))
    config = config.reload()
    assert names(config) == ["b", "given"]
    assert (config.http, config.log_level) == (":2", "debug")
    with pytest.raises(ConfigError, match="log_level must be one of"):
        config.overridden(log_level="loud")
    without_file = Config.from_dsns("dbname=a")
    assert without_file.reload() is without_file


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no database to serve"),
        ("[[database]]\nname = 'x'", "number 1 needs a dsn"),
        ("[database]\ndsn = 'dbname=x'", "two brackets"),
        ("[[database]]\ndsn = 5", "needs a dsn"),
        ("[[database]]\ndsn = 'dbname=x'\nretry_perod = 1", "did you mean retry_period"),
        ("[[database]]\ndsn = 'dbname=x'\nretry_period = 0", "positive number of seconds"),
        ("[[database]]\ndsn = 'dbname=x'\nretry_period = '1 s'", "positive number of seconds"),
        ("[[database]]\ndsn = 'dbname=x'\nretry_period = true", "positive number of seconds"),
        ("[[database]]\ndsn = 'dbname=x'\nretry_period = nan", "positive number of seconds"),
        ("[[database]]\ndsn = 'nonsense'", "a dsn cannot be read"),
        ("defaults = 3\n[[database]]\ndsn = 'dbname=x'", "must be a table"),
        ("database = ['dbname=x']", "must be a table"),
        ("[[database]]\ndsn = 'dbname=x'\n[[database]]\ndsn = 'dbname=x'", "two databases"),
        ("log_level = 'loud'\n[[database]]\ndsn = 'dbname=x'", "log_level must be one of"),
        ("http = 9187\n[[database]]\ndsn = 'dbname=x'", "http must be host:port"),
        ("htp = ''\n[[database]]\ndsn = 'dbname=x'", "did you mean http"),
        ("[[database", "not valid TOML"),
    ],
)
def test_a_mistake_is_answered_with_what_would_be_right(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        load(tmp_path, text)


def test_a_missing_file_is_named_and_an_unreadable_dsn_does_not_show_its_password(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: No such file"):
        Config.load(tmp_path / "missing.toml")
    with pytest.raises(ConfigError) as caught:
        Config.from_dsns("host=db password=secret nonsense")
    assert "secret" not in str(caught.value)


def test_http_addresses() -> None:
    good = {"127.0.0.1:9187": ("127.0.0.1", 9187), "[::1]:80": ("::1", 80), ":0": ("", 0)}
    assert {http: address(http) for http in good} == good
    for wrong in ("", "9187", "host:", "host:http", "host:70000", None):
        with pytest.raises(ConfigError, match="host:port"):
            address(wrong)
