# WARNING: generated from pgqpy/cascade/worker_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Workers of cascaded queues: each keeps one node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from time import monotonic
from typing import Any

import psycopg

from pgqpy import dsn as dsns
from pgqpy._runtime.acompat import Waker
from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.checks import COUNT, SECONDS, check_settings
from pgqpy._runtime.failure import soon
from pgqpy._runtime.fetch import fetch
from pgqpy._runtime.listener import Subscription
from pgqpy._runtime.stoppable import Stoppable
from pgqpy._wire.statements import copy_in
from pgqpy.cascade import _statements as statements
from pgqpy.cascade._databases import Databases
from pgqpy.cascade._location import usable
from pgqpy.cascade._lookout import PAUSE, Lookout
from pgqpy.cascade._node import (
    check_worker,
    follow_news,
    kept_twice,
    note_error,
    read_state,
)
from pgqpy.cascade._provider import Provider
from pgqpy.cascade._statements import News, NodeState, Tick
from pgqpy.connection import Connection
from pgqpy.consumer._readers import CopyReader
from pgqpy.errors import (
    ConnectionFailed,
    InvalidConsumer,
    InvalidParameter,
    PgqError,
    TickNotFound,
    translate_errors,
)
from pgqpy.log import logger


# Long: a setting each.
class CascadedWorker(Stoppable):
    """Keeps a node of a cascaded queue: copies the queue from the node's provider.

    ``dsn`` is the database of the node; all else is in its schema ``pgq_node``. Copies are exact:
    ticks and events keep their ids, times and order. Events, their ticks and the node's position
    are one transaction of the node; then the provider learns of it. So whatever is killed, nothing
    is missing or comes twice. On a root it publishes the watermark, and fences the root if another
    node has taken over meanwhile; on a leaf it copies nothing, and follows the events that control
    the nodes.

    Before each transaction it reads the node's state: it waits while it is paused, and goes on at
    another provider at the same tick.
    """

    queue: str = ""
    """The queue to copy."""
    batch_size: int = 200_000
    """The approximate maximum of events in a transaction, when the node is behind."""
    poll_interval: float = 1.0
    """Seconds between looks at the node's state; new ticks are notified by LISTEN."""
    watermark_interval: float = 60.0
    """Seconds between reports of which ticks are not needed any more, so that rotation can remove
    their events on all nodes."""
    backoff_first: float = 0.5
    """Seconds before the first retry after an error."""
    backoff_cap: float = 60.0
    """The maximum seconds before a retry after an error."""
    reconnect_cap: float = 5.0
    """The maximum seconds between attempts to reconnect."""

    def __init__(
        self,
        dsn: str | None = None,
        *,
        queue: str | None = None,
        databases: Databases | None = None,
    ) -> None:
        """``dsn`` is read by `pgqpy.dsn.resolve`; workers that are given the same ``databases``
        share connections."""
        self.dsn = dsns.resolve(dsn)
        self.queue = queue or self.queue
        if not self.queue:
            raise InvalidConsumer(f"{type(self).__name__} needs a queue")
        self._databases = databases or Databases()
        self._shares = databases is not None
        self._lookout = Lookout(self._databases, self.dsn, self.queue)
        self._provider: Provider | None = None
        self._subscription: Subscription | None = None
        #: The names of the worker and of its node, once they are known.
        self._consumer = ""
        self._node = ""
        self._report_at = 0.0
        self._failures = Backoff(self.backoff_first, self.backoff_cap)
        self._losses = Backoff(0.1, self.reconnect_cap)

    def run(self, *, until_empty: bool = False, handle_signals: bool = True) -> None:
        """Copy until `stop`, or with ``until_empty`` until there is nothing left to copy.

        Survives all errors, and notes them in the node's ``local_state.cur_error``; with
        ``until_empty`` it raises them. In the main thread SIGTERM and SIGINT stop it after the
        transaction, unless ``handle_signals`` is false.
        """
        check_settings(self, _SETTINGS)
        with self._running(handle_signals=handle_signals) as waker:
            logger.info("worker of queue %s started", self.queue, extra=self.log_fields())
            try:
                while not self.stopping:
                    try:
                        more = self._once()
                    except Exception as error:
                        if until_empty:
                            raise
                        self._failed(error, waker)
                        continue
                    if not more:
                        if until_empty:
                            break
                        self._wait(waker)
            finally:
                self._close()
            logger.info("worker of queue %s stopped", self.queue, extra=self.log_fields())

    def run_once(self) -> bool:
        """Copy what there is now, at most about ``batch_size`` events, in one transaction.

        False if there was nothing to copy. Raises any error.
        """
        try:
            return self._once()
        finally:
            self._close()

    def log_fields(self) -> dict[str, Any]:
        """Return the fields of every log line."""
        return {"queue": self.queue, "node": self._node or None}

    # --- for those that run many workers

    def _turn(self) -> AbstractContextManager[Any]:
        """Return a block around each transaction."""
        return nullcontext()

    def _patience(self, *, woken: bool) -> float:
        """Return the seconds to wait; ``woken`` if notifications of ticks are known to arrive, or
        the node has no provider."""
        return self.poll_interval

    # --- a transaction

    def _once(self) -> bool:
        try:
            with self._turn():
                copied = self._step()
            if self._provider is None:
                self._lookout.look()
        except Exception as error:
            self._note(error)
            if self._provider is not None:
                self._provider.checked = False
            raise
        self._failures.reset()
        self._losses.reset()
        return copied

    def _step(self) -> bool:
        with self._databases.at(self.dsn).connection() as node:
            state = read_state(node, self.queue)
            self._consumer, self._node = state.consumer, state.node_name
            if not state.uptodate:
                fetch(node, statements.UPTODATE, (self.queue, self._consumer))
                # It may have changed once more before that.
                state = read_state(node, self.queue)
            copied = False
            if state.node_type == "root":
                self._leave_provider()
            if not state.paused and state.node_type == "root":
                self._publish(node)
            elif not state.paused:
                check_worker(state, self.queue)
                provider = self._go_to_provider(state)
                with provider.database.connection() as source:
                    copied = self._follow(node, provider, source, state)
                    self._report(node, provider, source, state)
            if state.cur_error is not None and not copied:
                fetch(node, statements.NOTE_ERROR, (self.queue, self._consumer, None))
            return copied

    def _follow(
        self,
        node: Connection,
        provider: Provider,
        source: Connection,
        state: NodeState,
    ) -> bool:
        """Copy what the provider has."""
        assert state.completed is not None
        copies = state.node_type == "branch"
        position = state.completed
        if copies and state.newest is not None:
            if state.newest < position:
                self._mend(node, provider, source, state)
            position = max(position, state.newest)
        kind = self._databases.at(self.dsn).kind(node)
        if not provider.checked:
            epoch = None
            if kind["is_ours"]:
                ((epoch,),) = fetch(node, statements.EPOCH, (self.queue,))
            provider.check(source, state, position, epoch)
        merged = state.combined_queue if state.combined_type == "root" else None
        if state.combined_type == "branch":
            # The worker of the merged queue moves the position, as its root's part was merged.
            provider.stand(source, state.consumer, position)
            return False
        if self._subscription is not None:
            self._subscription.ask()
        try:
            ticks = provider.next(source, state, position, self.batch_size)
        except TickNotFound as error:
            ticks = self._go_around(node, provider, source, state, position)
            if not ticks:
                raise error
        if not ticks:
            provider.settle(source, state.consumer)
            return False
        read = partial(self._copy, node) if copies else self._read_controls
        news = News(self.queue, dict.fromkeys(state.parts, 0))
        with translate_errors():
            # A connection whose transaction fails is closed, which rolls it back.
            if not copies:
                node.execute(b"begin")
            if merged is not None:
                self._merge(node, source, ticks, merged)
            read(source, ticks, news)
            above = provider.database.kind(source)
            epochs = {"learns": kind["is_ours"], "knows": above["is_ours"]}
            follow_news(node, source, news, **epochs)
            if not copies:
                mine = self.queue, state.consumer, state.completed
                if not fetch(node, statements.LOCK_STATE, mine):
                    raise kept_twice(self.queue, self._node)
            node.execute(statements.complete(self.queue, state.consumer, ticks[-1].id))
        known = self._subscription
        more = known is not None and not known.up_to_date(ticks[-1].id)
        provider.finish(source, state.consumer, ticks[-1], more=more)
        logger.debug(
            "queue %s copied up to tick %s", self.queue, ticks[-1].id, extra=self.log_fields()
        )
        return more or known is None

    def _copy(
        self, node: Connection, source: Connection, ticks: Sequence[Tick], news: News
    ) -> None:
        """Copy ticks and their events, without decoding those that are no news."""
        try:
            with translate_errors():
                cursor = node.execute(statements.begin_copy(self.queue, ticks))
                cursor.nextset()
                ((table, txids),) = cursor.fetchall()
        except InvalidParameter:  # it has the ticks
            raise kept_twice(self.queue, self._node) from None

        def look(messages: list[bytes], block: bytes) -> None:
            if statements.CONTROL in block:
                news.read(messages)

        out = statements.copy_ticks_out(ticks, txids)
        self._pass_on(source, out, node, copy_in(table, statements.COPIED), look)

    def _merge(
        self, node: Connection, source: Connection, ticks: Sequence[Tick], queue: str
    ) -> None:
        """Insert the events into another queue of the node, with a mark of how far they are."""
        ((table,),) = fetch(node, statements.MERGED_INTO, (queue,))
        out = statements.copy_merged_out(ticks)
        self._pass_on(source, out, node, copy_in(table, statements.MERGED))
        fetch(node, statements.MERGED_UP_TO, (queue, ticks[-1].id, self.queue))

    def _pass_on(
        self,
        source: Connection,
        out: bytes,
        node: Connection,
        into: bytes,
        look: Callable[[list[bytes], bytes], None] | None = None,
    ) -> None:
        """Pass rows from COPY to COPY, without decoding them."""
        reader = CopyReader(source)
        try:
            reader.begin(out)
            with node.cursor() as cursor, cursor.copy(into) as copy:
                while messages := reader.messages():
                    block = b"".join(messages)
                    if look is not None:
                        look(messages, block)
                    copy.write(block)
        finally:
            reader.close()

    def _read_controls(self, source: Connection, ticks: Sequence[Tick], news: News) -> None:
        """Read the events that control the nodes."""
        reader = CopyReader(source)
        try:
            reader.begin(statements.copy_control_out(ticks))
            while messages := reader.messages():
                news.read(messages)
        finally:
            reader.close()

    def _go_around(
        self,
        node: Connection,
        provider: Provider,
        source: Connection,
        state: NodeState,
        position: int,
    ) -> list[Tick]:
        """Return the ticks after one that the provider has forgotten, without what is here.

        That happens if a worker is killed before the provider knows what its node has, and nothing
        is copied until the provider's log of ticks rotates.
        """
        before = provider.before(source, position)
        if before is None:
            return []
        events: list[int] = []
        if state.node_type == "branch":
            copied = self.queue, before, position
            ((query,),) = fetch(node, statements.RANGE, copied)
            events = [row[0] for row in fetch(node, query.encode())]
        first, *others = provider.next(source, state, before, self.batch_size)
        return [statements.without(first, events), *others]

    def _mend(
        self,
        node: Connection,
        provider: Provider,
        source: Connection,
        state: NodeState,
    ) -> None:
        """Store the tick of a batch that PgQ's worker copied before it was killed."""
        assert state.completed is not None
        tick = provider.tick(source, state.completed)
        if tick is None:
            raise PgqError(
                f"queue {self.queue!r} has tick {state.newest} as its newest, its worker"
                f" {state.completed}",
                hint="The provider does not have that tick any more: drop the node and create it.",
            )
        fetch(node, statements.TICKER, (self.queue, state.completed, *tick))

    # --- what other nodes are told

    def _publish(self, node: Connection) -> None:
        """Tell all nodes, as their root, which ticks none of them needs any more."""
        if monotonic() < self._report_at:
            return
        self._report_at = monotonic() + self.watermark_interval
        ((fresh,),) = fetch(node, statements.UNPUBLISHED, (self.queue, self.queue))
        if fresh:
            fetch(node, statements.PUBLISH, (self.queue,))

    def _report(
        self,
        node: Connection,
        provider: Provider,
        source: Connection,
        state: NodeState,
    ) -> None:
        """Tell the provider which ticks are not needed any more here and below."""
        if monotonic() < self._report_at:
            return
        self._report_at = monotonic() + self.watermark_interval
        ((watermark,),) = fetch(node, statements.LOCAL_WATERMARK, (self.queue,))
        if watermark is not None:
            provider.report(source, state.node_name, watermark)

    # --- the provider

    def _go_to_provider(self, state: NodeState) -> Provider:
        assert state.provider_location is not None
        database = self._databases.at(state.provider_location)
        if self._provider is None or self._provider.database is not database:
            self._leave_provider()
            usable(state.provider_location)
            self._provider = Provider(database, self.queue)
            self._subscription = Subscription(database.dsn, self.queue)
            # The new one does not know what this node needs.
            self._report_at = 0.0
            logger.info(
                "queue %s is copied from node %s",
                self.queue,
                state.provider_node,
                extra=self.log_fields(),
            )
        return self._provider

    def _close(self) -> None:
        self._leave_provider()
        if not self._shares:
            self._databases.close()

    def _leave_provider(self) -> None:
        self._provider = None
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close()

    # --- waiting and failing

    def _wait(self, waker: Waker) -> None:
        subscription = self._subscription
        if subscription is None:
            waker.wait(min(self._patience(woken=True), PAUSE))
            return
        # Ticks before the first LISTEN were not notified: look once more.
        if not subscription.open():
            subscription.wait(waker, self._patience(woken=subscription.works))

    def _failed(self, error: Exception, waker: Waker) -> None:
        """Log an error, and pause."""
        lost = isinstance(error, ConnectionFailed | psycopg.OperationalError)
        backoff = self._losses if lost else self._failures
        pause = backoff.pause(error)
        if lost:
            self._leave_provider()
        logger.log(
            backoff.level,
            "queue %s cannot be copied: %s; again %s",
            self.queue,
            str(error).partition("\n")[0],
            soon(pause),
            exc_info=None if isinstance(error, PgqError | psycopg.Error) else error,
            extra=self.log_fields() | {"pause": pause},
        )
        if not self.stopping:
            waker.wait(pause)

    def _note(self, error: Exception) -> None:
        """Note an error in the node's state, if that is possible."""
        if not self._consumer:
            return
        database = self._databases.at(self.dsn)
        with suppress(psycopg.Error, PgqError), database.connection() as node:
            note_error(node, self.queue, self._consumer, error)


_SETTINGS = {
    "batch_size": COUNT,
    **dict.fromkeys(("poll_interval", "watermark_interval"), SECONDS),
    **dict.fromkeys(("backoff_first", "backoff_cap", "reconnect_cap"), SECONDS),
}
