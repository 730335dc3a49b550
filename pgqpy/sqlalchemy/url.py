"""SQLAlchemy's URLs, for those who want libpq's."""

from __future__ import annotations

import sqlalchemy as sa


def libpq_dsn(url: sa.URL | str) -> str:
    """The connection string, password included, that a `pgqpy.Consumer` takes.

    ``url`` is an engine's: ``libpq_dsn(engine.url)``. Its driver does not matter; parameters
    behind the ``?`` must be ones that libpq knows, such as ``host`` and ``sslmode``.
    """
    return sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
