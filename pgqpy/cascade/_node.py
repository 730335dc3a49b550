"""What a node's database says of the node, and of the consumers that have their state there."""

from __future__ import annotations

from psycopg.rows import dict_row

from pgqpy._runtime.failure import storable
from pgqpy._runtime.io import AsyncIo
from pgqpy.cascade import _statements as statements
from pgqpy.cascade._location import usable
from pgqpy.cascade._statements import News, NodeState
from pgqpy.connection_async import AsyncConnection
from pgqpy.errors import ConsumerNotRegistered, PgqError
from pgqpy.retry import in_short

_MOST_OF_AN_ERROR = 1_000


async def read_state(
    io: AsyncIo, conn: AsyncConnection, queue: str, consumer: str | None = None
) -> NodeState:
    """Return the state of the node and of a consumer there, by default of its worker.

    Raises an error if the database is no node of the queue, or the state names no provider;
    ConsumerNotRegistered, CascadeError.
    """
    asked = consumer, consumer, queue
    rows = await io.fetch(conn, statements.STATE, asked, dict_row)
    if not rows:
        raise no_node(queue)
    state = NodeState(**rows[0])
    if state.completed is None:
        raise ConsumerNotRegistered(
            f"{state.consumer!r} has no position at node {state.node_name} of queue {queue!r}",
            hint="pgq_node.get_consumer_info(queue) lists those that have one; a CascadedConsumer"
            " gets it when it runs.",
        )
    if state.provider_location is None:
        raise PgqError(
            f"the provider {state.provider_node!r} of queue {queue!r} has no location",
            hint="Register it: pgq_node.register_location().",
        )
    if consumer is not None:  # a worker of the root does not connect
        usable(state.provider_location)
    return state


async def lock_state(io: AsyncIo, conn: AsyncConnection, queue: str, consumer: str) -> NodeState:
    """Return the state of a consumer, which changes no more until the transaction ends.

    Raises ConsumerNotRegistered.
    """
    # An update locks it. Its error is over if the transaction commits.
    await io.fetch(conn, statements.NOTE_ERROR, (queue, consumer, None))
    return await read_state(io, conn, queue, consumer)


def check_worker(state: NodeState, queue: str) -> None:
    """Raise an error if the state is one that a worker cannot keep."""
    if state.node_type == "branch" and state.syncs:
        raise PgqError(
            f"node {state.node_name} of queue {queue!r} has the attribute sync_watermark, which"
            " only PgQ's worker heeds",
            hint="Without it the nodes above keep events for those below this one, too:"
            f" select pgq_node.set_node_attrs('{queue}', null).",
        )
    if state.combined_queue is not None and state.combined_type is None:
        raise PgqError(
            f"queue {queue!r} is to be merged into {state.combined_queue!r}, of which this database"
            " is no node",
            hint="Make it one: pgqpy node create.",
        )


async def find_node(
    io: AsyncIo, conn: AsyncConnection, queue: str, node: str | None
) -> tuple[str, str]:
    """Return the name and the location of a node, by default of the one that this node copies."""
    rows = await io.fetch(conn, statements.LOCATION, (node, queue))
    if not rows:
        raise no_node(queue)
    name, location = rows[0]
    if location is None:
        raise PgqError(
            f"queue {queue!r} has no node {node!r}",
            hint="pgq_node.get_queue_locations() lists its nodes.",
        )
    return name, usable(location)


async def note_error(
    io: AsyncIo, conn: AsyncConnection, queue: str, consumer: str, error: Exception
) -> None:
    """Note in the state of a consumer why it cannot go on."""
    encoding = conn.info.parameter_status("server_encoding") or ""
    reason = storable(in_short(error)[:_MOST_OF_AN_ERROR], encoding)
    await io.fetch(conn, statements.NOTE_ERROR, (queue, consumer, reason))


async def follow_news(
    io: AsyncIo,
    node: AsyncConnection,
    source: AsyncConnection,
    news: News,
    *,
    learns: bool,
    knows: bool,
) -> None:
    """Take over what the provider knows of what the news are about.

    Events only tell where to look, since a producer can forge them. ``learns`` if the node has
    epochs, ``knows`` if the provider has: PgQ's only pass them on.
    """
    queue = news.queue
    if news.nodes:
        theirs, ours = [
            {name: more for name, *more in await io.fetch(conn, statements.LOCATIONS, (queue,))}
            for conn in (source, node)
        ]
        known = theirs.keys() | ours.keys()
        for name in sorted(known if news.of_all_nodes else known & news.nodes):
            if name not in theirs:
                await io.fetch(node, statements.UNLOCATE, (queue, name))
            elif theirs[name] != ours.get(name):
                await io.fetch(node, statements.LOCATE, (queue, name, *theirs[name]))
    if news.watermark:
        ((watermark, _),) = await io.fetch(source, statements.PROGRESS, (queue,))
        if watermark is not None:
            await io.fetch(node, statements.MOVE_WATERMARK, (queue, watermark))
    if news.epoch is not None and learns:
        epoch = news.epoch
        if knows:
            ((epoch,),) = await io.fetch(source, statements.EPOCH, (queue,))
        await io.fetch(node, statements.LEARN, (queue, epoch))
    marked = any(news.parts.values())
    for part, here in await io.fetch(node, statements.PARTS, (queue,)) if marked else ():
        if news.parts.get(part, 0) > here:
            ((_, merged),) = await io.fetch(source, statements.PROGRESS, (part,))
            tick = min(news.parts[part], here if merged is None else merged)
            await io.fetch(node, statements.MOVE_PART, (queue, part, tick))


def kept_twice(queue: str, node: str) -> PgqError:
    """Return the error for a node that was moved on between the worker's look and its commit."""
    return PgqError(
        f"another process keeps node {node} of queue {queue}, too: it was faster",
        hint="Nothing is lost or doubled. End one of them.",
    )


def no_node(queue: str) -> PgqError:
    """Return the error for a database that is no node of the queue."""
    return PgqError(
        f"this database is no node of queue {queue!r}",
        hint="Create it: pgqpy node create, or pgq_node.create_node().",
    )
