"""Conversion of SQLAlchemy's URLs to libpq's."""

from __future__ import annotations

import sqlalchemy as sa


def libpq_dsn(url: sa.URL | str) -> str:
    """Return the connection string, password included, for a `pgqpy.Consumer`.

    ``url`` is an engine's: ``libpq_dsn(engine.url)``. Its driver does not matter; parameters
    after the ``?`` must be libpq's, such as ``host`` and ``sslmode``.
    """
    return sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
