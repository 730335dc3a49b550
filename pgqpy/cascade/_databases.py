# WARNING: generated from pgqpy/cascade/_databases_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Databases of nodes, whose connections the workers of a process share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg.rows import dict_row

from pgqpy._runtime.fetch import fetch
from pgqpy._runtime.planted import NODE, refuse_planted
from pgqpy.cascade._statements import KIND
from pgqpy.connection import Connection, connect, read_committed
from pgqpy.errors import ConnectionFailed, comes_from, translate_errors

#: The connections to a database that are kept while no worker uses them.
_KEPT = 4
_UNKNOWN = {"is_node": False}


class Database:
    """Connections to one database."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._idle: list[Connection] = []
        self._kind = _UNKNOWN
        #: Why it could not connect, and whether that is being tried again.
        self._away: ConnectionFailed | None = None
        self._trying = False

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Lend a connection in autocommit. After an error it is closed: its state is unknown."""
        with comes_from(self.dsn):
            conn = self._idle.pop() if self._idle else self._connect()
            try:
                yield conn
            except BaseException:
                broken = conn.closed
                conn.close()
                if broken:
                    # The server was restarted, perhaps upgraded, and the others broke as well.
                    self.close()
                raise
            if len(self._idle) < _KEPT:
                self._idle.append(conn)
            else:
                conn.close()

    def kind(self, conn: Connection) -> dict[str, bool]:
        """Return whether it has nodes, ``is_node``, and not those of PgQ itself, ``is_ours``."""
        if not self._kind["is_node"]:
            (self._kind,) = fetch(conn, KIND, (), dict_row)
        return self._kind

    def close(self) -> None:
        """Close the connections that nothing uses."""
        self._kind = _UNKNOWN
        idle, self._idle = self._idle, []
        for conn in idle:
            conn.close()

    def _connect(self) -> Connection:
        if self._away is not None and self._trying:
            # An attempt may take long, and other workers have other databases.
            raise ConnectionFailed(self._away.message)
        self._trying = True
        try:
            conn = connect_to(self.dsn)
            self._away = None
        except ConnectionFailed as error:
            self._away = error
            raise
        finally:
            self._trying = False
        read_committed(conn)
        return conn


def connect_to(dsn: str | None) -> Connection:
    """Connect to the database of a node, whose location others have chosen."""
    conn = connect(dsn, autocommit=True, application_name="pgqpy cascade")
    try:
        refuse_planted(conn, NODE)
        with translate_errors():
            conn.execute("set search_path = pg_catalog, pg_temp")
    except BaseException:
        conn.close()
        raise
    return conn


class Databases:
    """The databases of a process, by connection string."""

    def __init__(self) -> None:
        self._known: dict[str, Database] = {}

    def at(self, dsn: str) -> Database:
        """Return the database; it connects when it is used."""
        return self._known.setdefault(dsn, Database(dsn))

    def close(self) -> None:
        """Close all connections that nothing uses."""
        for database in self._known.values():
            database.close()
