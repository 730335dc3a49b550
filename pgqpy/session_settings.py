"""The settings that our sessions rely on: a role or a database may have others.

Every connection that we open sets these. Code must not depend on them on a user's connection,
nor behind a pooler, which lends sessions that others have set up: there, arrays are sent in
binary (see `pgqpy._wire.statements.Array`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg.conninfo import make_conninfo

from pgqpy import dsn as dsns

#: Settings by name. libpq itself needs only client_encoding when it connects: see `ENCODING`.
SETTINGS = {
    # If off, a NULL in the text of an array is a string.
    "array_nulls": "on",
    "bytea_output": "hex",
    # psycopg reads dates of the ISO style, in any order.
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    # All digits of numbers.
    "extra_float_digits": "1",
    # Literals quoted here must mean the same to the server.
    "standard_conforming_strings": "on",
    "quote_all_identifiers": "off",
    "transform_null_equals": "off",
    # Event tables are never analyzed, so batches are taken for large: compiling their queries takes
    # longer than reading them.
    "jit": "off",
}

#: Text is Unicode, whatever the environment, the role or the database says.
ENCODING = {"client_encoding": "UTF8"}

#: Sets all of them for the session.
PIN = "select {}".format(
    ", ".join(
        f"pg_catalog.set_config('{name}', '{value}', false)" for name, value in SETTINGS.items()
    )
).encode()

#: Unless the connection string says otherwise. A dead peer is detected within a minute; the
#: system's default is two hours.
DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
    "application_name": "pgqpy",
}


def with_defaults(
    dsn: str, settings: Mapping[str, Any], defaults: Mapping[str, Any] = DEFAULTS
) -> str:
    """Return a connection string with these settings, and the defaults of what nothing says."""
    told = {**dsns.parse(dsn), **settings}
    untold = {key: value for key, value in defaults.items() if key not in told}
    return make_conninfo(dsn, **untold, **{**settings, **ENCODING})
