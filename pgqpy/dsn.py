"""The connection string: its source, and its safe display."""

from __future__ import annotations

import os
import re

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from pgqpy.errors import InvalidDsn

#: The environment variable that names the database if no argument does.
VARIABLE = "PGQPY_DSN"

_OF_SQLALCHEMY = re.compile(r"postgres(ql)?\+\w+:")
_LIBPQ_DSN = (
    "SQLAlchemy's URL without the name of a driver is one: postgresql://...; "
    "pgqpy.sqlalchemy.libpq_dsn(engine.url) returns it."
)

#: Where to connect, and how: what others may choose. With the rest they choose a file of this
#: machine, hand on its credentials, or (hostaddr) send the password that a password file has for
#: one host to another.
_ALLOWED = frozenset(
    (
        *("host", "port", "dbname", "user", "password", "service", "options"),
        *("application_name", "client_encoding", "connect_timeout", "tcp_user_timeout"),
        *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"),
        *("target_session_attrs", "load_balance_hosts", "channel_binding", "require_auth"),
        *("sslmode", "sslnegotiation", "sslsni", "sslrootcert", "gssencmode"),
    )
)


def resolve(dsn: str | None = None) -> str:
    """Return the connection string: the argument, else ``PGQPY_DSN``, else libpq's environment.

    The last is an empty string: libpq then reads PGHOST, PGDATABASE, PGSERVICE, ...

    Raises InvalidDsn for an engine, or the like.
    """
    if dsn is None:
        return os.environ.get(VARIABLE, "")
    if not isinstance(dsn, str):
        raise InvalidDsn(f"a connection string is a str, not {type(dsn).__name__}", hint=_LIBPQ_DSN)
    return dsn


def parse(dsn: str) -> dict[str, str]:
    """Return the settings of a connection string.

    Raises InvalidDsn, which quotes nothing: libpq shows the part that it could not read, and that
    may be the password, or, after an unescaped ``@`` or ``/``, half of it.
    """
    try:
        settings = {
            key: str(value) for key, value in conninfo_to_dict(dsn).items() if value is not None
        }
    except ProgrammingError:
        hint = _LIBPQ_DSN if _OF_SQLALCHEMY.match(dsn) else None
        raise InvalidDsn("the connection string cannot be read", hint=hint) from None
    if "@" in settings.get("host", "")[1:]:
        raise InvalidDsn("the connection string has an @ in its host")
    if not all(port.isdigit() for port in settings.get("port", "").split(",") if port):
        raise InvalidDsn("the connection string has a port that is no number")
    return settings


def redact(dsn: str) -> str:
    """Return the connection string as ``key=value``, without its secrets."""
    shown = ("host", "hostaddr", "port", "dbname", "user", "service")
    settings = parse(dsn)
    return " ".join(f"{key}={settings[key]}" for key in shown if key in settings) or "(default)"


def astray(dsn: str) -> str:
    """Return the settings by which a connection string that others have written could lead
    passwords astray; empty if there are none."""
    names = parse(dsn).keys()
    refused = names - _ALLOWED
    if "service" in names:
        # The service may have a password, for the host that it names.
        refused |= names & {"host", "port"}
    beside = " beside service" if refused and refused <= _ALLOWED else ""
    return ", ".join(sorted(refused)) + beside
