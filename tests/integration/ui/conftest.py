"""What the tests of the console share."""

from __future__ import annotations

import pytest

from tests.fixtures.fix_console import Client, Console


@pytest.fixture
def client(dsn: str, console: Console) -> Client:
    """A client of the console of `dsn`, without further settings."""
    return console(dsn)
