"""Fixtures for tests of applications that use pgqpy; see docs/testing.md.

Pytest loads this wherever pgqpy is installed, so it imports little, and starts nothing until a
test needs it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias
from uuid import uuid4

import pytest

from pgqpy import dsn as dsns
from pgqpy.errors import PgqError

if TYPE_CHECKING:
    from pgqpy.testing import ScratchDatabase

Prepare: TypeAlias = Callable[[str], object]

#: Names the server when there is no ``--pgqpy-dsn``. Not PGQPY_DSN: that may be production's.
VARIABLE = "PGQPY_TEST_DSN"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("pgqpy").addoption(
        "--pgqpy-dsn",
        metavar="DSN",
        help="server on which tests make their databases, as a role that may create databases and"
        f" roles (default: ${VARIABLE}, else PostgreSQL from a wheel is started)",
    )


@pytest.fixture(scope="session")
def pgqpy_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """Connection string of the server; one is started if none is named."""
    named = request.config.getoption("--pgqpy-dsn") or os.environ.get(VARIABLE)
    if named:
        dsns.parse(named)  # Its error has a remedy.
        yield named
        return
    from pgqpy.embedded import EmbeddedError, Server

    server = Server()
    try:
        server.start()
    except EmbeddedError as error:
        pytest.fail(f"{error}\nOr name a server: --pgqpy-dsn DSN, or {VARIABLE}.", pytrace=False)
    try:
        yield server.dsn
    finally:
        server.stop()


@pytest.fixture(scope="session")
def pgqpy_prepare() -> Prepare | None:
    """Override it to create your tables in every test's database: a function of a DSN."""
    return None


@pytest.fixture(scope="session")
def pgqpy_template(pgqpy_server: str) -> Iterator[Callable[[Prepare | None], str]]:
    """``pgqpy_template(prepare)`` returns the name of the database that tests get copies of.

    A directory or module may override `pgqpy_prepare`, so there is one for each.
    """
    from pgqpy.testing._scratch import drop_database

    names: dict[Prepare | None, str] = {}

    def template(prepare: Prepare | None) -> str:
        if prepare not in names:
            name = f"pgqpy_test_{uuid4().hex[:12]}"
            try:
                _make_template(pgqpy_server, name, prepare)
            except BaseException:
                with suppress(PgqError):
                    drop_database(pgqpy_server, name)
                raise
            names[prepare] = name
        return names[prepare]

    yield template
    for name in names.values():
        drop_database(pgqpy_server, name)


def _make_template(server: str, name: str, prepare: Prepare | None) -> None:
    """Create a database with the schema, and the user's objects."""
    from pgqpy.schema import migrate
    from pgqpy.testing._scratch import create_database, dsn_of

    dsn = dsn_of(server, name)
    try:
        create_database(server, name)
        migrate(dsn)
    except PgqError as error:
        pytest.fail(f"no databases can be made on {dsns.redact(server)}: {error}", pytrace=False)
    if prepare is not None:
        prepare(dsn)


@pytest.fixture
def pgqpy_dsn(
    pgqpy_server: str,
    pgqpy_template: Callable[[Prepare | None], str],
    pgqpy_prepare: Prepare | None,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """Connection string of a new database, which PGQPY_DSN names, too, during the test."""
    from pgqpy.testing._scratch import create_database, drop_database, dsn_of

    template = pgqpy_template(pgqpy_prepare)
    name = f"{template}_{uuid4().hex[:12]}"
    create_database(pgqpy_server, name, template=template)
    dsn = dsn_of(pgqpy_server, name)
    monkeypatch.setenv(dsns.VARIABLE, dsn)
    yield dsn
    drop_database(pgqpy_server, name)


@pytest.fixture
def pgq(pgqpy_dsn: str) -> Iterator[ScratchDatabase]:
    """A `pgqpy.testing.ScratchDatabase`: queues, events, ticks, and ``drain(consumer)``."""
    from pgqpy.testing import ScratchDatabase

    database = ScratchDatabase(pgqpy_dsn)
    yield database
    database.close()
