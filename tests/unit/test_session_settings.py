"""One module knows what a session of ours relies on, and all that open one use it."""

from __future__ import annotations

import re
from pathlib import Path

import pgqpy

ROOT = Path(pgqpy.__file__).parents[1]

#: Where connections are opened at all, and why the rest may.
OPENS = {
    "pgqpy/connection.py",
    "pgqpy/connection_async.py",
    "ticker/pgqpy_ticker/connect.py",
    # asks one thing: which process serves it
    "pgqpy/doctor/_server.py",
    # Arrow's driver, which reads in binary
    "consumers/pgqpy_consumers/spark/_events.py",
}

_OPENING = re.compile(
    r"\b(psycopg|AsyncConnection|Connection|adbc_driver_postgresql|kind)\.connect\("
)


def test_connections_are_opened_where_the_settings_are_pinned() -> None:
    found = {
        str(path.relative_to(ROOT))
        for package in ("pgqpy", "ticker", "consumers")
        for path in (ROOT / package).rglob("*.py")
        if _OPENING.search(path.read_text())
    }
    assert found == OPENS
    for name in ("pgqpy/connection.py", "ticker/pgqpy_ticker/connect.py"):
        assert "from pgqpy.session_settings import" in (ROOT / name).read_text()
