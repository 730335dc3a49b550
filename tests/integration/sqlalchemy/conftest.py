"""Engines of SQLAlchemy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa


@pytest.fixture
def engine(dsn: str) -> Iterator[sa.Engine]:
    made = sa.create_engine(sa.make_url(dsn).set(drivername="postgresql+psycopg"))
    yield made
    made.dispose()
