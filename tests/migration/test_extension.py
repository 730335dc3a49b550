"""CREATE EXTENSION pgqpy: who installs this way keeps to it."""

from __future__ import annotations

import pytest

from pgqpy import schema
from pgqpy.schema import SchemaError
from tests.fixtures.fix_db import Connection

pytestmark = pytest.mark.usefixtures("extension_installed")


def test_migrate_leaves_an_extension_to_itself(empty_dsn: str, other: Connection) -> None:
    other.execute("create extension pgqpy")
    for change in (schema.migrate, lambda dsn: schema.downgrade(dsn, "base")):
        with pytest.raises(SchemaError, match="ALTER EXTENSION pgqpy UPDATE"):
            change(empty_dsn)


def test_drop_extension_removes_everything(other: Connection) -> None:
    other.execute("create extension pgqpy")
    other.execute("drop extension pgqpy")
    assert other.execute("select to_regnamespace('pgq')").fetchone() == (None,)
