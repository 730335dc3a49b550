"""The nodes of a cascaded queue: found from any of them, each by a connection of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, LiteralString, Self, TypeAlias

from psycopg.rows import dict_row

import pgqpy.dsn
from pgqpy._runtime.fetch import fetch
from pgqpy._runtime.planted import NODE, refuse_planted
from pgqpy.cascade._location import usable
from pgqpy.cascade._statements import TICK
from pgqpy.connection import Connection, connect
from pgqpy.errors import (
    CascadeError,
    ConnectionFailed,
    InvalidDsn,
    PgqError,
    comes_from,
    translate_errors,
)

NodeType: TypeAlias = Literal["root", "branch", "leaf"]

#: The seconds to wait for the connection to a node.
TIMEOUT = 5

#: PgQ's result codes: below it is success, from here on a refusal.
_REFUSED = 300

#: The newest tick is that of the node's queue; a leaf has none, and its worker's tick is as good.
_INFO: LiteralString = """
    select i.ret_code, i.ret_note, i.node_name as name, i.node_type as type,
           nullif(i.provider_node, i.node_name) as provider, i.worker_name as worker,
           coalesce(t.tick_id, i.worker_last_tick) as last_tick, i.local_watermark as watermark,
           i.worker_paused as paused, i.worker_uptodate as uptodate, c.cur_error as error,
           coalesce(q.queue_disable_insert and q.queue_external_ticker, true) as refuses_events,
           -- PgQ's own has no such column
           coalesce((pg_catalog.to_jsonb(q) ->> 'queue_restricted')::boolean, false) as restricted
      from pgq_node.get_node_info(%s) i
      left join pgq.queue q on q.queue_name = %s and i.node_type <> 'leaf'
      left join pgq_node.get_consumer_info(%s) c on c.consumer_name = i.worker_name
      left join lateral (select tick_id from pgq.tick
                          where tick_queue = q.queue_id
                          order by tick_id desc limit 1) t on true
"""
_EPOCH: LiteralString = "select * from pgq_node.get_epoch(%s)"
_IS_OURS: LiteralString = "select pg_catalog.to_regclass('pgq_node.root_epoch') is not null"


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What a node says of itself."""

    name: str
    type: NodeType
    provider: str | None
    worker: str
    last_tick: int
    watermark: int
    paused: bool
    uptodate: bool
    error: str | None
    refuses_events: bool
    """As all copies do; of a root, that a takeover is under way."""
    restricted: bool
    """Whether roles need grants for its queue, which each database has of its own."""
    epoch: int
    """Which root it has heard of last; that of two roots with the higher one is the newer."""
    fenced_by: str | None
    fenced_tick: int | None
    """The last tick of a fenced root that the other nodes have."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where a node is, as the nodes know it."""

    name: str
    dsn: str
    dead: bool


class Node:
    """A connection to a node; each statement is its own transaction unless a block opens one."""

    def __init__(self, queue: str, conn: Connection, dsn: str) -> None:
        self.queue = queue
        self.conn = conn
        self.dsn = dsn

    def rows(self, statement: LiteralString | bytes, *arguments: Any) -> list[Any]:
        """Run a statement and return its rows, by column."""
        sent = statement if isinstance(statement, bytes) else statement.encode()
        with comes_from(self.dsn):
            return fetch(self.conn, sent, arguments, dict_row)

    def value(self, statement: LiteralString, *arguments: Any) -> Any:
        """Return the first column of the first row, or None."""
        return next((next(iter(row.values())) for row in self.rows(statement, *arguments)), None)

    def call(
        self, function: LiteralString, *arguments: Any, allow: tuple[int, ...] = ()
    ) -> dict[str, Any]:
        """Call a function of pgq_node for this queue, and return its row.

        Raises CascadeError if it refuses, unless with one of the codes in ``allow``.
        """
        places = ", %s" * len(arguments)
        [row] = self.rows(f"select * from pgq_node.{function}(%s{places})", self.queue, *arguments)
        code = row["ret_code"]
        if code is not None and code >= _REFUSED and code not in allow:
            raise CascadeError(f"{where(self.dsn)}: {row['ret_note']}")
        return row  # type: ignore[no-any-return]

    def info(self) -> NodeInfo:
        """Return its state. Raises CascadeError if no node of the queue is here."""
        [row] = self.rows(_INFO, self.queue, self.queue, self.queue)
        code, note = row.pop("ret_code"), row.pop("ret_note")
        if code >= _REFUSED:
            raise CascadeError(
                f"{where(self.dsn)} has no node of queue '{self.queue}' ({note})",
                hint="make one: pgqpy node create",
            )
        epoch = self.rows(_EPOCH, self.queue)[0] if self.is_ours else {}
        return NodeInfo(
            **row,
            epoch=epoch.get("epoch") or 0,
            fenced_by=epoch.get("fenced_by"),
            fenced_tick=epoch.get("fenced_tick"),
        )

    @cached_property
    def is_ours(self) -> bool:
        """Whether its pgq_node is pgqpy's, which has epochs and fences."""
        return bool(self.value(_IS_OURS))

    def tick(self, tick: int) -> dict[str, Any] | None:
        """Return time and event sequence of a tick; None if its queue does not have it."""
        return next(iter(self.rows(TICK, self.queue, tick)), None)

    def locations(self) -> list[Location]:
        rows = self.rows("select * from pgq_node.get_queue_locations(%s)", self.queue)
        return [Location(each["node_name"], each["node_location"], each["dead"]) for each in rows]

    def subscribers(self) -> dict[str, str]:
        """Return the names of the nodes that get their events here, with their workers."""
        rows = self.rows("select * from pgq_node.get_subscriber_info(%s)", self.queue)
        return {each["node_name"]: each["worker_name"] for each in rows}


class Nodes:
    """The nodes of a queue. A context manager, which closes their connections.

    ``dsn`` is the database of any of them. ``check`` is called with each new connection.
    """

    def __init__(
        self,
        queue: str,
        dsn: str | None = None,
        *,
        check: Callable[[Connection], None] = lambda conn: None,
    ) -> None:
        self.queue = queue
        self._dsn = pgqpy.dsn.resolve(dsn)
        self._check = check
        self._open: dict[str, Node] = {}
        self._failed: dict[str, str] = {}
        self.here = self.connect(self._dsn)
        try:
            self.local = self.here.info()
            self._open[self.local.name] = self.here
            self.locations = {each.name: each for each in self.here.locations()}
        except BaseException:
            self.here.conn.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for node in (self.here, *self._open.values()):
            node.conn.close()

    def connect(self, dsn: str) -> Node:
        """Open a connection to a database that has, or will have, a node."""
        return open_node(self.queue, dsn, check=self._check)

    def node(self, name: str) -> Node:
        """Return the connection to a node. Raises ConnectionFailed, CascadeError."""
        if name not in self._open:
            location = self.location(name)
            node = self.connect(usable(location.dsn))
            try:
                found = node.info().name
                if found != name:
                    raise CascadeError(
                        f"the location of node {name} leads to node {found} ({where(node.dsn)})",
                        hint="register the right one: select pgq_node.register_location(...)",
                    )
            except BaseException:
                node.conn.close()
                raise
            self._open[name] = node
        return self._open[name]

    def location(self, name: str) -> Location:
        """Return where a node is. Raises CascadeError if the queue has no such node."""
        if name not in self.locations:
            raise CascadeError(
                f"queue '{self.queue}' has no node {name}",
                hint=f"its nodes are {', '.join(sorted(self.locations))}",
            )
        return self.locations[name]

    def forget(self, name: str) -> None:
        """Close the connection to a node."""
        if name in self._open:
            self._open.pop(name).conn.close()

    def look(self) -> dict[str, NodeInfo | str]:
        """Ask all nodes at once; for one that cannot be asked, return the reason instead.

        Nodes that only others know are found, too. One that has failed is not asked again.
        """
        found: dict[str, NodeInfo | str] = {**self._failed}
        while missing := [name for name in self.locations if name not in found]:
            with ThreadPoolExecutor(max_workers=8) as pool:
                found |= zip(missing, pool.map(self._ask, missing), strict=True)
            for name in missing:
                if isinstance(found[name], NodeInfo):
                    for each in self.node(name).locations():
                        known = self.locations.setdefault(each.name, each)
                        if each.dead:  # one that was dead itself does not know
                            self.locations[each.name] = replace(known, dead=True)
        return found

    def infos(self) -> dict[str, NodeInfo]:
        """Return the state of the nodes that can be asked."""
        return asked(self.look())

    def _ask(self, name: str) -> NodeInfo | str:
        try:
            return self.node(name).info()
        except (ConnectionFailed, CascadeError, InvalidDsn) as error:
            self.forget(name)
            # libpq says where before it says why.
            why = error.message.rpartition("failed: ")[2].removeprefix("FATAL:")
            self._failed[name] = why.strip().partition("\n")[0]
            return self._failed[name]

    def reachable(self) -> Iterator[tuple[str, Node]]:
        """The nodes that can be asked, each with its connection."""
        for name in self.infos():
            yield name, self.node(name)


def asked(look: dict[str, NodeInfo | str]) -> dict[str, NodeInfo]:
    """Return what nodes have said, without those that could not be asked."""
    return {name: info for name, info in look.items() if isinstance(info, NodeInfo)}


def open_node(
    queue: str, dsn: str, *, check: Callable[[Connection], None] = lambda conn: None
) -> Node:
    """Connect to a database that has, or will have, a node of a queue."""
    with comes_from(dsn):
        settings = {} if "connect_timeout" in pgqpy.dsn.parse(dsn) else {"connect_timeout": TIMEOUT}
        conn = connect(dsn, autocommit=True, **settings)
        try:
            try:
                refuse_planted(conn, NODE)
            except PgqError as error:
                raise CascadeError(error.message, hint=error.hint) from None
            check(conn)
            with translate_errors():
                conn.execute("set search_path = pg_catalog, pg_temp")
        except BaseException:
            conn.close()
            raise
    return Node(queue, conn, dsn)


def where(dsn: str) -> str:
    """Name a database for a message, without its password."""
    settings = pgqpy.dsn.parse(dsn)
    place = settings.get("service") or settings.get("host") or settings.get("hostaddr")
    name = f'database "{settings["dbname"]}"' if "dbname" in settings else "the database"
    return f"{name} on {place}" if place else name
