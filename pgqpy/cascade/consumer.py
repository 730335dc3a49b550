# WARNING: generated from pgqpy/cascade/consumer_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Consumers of cascaded queues, which can change the node that they read."""

from __future__ import annotations

from contextlib import suppress
from typing import Unpack

import psycopg

from pgqpy import dsn as dsns
from pgqpy._runtime.fetch import fetch
from pgqpy._runtime.planted import NODE, refuse_planted
from pgqpy.admin import Admin
from pgqpy.cascade import _statements as statements
from pgqpy.cascade._databases import connect_to
from pgqpy.cascade._node import (
    find_node,
    lock_state,
    note_error,
    read_state,
)
from pgqpy.cascade._statements import NodeState
from pgqpy.connection import Connection, connect
from pgqpy.consumer._loop import Loop
from pgqpy.consumer.base import ConsumerOptions
from pgqpy.consumer.batch import Batch
from pgqpy.consumer.remote import RemoteLoop, SerialConsumer
from pgqpy.errors import (
    ConsumerNotRegistered,
    InvalidConsumer,
    PgqError,
    QueueNotFound,
    TickNotFound,
)
from pgqpy.event import Event
from pgqpy.log import logger


class CascadedConsumer(SerialConsumer):
    """Applies a cascaded queue's batches in the database of a node, each exactly once, and can
    change the node that it reads.

    Subclass it like an RemoteConsumer, and write on ``target``, the database of ``dsn``. Its
    state is there, too, in ``pgq_node.local_state``: the provider, the last tick, pauses and
    errors. All nodes have the same ticks, so with another provider it goes on at the same tick.
    The order of events is kept: an event that fails, fails the batch.
    """

    provider: str | None = None
    """The node to read first; later ``local_state`` says it. None: the one that this node copies;
    at the root, itself."""

    def __init__(
        self,
        dsn: str | None = None,
        *,
        provider: str | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """``dsn`` is the database of the node with the effects; for the rest see Consumer."""
        dsn = dsns.resolve(dsn)
        super().__init__(dsn, target_dsn=dsn, **options)
        self.provider = provider or self.provider

    def register(self, *, at_tick: int | None = None) -> bool:
        """Register at the provider and at the node, to get all events from ``start`` on, or after
        ``at_tick``. False if it was registered already.

        Raises QueueNotFound, TickNotFound, NoTicks, PermissionDenied, ConnectionFailed.
        """
        with connect(self.target_dsn, autocommit=True) as node:
            places: set[str | None] = set()
            with suppress(ConsumerNotRegistered):
                state = read_state(node, self.queue, self.consumer)
                if at_tick is None:
                    return False
                places.add(state.provider_location)
            name, location = find_node(node, self.queue, self.provider)
            with connect_to(location) as source:
                admin = Admin(source)
                if at_tick is None:
                    admin.register_consumer(self.queue, self.consumer, self.start)
                else:
                    admin.register_consumer_at(self.queue, self.consumer, at_tick)
                names = self.queue, self.consumer
                ((tick,),) = fetch(source, statements.POSITION, names)
            registered = self.queue, self.consumer, name, tick
            with node.transaction():
                ((code, note),) = fetch(node, statements.REGISTER, registered)
                if code == 201 and at_tick is None:
                    # Another process was faster, and may have gone on.
                    raise psycopg.Rollback
            if code >= 300:
                raise PgqError(note)
            state = read_state(node, self.queue, self.consumer)
            for place in {*places, location} - {state.provider_location}:
                self._leave(place)
        return bool(code == 200)

    def unregister(self) -> bool:
        """Delete the position at the provider and the state at the node; False without one."""
        names = self.queue, self.consumer
        with connect(self.target_dsn) as node:
            try:
                state = lock_state(node, *names)
            except ConsumerNotRegistered:
                return False
            self._leave(state.provider_location)
            fetch(node, statements.UNREGISTER, names)
        # If it runs, it may have registered once more before the commit.
        self._leave(state.provider_location)
        return True

    def move(self, provider: str) -> None:
        """Read another node from the next batch on, wherever the consumer runs.

        Raises TickNotFound if that node does not have the consumer's tick, or not yet.
        """
        names = self.queue, self.consumer
        # One transaction: other moves of it wait.
        with connect(self.target_dsn) as node:
            state = lock_state(node, *names)
            _, location = find_node(node, self.queue, provider)
            if location == state.provider_location:
                return
            with connect_to(location) as source:
                self._check_newest(source, provider, state.completed or 0)
                Admin(source).register_consumer_at(*names, state.completed or 0)
            ((code, note),) = fetch(node, statements.CHANGE_PROVIDER, (*names, provider))
            if code >= 300:
                raise PgqError(note)
        try:
            self._leave(state.provider_location)
        except QueueNotFound:
            pass
        except PgqError as error:
            logger.warning(
                "consumer %s may have left a position at node %s, which keeps events for it: %s;"
                " remove it there: pgqpy consumer unregister %s %s",
                *(self.consumer, state.provider_node, str(error).partition("\n")[0]),
                *names,
                extra=self.log_fields(),
            )

    def process_remote_batch(self, conn: Connection, batch: Batch, target: Connection) -> None:
        """Apply a batch as an RemoteConsumer does.

        The default leaves out the events by which nodes tell each other of themselves, unless
        ``event_types`` names them.
        """

        def process(event: Event) -> None:
            if self.event_types is not None or not (event.type or "").startswith("pgq."):
                self.process_remote_event(target, event)

        self._process_each(target, batch, self._traced(batch, process))

    # --- helpers

    def _check(self) -> None:
        super()._check()
        if self.read_dsn is not None:
            raise InvalidConsumer(
                f"{type(self).__name__} can change its provider, and a standby is that of one node",
                hint="Leave read_dsn out, or read a node that is a branch.",
            )

    def _check_newest(self, source: Connection, provider: str, tick: int) -> None:
        [info] = Admin(source).get_queue_info(self.queue)
        if info.last_tick_id is None or info.last_tick_id < tick:
            raise TickNotFound(
                f"node {provider} has queue {self.queue!r} up to tick {info.last_tick_id};"
                f" {self.consumer!r} has read up to {tick} elsewhere",
                hint="Wait until it has caught up: ticks without events take up to half a minute.",
            )

    def _leave(self, location: str | None) -> None:
        """Delete the position at a provider, so that it need not keep events."""
        with connect_to(location) as source:
            Admin(source).unregister_consumer(self.queue, self.consumer)

    def _kind_of_loop(self) -> type[Loop]:
        return CascadedLoop

    def _begin(self, target: Connection, batch: Batch) -> bool:
        _check_follows(batch, read_state(target, self.queue, self.consumer))
        return False

    def _end(self, target: Connection, batch: Batch) -> None:
        batch.refuse_retries()
        # Another process with this name may have been faster.
        _check_follows(batch, lock_state(target, self.queue, self.consumer))
        completed = self.queue, self.consumer, batch.tick
        fetch(target, statements.COMPLETED, completed)


class CascadedLoop(RemoteLoop):
    """The run of a consumer, with batches of the node that its state names."""

    _consumer: CascadedConsumer
    # A new provider.
    _unannounced = True
    #: The DSN of the provider.
    _location: str

    def _join(self, conn: Connection) -> bool:
        return self._consumer.register()

    def _open(self) -> Batch | None:
        """Open the next batch of the provider, unless the consumer is paused."""
        target = self.target()
        state = read_state(target, *self._names)
        if not state.uptodate:
            fetch(target, statements.UPTODATE, self._names)
            # It may have changed once more before that.
            state = read_state(target, *self._names)
        if state.paused:
            return None
        self._location = str(state.provider_location)
        if self._session.dsn != self._location:
            self._disconnect()
            self._session.dsn = self._location
            self._subscribe(self._location)
            self._started = False
        try:
            return super()._open()
        except ConsumerNotRegistered:
            # It was moved just now.
            self._started = False
            return None

    def _failed(self, batch: Batch, error: Exception) -> None:
        with suppress(psycopg.Error, PgqError):
            note_error(self.target(), *self._names, error)
        super()._failed(batch, error)

    def _start(self, conn: Connection) -> None:
        """Stand at the tick that the node has applied."""
        refuse_planted(conn, NODE)
        target = self.target()
        state = read_state(target, *self._names)
        position = fetch(conn, statements.POSITION, self._names)
        if position != [(state.completed,)]:
            at = *self._names, state.completed
            fetch(conn, statements.REGISTER_AT, at)
            location = None
            with suppress(ConsumerNotRegistered):
                location = (read_state(target, *self._names)).provider_location
            if location != self._location:
                # Moved or unregistered meanwhile, and this provider may have been left before.
                Admin(conn).unregister_consumer(*self._names)
        self._started = True


def _check_follows(batch: Batch, state: NodeState) -> None:
    """Raise an error unless the batch begins where the node has stopped."""
    if state.completed != batch.prev_tick:
        raise PgqError(
            f"node {state.node_name} has applied queue {batch.queue} up to tick {state.completed},"
            f" the batch begins after {batch.prev_tick}",
            hint="It is opened again at that tick.",
        )
