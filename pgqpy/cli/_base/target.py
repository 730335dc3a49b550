"""The database of a connection string, in words that never include the password."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, urlencode

from psycopg import pq

import pgqpy.dsn


@dataclass(frozen=True, slots=True)
class Target:
    """Host, port, database and user, resolved like libpq does."""

    host: str
    port: str
    dbname: str
    user: str

    @classmethod
    def from_dsn(cls, dsn: str) -> Target:
        """Read a connection string, with libpq's environment and defaults behind it.

        Raises pgqpy.InvalidDsn when it cannot be read.
        """
        defaults = {
            option.keyword.decode(): option.val.decode()
            for option in pq.Conninfo.get_defaults()
            if option.val
        }
        settings = defaults | pgqpy.dsn.parse(dsn)
        user = settings.get("user", "")
        return cls(
            host=settings.get("host") or settings.get("hostaddr") or "localhost",
            port=settings.get("port", "5432"),
            dbname=settings.get("dbname") or user,
            user=user,
        )

    @property
    def uri(self) -> str:
        """The target as a connection string that can be shown and typed again."""
        user, dbname = quote(self.user, safe=""), quote(self.dbname, safe="")
        if self.host.startswith(("/", "@")):
            where = urlencode({"host": self.host, "port": self.port}, safe="/")
            return f"postgresql://{user}@/{dbname}?{where}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"postgresql://{user}@{host}:{self.port}/{dbname}"

    def __str__(self) -> str:
        return f'{self.host}:{self.port}, database "{self.dbname}", user "{self.user}"'
