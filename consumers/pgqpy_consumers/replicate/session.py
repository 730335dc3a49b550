"""Settings of sessions, so that both sides write and read values alike."""

from __future__ import annotations

from typing import LiteralString

import pgqpy

#: Settings of the transaction: those that the texts of values depend on, and no timeout for COPY.
_ALIKE: LiteralString = """
set local datestyle = 'ISO, YMD';
set local intervalstyle = 'postgres';
set local timezone = 'UTC';
set local extra_float_digits = 1;
set local bytea_output = 'hex';
set local xmloption = 'content';
set local lc_monetary = 'C';
set local row_security = off;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
"""


def alike(conn: pgqpy.Connection) -> None:
    """Prepare a transaction that has begun in the source."""
    # Names of relations, as values of reg* columns, are written with their schema.
    conn.execute(_ALIKE + "set local search_path = pg_catalog, pg_temp", prepare=False)


def silent(conn: pgqpy.Connection, allowed: bool) -> None:
    """Prepare a transaction that writes to the target: no triggers fire, no foreign keys check.

    Only if ``allowed``: see `may_silence`.
    """
    conn.execute(
        _ALIKE + ("set local session_replication_role = replica" if allowed else ""), prepare=False
    )


def may_silence(conn: pgqpy.Connection) -> bool:
    """Whether the role may set session_replication_role: superusers, and roles with that grant."""
    superuser = "select rolsuper from pg_catalog.pg_roles where rolname = current_user"
    granted = "select has_parameter_privilege('session_replication_role', 'set')"
    row = conn.execute(granted if conn.info.server_version >= 150000 else superuser).fetchone()
    return bool(row and row[0])
