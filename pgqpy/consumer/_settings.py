"""The settings of consumers, of threads and of asyncio alike: subclasses override them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta
from typing import Any, ClassVar, Literal, NamedTuple, TypedDict

from psycopg import IsolationLevel

from pgqpy import dsn as dsns
from pgqpy._runtime.checks import (
    COUNT,
    EXCEPTIONS,
    INTERVAL,
    SECONDS,
    SEVERAL,
    START,
    Kind,
    check_handler,
    check_hooks,
    check_policy,
    check_settings,
    overrides,
)
from pgqpy._runtime.failure import Failure, blame, decide, is_outage
from pgqpy._runtime.heartbeat import unique_name
from pgqpy._runtime.io import AsyncIo
from pgqpy.connection_async import AsyncConnection
from pgqpy.consumer._batch import BatchFields
from pgqpy.consumer.progress import session_name
from pgqpy.errors import InvalidConsumer
from pgqpy.event import Event
from pgqpy.models import BatchStats, Start
from pgqpy.retry import DeadLetter, Retry, RetryPolicy
from pgqpy.telemetry._spans import trace_fields

_ONE = Kind("a whole number, 1: only AsyncConsumer can process several events", lambda n: n == 1)


class RunOptions(TypedDict, total=False):
    """The arguments of `run`, for classes that override it; see `pgqpy.Consumer.run`."""

    until_empty: bool
    handle_signals: bool
    ticker: Literal["auto"] | None


class Guard(NamedTuple):
    """What a loop asks before each batch, if its queue is one of several shards."""

    wants_batch: Callable[[AsyncConnection], Awaitable[bool]]
    """Whether to open a batch now."""
    check: Callable[[], Awaitable[None]]
    """Raises Stopped if the batch that is open is not to be processed."""


# Long: a setting each, which subclasses override.
class ConsumerSettings:
    """The settings of a consumer, and what depends on them alone."""

    queue: str = ""
    """The queue to read."""
    consumer: str = ""
    """The name under which the queue stores its position."""
    start: Start = "now"
    """Where its events begin, when it is registered for the first time. "now": events from before
    that are not delivered. "first": with the oldest that the queue still has (its setting ``keep``
    says for how long). A datetime with a time zone: with those of then, and some from just before,
    since positions are ticks."""

    batch_size: int | None = 10_000
    """Take ticks together as one batch up to about this many events. None: one tick at a time."""
    event_types: Collection[str] | None = None
    """Only events of these types; the server does not send the others. None: all."""
    min_lag: timedelta | None = None
    """The minimum age of events: younger ones wait. None: no minimum."""
    max_lag: timedelta | None = None
    """The age of a batch, when it is opened, above which `on_lag` is called."""

    listen: bool = True
    """Whether to be notified of new ticks by LISTEN, if that is possible."""
    poll_interval: float = 1.0
    """Seconds between polls for a batch; a hundred times that while LISTEN is known to work."""
    read_patience: float | None = 10.0
    """Seconds to wait for the standby of ``read_dsn``, before batches are read on the primary.
    None: they never are; a batch that the standby lacks is retried."""

    retry_policy: RetryPolicy | None = None
    """The action for an event for which `process_event` raises: a `FixedDelay`, an
    `ExponentialBackoff`, or any function of the attempt (1 for the first) and the error that
    returns the seconds until the retry, or None for a dead letter; in a class, a method or a
    staticmethod. None: the whole batch is retried until the event succeeds."""
    outages: tuple[type[Exception], ...] = ()
    """Errors of `process_event` that are not the event's fault: the whole batch waits and is
    retried. Lost connections, deadlocks, serialization failures, unavailable locks and full disks
    of PostgreSQL always count as such."""
    concurrency: int = 1
    """With asyncio only: the number of events of a batch to process concurrently, in no order. On
    ``conn`` each event is alone from its first statement until it returns, so use it late."""

    check_contracts: bool = False
    """Whether an event that does not fit the queue's contract fails with ContractViolation,
    instead of `process_event` being called. It needs the extra ``contracts``."""

    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    """The isolation level of the transactions in which batches are processed."""

    backoff_first: float = 0.5
    """Seconds before the first retry of a failed batch."""
    backoff_cap: float = 60.0
    """The maximum seconds before a retry of a failed batch."""
    reconnect_cap: float = 5.0
    """The maximum seconds between attempts to reconnect; a quarter of a second while no server
    listens, so that an outage ends when the server is back."""

    # Given to the object.
    dsn: str
    listen_dsn: str
    read_dsn: str | None
    prepare_threshold: int | None
    handler: Any
    #: Set by `stop`.
    stopping: bool

    # What its loop calls, by `_io`: asyncio awaits it.
    _io: AsyncIo
    process_batch: Callable[[Any, Any], Any]
    on_batch: Callable[[BatchStats], Any]
    on_error: Callable[[Exception, Any], Any]
    on_lag: Callable[[timedelta, Any], Any]
    wants_batch: Callable[[Any], Any]
    around_batch: Callable[[Any, Callable[[], Any]], Any]
    _shard_guard: Guard | None = None

    #: The methods of which a class overrides one, unless it has a handler.
    _ways: ClassVar[tuple[str, ...]] = ("process_batch", "process_event")
    _kinds: ClassVar[dict[str, Kind]] = {
        "batch_size": COUNT.or_none(),
        "concurrency": COUNT,
        "read_patience": SECONDS.or_none(),
        **dict.fromkeys(
            ("poll_interval", "backoff_first", "backoff_cap", "reconnect_cap"), SECONDS
        ),
        **dict.fromkeys(("min_lag", "max_lag"), INTERVAL.or_none()),
        "event_types": SEVERAL,
        "outages": EXCEPTIONS,
        "start": START,
    }

    def _take(self, dsn: str | None, listen_dsn: str | None, **given: Any) -> None:
        """Take what was given to the object, not None, in place of the class's."""
        self.dsn = dsns.resolve(dsn)
        self.listen_dsn = self.dsn if listen_dsn is None else listen_dsn
        for name, value in given.items():
            if value is not None:
                setattr(self, name, value)
        if not (self.queue and self.consumer):
            raise InvalidConsumer(f"{type(self).__name__} needs a queue and a consumer")

    def session_name(self) -> str:
        """Return the name of its sessions, which ``pg_stat_activity`` shows to all; cut at 63
        bytes."""
        return session_name(self.consumer)

    def log_fields(self, batch: Any = None) -> dict[str, Any]:
        """Return the fields of every log line, and those of a batch."""
        fields: dict[str, Any] = {"queue": self.queue, "consumer": self.consumer}
        if batch is not None:
            fields |= {
                "batch_id": batch.id,
                "tick_id": batch.tick,
                "lag": batch.lag.total_seconds(),
            }
        return fields

    def _check(self) -> None:
        """Raise InvalidConsumer if the class cannot work."""
        name = type(self).__name__
        if self.handler is not None:
            check_handler(self, self.handler, "conn", "event")
            for way in dir(type(self)):
                if way.startswith("process_") and overrides(self, way):
                    raise InvalidConsumer(f"{name} has a handler and {way}: give one")
        elif not any(overrides(self, way) for way in self._ways):
            raise InvalidConsumer(f"{name} must override {' or '.join(self._ways)}")
        check_settings(self, self._kinds)
        if not inspect.iscoroutinefunction(getattr(self, "run")):  # noqa: B009
            check_settings(self, {"concurrency": _ONE})
        check_hooks(self)
        if self.retry_policy is not None:
            check_policy(self.retry_policy)

    def _is_for_policy(self, error: Exception) -> bool:
        """Whether an error of `process_event` concerns only its event."""
        if isinstance(error, Retry | DeadLetter):
            return True
        return self.retry_policy is not None and not is_outage(error, self.outages)

    def _record(self, batch: BatchFields, event: Event, error: Exception) -> Failure:
        """Record the retry or dead letter of an event in its batch, and log it."""
        failure, attempt = self._decide(event, error)
        if failure.delay is None:
            batch.retries.give_up(event.id, failure.reason, failure.cause)
        else:
            batch.retries.add(event.id, failure.delay)
        fields = self.log_fields(batch) | {"event_id": event.id} | trace_fields(event)
        failure.log(f"event {event.id}", attempt, fields, end="becomes a dead letter")
        return failure

    def _decide(self, event: Event, error: Exception) -> tuple[Failure, int]:
        """Return what becomes of an event, and the number of the attempt. Raises ``error`` if that
        is not its event's."""
        if not self._is_for_policy(error):
            blame(event.id, error)
            raise error
        attempt = event.retry_count + 1
        return decide(error, attempt, self.retry_policy), attempt


class WorkerSettings(ConsumerSettings):
    """The settings of one of several workers of a consumer."""

    worker_name: str = ""
    """The name of this worker among the others, and in lists; by default machine, process and a
    random part."""

    def _name(self, given: str | None) -> None:
        self.worker_name = given or self.worker_name or unique_name()

    def log_fields(self, batch: Any = None) -> dict[str, Any]:
        """Return the fields of every log line, and those of a batch."""
        return super().log_fields(batch) | {"worker": self.worker_name}
