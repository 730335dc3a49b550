"""What a node's database says of the node, and of the consumers that have their state there."""

from __future__ import annotations

from psycopg.rows import dict_row

from pgqpy._runtime.failure import storable
from pgqpy._runtime.fetch_async import async_fetch
from pgqpy.cascade import _statements as statements
from pgqpy.cascade._statements import NodeState
from pgqpy.connection_async import AsyncConnection
from pgqpy.errors import ConsumerNotRegistered, PgqError
from pgqpy.retry import in_short

_MOST_OF_AN_ERROR = 1_000


async def async_read_state(
    conn: AsyncConnection, queue: str, consumer: str | None = None
) -> NodeState:
    """Return the state of the node and of a consumer there, by default of its worker.

    Raises an error if the database is no node of the queue, or the state names no provider;
    ConsumerNotRegistered.
    """
    asked = consumer, consumer, queue
    rows = await async_fetch(conn, statements.STATE, asked, dict_row)
    if not rows:
        raise no_node(queue)
    state = NodeState(**rows[0])
    if state.completed is None:
        raise ConsumerNotRegistered(
            f"{state.consumer!r} has no position at node {state.node_name} of queue {queue!r}",
            hint="Look at pgq_node.local_state.",
        )
    if state.provider_location is None:
        raise PgqError(
            f"the provider {state.provider_node!r} of queue {queue!r} has no location",
            hint="Register it: pgq_node.register_location().",
        )
    return state


async def async_find_node(conn: AsyncConnection, queue: str, node: str | None) -> tuple[str, str]:
    """Return the name and the location of a node, by default of the one that this node copies."""
    rows = await async_fetch(conn, statements.LOCATION, (node, queue))
    if not rows:
        raise no_node(queue)
    name, location = rows[0]
    if location is None:
        raise PgqError(
            f"queue {queue!r} has no node {node!r}",
            hint="pgq_node.get_queue_locations() lists its nodes.",
        )
    return name, location


async def async_note_error(
    conn: AsyncConnection, queue: str, consumer: str, error: Exception
) -> None:
    """Note in the state of a consumer why it cannot go on."""
    encoding = conn.info.parameter_status("server_encoding") or ""
    reason = storable(in_short(error)[:_MOST_OF_AN_ERROR], encoding)
    await async_fetch(conn, statements.NOTE_ERROR, (queue, consumer, reason))


def no_node(queue: str) -> PgqError:
    """Return the error for a database that is no node of the queue."""
    return PgqError(
        f"this database is no node of queue {queue!r}",
        hint="Create it: pgqpy node create, or pgq_node.create_node().",
    )
