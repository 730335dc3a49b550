"""Databases of nodes, whose connections the workers of a process share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from psycopg.rows import dict_row

from pgqpy._runtime.io import PLAIN, AsyncIo
from pgqpy._runtime.planted import NODE, async_refuse_planted, refuse_planted
from pgqpy.cascade._statements import KIND
from pgqpy.connection_async import AsyncConnection
from pgqpy.errors import ConnectionFailed, comes_from, translate_errors

#: The connections to a database that are kept while no worker uses them.
_KEPT = 4
_UNKNOWN = {"is_node": False}


class Database:
    """Connections to one database."""

    def __init__(self, io: AsyncIo, dsn: str) -> None:
        self._io = io
        self.dsn = dsn
        self._idle: list[AsyncConnection] = []
        self._kind = _UNKNOWN
        #: Why it could not connect, and whether that is being tried again.
        self._away: ConnectionFailed | None = None
        self._trying = False

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection]:
        """Lend a connection in autocommit. After an error it is closed: its state is unknown."""
        with comes_from(self.dsn):
            conn = self._idle.pop() if self._idle else await self._connect()
            try:
                yield conn
            except BaseException:
                broken = conn.closed
                await self._io.call(conn.close)
                if broken:
                    # The server was restarted, perhaps upgraded, and the others broke as well.
                    await self.close()
                raise
            if len(self._idle) < _KEPT:
                self._idle.append(conn)
            else:
                await self._io.call(conn.close)

    async def kind(self, conn: AsyncConnection) -> dict[str, bool]:
        """Return whether it has nodes, ``is_node``, and not those of PgQ itself, ``is_ours``."""
        if not self._kind["is_node"]:
            (self._kind,) = await self._io.fetch(conn, KIND, (), dict_row)
        return self._kind

    async def close(self) -> None:
        """Close the connections that nothing uses."""
        self._kind = _UNKNOWN
        idle, self._idle = self._idle, []
        for conn in idle:
            await self._io.call(conn.close)

    async def _connect(self) -> AsyncConnection:
        if self._away is not None and self._trying:
            # An attempt may take long, and other workers have other databases.
            raise ConnectionFailed(self._away.message)
        self._trying = True
        try:
            conn = await connect_to(self._io, self.dsn)
            self._away = None
        except ConnectionFailed as error:
            self._away = error
            raise
        finally:
            self._trying = False
        await self._io.read_committed(conn)
        return conn


async def connect_to(io: AsyncIo, dsn: str | None) -> AsyncConnection:
    """Connect to the database of a node, whose location others have chosen."""
    options = {"prepare_threshold": 5, "application_name": "pgqpy cascade"}
    conn = await io.connect(PLAIN, dsn, autocommit=True, **options)
    try:
        await io.call(io.either(async_refuse_planted, refuse_planted), conn, NODE)
        with translate_errors():
            await io.call(conn.execute, "set search_path = pg_catalog, pg_temp")
    except BaseException:
        await io.call(conn.close)
        raise
    return conn


class Databases:
    """The databases of a process, by connection string."""

    def __init__(self, io: AsyncIo) -> None:
        self._io = io
        self._known: dict[str, Database] = {}

    def at(self, dsn: str) -> Database:
        """Return the database; it connects when it is used."""
        return self._known.setdefault(dsn, Database(self._io, dsn))

    async def close(self) -> None:
        """Close all connections that nothing uses."""
        for database in self._known.values():
            await database.close()
