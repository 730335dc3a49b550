"""The daemon's configuration: databases, periods, endpoints.

A configuration is a value. It remembers its source, so that SIGHUP can read it again.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pgqpy.dsn import parse
from pgqpy.errors import InvalidDsn
from pgqpy.log import FORMATS, LEVELS


class ConfigError(Exception):
    """The configuration cannot be used; the message says which key, and what would be right."""


# Long: a key each of the configuration.
@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """A database to serve. Times are in seconds."""

    name: str
    dsn: str

    poll_busy: float = 0.002
    """Time between two rounds of ticks while events arrive."""
    poll_idle: float = 0.05
    """Time between two rounds when nothing arrives and producers cannot wake the ticker."""
    tick_spacing: float = 0.0018
    """Average time between two early ticks of any queues: if many are busy each has fewer."""
    sleep_after: float = 0.25
    """Quiet time after which the ticker sleeps until a producer wakes it."""
    sleep_at_most: float = 3.0
    """Time between two polls of a sleeping ticker that no producer wakes."""

    maintenance_period: float = 60.0
    """Time between two passes of rotation, vacuum and the operations of queue_extra_maint."""
    maintenance_lock_timeout: float = 1.0
    """The maximum wait of a maintenance operation for a lock; it is retried in the next pass."""
    retry_period: float = 1.0
    """The maximum pause between two polls for delayed and retried events that are due."""
    observe_period: float = 15.0
    """Time between two measurements of queues, consumers and old transactions."""
    old_transaction: float = 300.0
    """Age from which an open transaction that holds up rotation is reported."""

    standby_period: float = 0.5
    """Time between two attempts of a standing-by ticker to become the leader."""
    leader_timeout: float = 30.0
    """The silence after which the server drops a leader, so that another can lead."""
    reconnect_at_most: float = 10.0
    """The maximum pause between attempts to reach a database that is away."""
    schema_retry: float = 1.0
    """Pause before checking again a database without the schema, or without the rights."""
    healthy_within: float = 10.0
    """The maximum age of the last round of ticks of a healthy leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration. Made by :meth:`load` or :meth:`from_dsns`."""

    databases: tuple[Database, ...]
    http: str | None = None
    """``host:port`` of /healthz and /metrics; None means no endpoint."""
    log_level: str = "info"
    log_format: str = "auto"
    source: Path | None = None
    extra_dsns: tuple[str, ...] = ()
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_dsns(cls, *dsns: str) -> Self:
        """Serve these databases with default settings. An empty DSN is libpq's environment."""
        return cls._build({}, None, dsns)

    @classmethod
    def load(cls, source: Path, *dsns: str) -> Self:
        """Read a TOML file; further databases may be added by DSN.

        Raises:
            ConfigError: the file is missing, is not TOML, or has an invalid value.
        """
        try:
            document = tomllib.loads(source.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read {source}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source} is not valid TOML: {error}") from error
        return cls._build(document, source, dsns)

    def reload(self) -> Self:
        """Read the source again; return itself if there is no file."""
        if self.source is None:
            return self
        return self.load(self.source, *self.extra_dsns).overridden(**self.overrides)

    def overridden(self, **given: str | None) -> Self:
        """Return it with other ``http``, ``log_level`` or ``log_format``, unless they are None.

        They also win over the file's at a reload.

        Raises:
            ConfigError: a value is invalid.
        """
        overrides: dict[str, Any] = {key: each for key, each in given.items() if each is not None}
        return dataclasses.replace(self, **overrides, overrides=overrides)

    def __post_init__(self) -> None:
        for key, allowed in (("log_level", LEVELS), ("log_format", FORMATS)):
            if (value := getattr(self, key)) not in allowed:
                raise ConfigError(f"{key} must be one of {', '.join(allowed)}, not {value!r}")
        if self.http is not None:
            address(self.http)

    @classmethod
    def _build(
        cls, document: Mapping[str, Any], source: Path | None, dsns: tuple[str, ...]
    ) -> Self:
        _check_table(document, ("defaults", "database", *_TOP), "the file")
        defaults = document.get("defaults", {})
        _check_table(defaults, _PERIODS, "[defaults]")
        tables = document.get("database", [])
        if not isinstance(tables, list):
            raise ConfigError("databases are written [[database]], with two brackets")
        for number, table in enumerate(tables, 1):
            where = f"[[database]] number {number}"
            _check_table(table, ("name", "dsn", *_PERIODS), where)
            if not isinstance(table.get("dsn"), str) or not isinstance(table.get("name", ""), str):
                raise ConfigError(f"{where} needs a dsn, a text such as 'postgresql://host/dbname'")
        asked = [defaults | table for table in (*tables, *({"dsn": dsn} for dsn in dsns))]
        if not asked:
            raise ConfigError("no database to serve: give --dsn, or [[database]] in the file")
        given = {key: document[key] for key in _TOP if key in document}
        return cls(databases=_named(asked), source=source, extra_dsns=dsns, **given)


def address(http: object) -> tuple[str, int]:
    """Parse ``host:port``, ``[::1]:port`` or ``:port`` (every interface) as a pair."""
    host, colon, port = http.rpartition(":") if isinstance(http, str) else ("", "", "")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"http must be host:port, such as 127.0.0.1:9187, not {http!r}")
    return host.strip("[]"), int(port)


_TOP = ("http", "log_level", "log_format")
_PERIODS = tuple(f.name for f in dataclasses.fields(Database) if f.type == "float")


def _check_table(table: object, known: tuple[str, ...], where: str) -> None:
    """Raise ConfigError for what is no table, an unknown key, and a period that is none."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table")
    for key, value in table.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
            raise ConfigError(f"unknown key {key!r} in {where}: {advice}")
        if key in _PERIODS and not (type(value) in (int, float) and 0 < value < 1e6):
            raise ConfigError(f"{key} in {where} must be a positive number of seconds")


def _named(asked: list[dict[str, Any]]) -> tuple[Database, ...]:
    """Name databases after their dbname, with the host if others share it."""
    parts = [_conninfo(table["dsn"]) for table in asked]
    short = Counter(part["dbname"] for part in parts)
    for table, part in zip(asked, parts, strict=True):
        if "name" not in table:
            unique = short[part["dbname"]] == 1
            host = f"{part['host']}:{part['port']}"
            table["name"] = part["dbname"] if unique else f"{host}/{part['dbname']}"
    name, times = Counter(table["name"] for table in asked).most_common(1)[0]
    if times > 1:
        raise ConfigError(f"two databases are called {name!r}: serve it once, or name them apart")
    return tuple(Database(**table) for table in asked)


def _conninfo(dsn: str) -> dict[str, str]:
    try:
        told = parse(dsn)
    except InvalidDsn as error:
        said = "; ".join(filter(None, (error.message, error.hint)))
        raise ConfigError(f"a dsn cannot be read: {said}") from None

    def value(key: str, otherwise: str) -> str:
        variable = "PGDATABASE" if key == "dbname" else f"PG{key.upper()}"
        return str(told.get(key) or os.environ.get(variable) or otherwise)

    return {
        "dbname": value("dbname", value("user", "postgres")),
        "host": value("host", "local"),
        "port": value("port", "5432"),
    }
