"""Errors, as classes that are chosen by SQLSTATE.

The functions of the ``pgq`` schema raise SQLSTATEs of their own (class ``PQ``). Each has a class
here, derived from `PgqError`, which carries PostgreSQL's hint and detail; the original
`psycopg.Error` is the ``__cause__``. Message texts never decide anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import psycopg

_BY_SQLSTATE: dict[str, type[PgqError]] = {}


class PgqError(Exception):
    """Base of all errors of pgqpy.

    ``message`` is one line, ``hint`` the remedy, ``detail`` further information, ``sqlstate``
    PostgreSQL's code; the last three may be None.
    """

    #: The hint for errors without one from the server.
    default_hint: ClassVar[str | None] = None

    def __init_subclass__(cls, *, sqlstates: tuple[str, ...] = (), **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        for sqlstate in sqlstates:
            _BY_SQLSTATE[sqlstate] = cls

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        detail: str | None = None,
        sqlstate: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.default_hint
        self.detail = detail
        self.sqlstate = sqlstate

    def __str__(self) -> str:
        lines = [self.message]
        if self.detail:
            lines.append(f"DETAIL: {self.detail}")
        if self.hint:
            lines.append(f"HINT: {self.hint}")
        return "\n".join(lines)

    @property
    def diag(self) -> psycopg.errors.Diagnostic | None:
        """PostgreSQL's full report, if the error comes from PostgreSQL."""
        return self.__cause__.diag if isinstance(self.__cause__, psycopg.Error) else None


class QueueNotFound(PgqError, sqlstates=("PQ001",)):
    """There is no queue of that name."""

    default_hint = "Create it with create_queue."


class ConsumerNotRegistered(PgqError, sqlstates=("PQ002",)):
    """The consumer is not registered on the queue."""


class InvalidName(PgqError, sqlstates=("PQ003",)):
    """A queue's or consumer's name is missing, empty or too long."""


class BatchNotFound(PgqError, sqlstates=("PQ004",)):
    """The batch is not open: it was finished, or never existed."""


class EventNotFound(PgqError, sqlstates=("PQ005",)):
    """The event is not in the batch."""


class InsertDisabled(PgqError, sqlstates=("PQ006",)):
    """The queue does not accept events."""


class QueueInUse(PgqError, sqlstates=("PQ007",)):
    """The queue cannot be dropped because consumers are registered on it."""


class TickNotFound(PgqError, sqlstates=("PQ008",)):
    """The tick does not exist, or rotation has removed its events."""


class ForeignRestore(PgqError, sqlstates=("PQ009",)):
    """The database was restored into a cluster whose transaction ids are behind its own."""


class PerTxLimitExceeded(PgqError, sqlstates=("PQ010",)):
    """One transaction inserted more events than the queue allows."""


class InvalidParameter(PgqError, sqlstates=("PQ011",)):
    """A parameter has a value that makes no sense."""


class WrongIsolationLevel(PgqError, sqlstates=("PQ012",)):
    """The call is only correct under READ COMMITTED."""


class RotationOrder(PgqError, sqlstates=("PQ013",)):
    """The two steps of a rotation need a transaction each."""


class TickerPaused(PgqError, sqlstates=("PQ014",)):
    """The queue's ticker is paused, or its ticks come from elsewhere."""


class NoTicks(PgqError, sqlstates=("PQ015",)):
    """The queue has no tick yet."""


class ConsumerInUse(PgqError, sqlstates=("PQ016",)):
    """Another process uses the consumer's name, or has moved the consumer."""


class WriterInUse(PgqError, sqlstates=("PQ017",)):
    """Another stream writes under the writer's name, or its checkpoint was set back."""


class NotReplayed(PgqError, sqlstates=("PQ018",)):
    """The standby has not replayed the events that are to be read there."""


class InvalidTriggerArgument(PgqError, sqlstates=("PQ020",)):
    """A trigger was created with an argument that it does not know."""


class NoPrimaryKey(PgqError, sqlstates=("PQ021",)):
    """Updates and deletes of the table cannot be queued without a key."""


class PrimaryKeyChanged(PgqError, sqlstates=("PQ022",)):
    """The statement changes a key, which the event format cannot express."""


class ChangeDenied(PgqError, sqlstates=("PQ023",)):
    """A ``deny`` trigger forbids changes of the table."""


class CaptureError(PgqError, sqlstates=("PQ024",)):
    """The table is captured already, or is not captured."""


class BatchLost(PgqError, sqlstates=("PQ031",)):
    """The batch is not this worker's any more: it was taken for dead, and another one has it."""


class MemberBusy(PgqError, sqlstates=("PQ032",)):
    """The worker cannot be unregistered, since it has a batch open."""


class RowsNotCountable(PgqError, sqlstates=("PQ060",)):
    """A table's rows cannot be counted: it is missing, or not captured as that needs it."""


class RowsNotCounted(PgqError, sqlstates=("PQ061",)):
    """The rows of the table are not counted, or the caller may not select from it."""


class LeaseLost(PgqError, sqlstates=("PQ035",)):
    """Another worker of the consumer group has the partition now, or took this one for dead."""


class GroupNotFound(PgqError, sqlstates=("PQ036",)):
    """There is no consumer group of that name on the queue."""


class ParkingFull(PgqError, sqlstates=("PQ037",)):
    """A partition of a consumer group takes no batches: too many of its events are parked."""


class GroupConflict(PgqError, sqlstates=("PQ038",)):
    """The group has another key, or its partitions and some consumer are taken for one another."""


class KeysParked(PgqError, sqlstates=("PQ039",)):
    """The consumer group has parked events, which would be lost."""


class InvalidDeliveryTime(PgqError, sqlstates=("PQ050",)):
    """An event cannot be delivered at that time."""


class NoKeyWindow(PgqError, sqlstates=("PQ051",)):
    """The queue takes no events with keys: its key_window is not set."""


class InvalidKey(PgqError, sqlstates=("PQ052",)):
    """An event's key is empty or too long."""


class OwnDelayedEvents(PgqError, sqlstates=("PQ053",)):
    """Delayed events cannot be moved in the transaction that has inserted them."""


class ContractViolation(PgqError, ValueError, sqlstates=("PQ054",)):
    """The payload of an event does not fit the contract of its queue.

    ``path`` says where in the payload: a JSON pointer, empty for the whole.
    """

    @property
    def path(self) -> str:
        """Where the payload does not fit, such as ``/order/lines/3/price``."""
        return (self.detail or "").removeprefix("#")


class ContractNotFound(PgqError, sqlstates=("PQ055",)):
    """There is no such contract, or no such version of it."""


class InvalidContract(PgqError, ValueError, sqlstates=("PQ056",)):
    """What was given is no JSON Schema, or one that PostgreSQL cannot check."""


class IncompatibleContract(PgqError, sqlstates=("PQ057",)):
    """A new version of a contract does not accept what the last one accepted."""


class InvalidPipeline(PgqError):
    """Stations of a pipeline do not fit together, or one returned what it must not."""

    default_hint = "See docs/tasks-pipelines.md."


class TaskQueueNotFound(PgqError, sqlstates=("PQ070",)):
    """There is no task queue of that name."""


class TaskConflict(PgqError, sqlstates=("PQ071",)):
    """Some tasks are not in the expected state, so nothing was changed: another process has
    claimed them, or had them and finished them; or a task to insert exists already.

    ``conflicts`` lists them, with reasons.
    """

    @property
    def conflicts(self) -> list[dict[str, Any]]:
        """The tasks, each with ``id``, ``version``, and ``reason``: missing, claimed or
        collision."""
        return json.loads(self.detail) if self.detail else []


class InvalidTask(PgqError, sqlstates=("PQ072",)):
    """A time, lease, limit or name is not valid for a task."""


class TaskFailed(PgqError):
    """A task whose result was asked for failed for good, or was deleted; the message says why."""


class TaskQueueNotEmpty(PgqError, sqlstates=("PQ073",)):
    """The task queue cannot be dropped because it has tasks."""


class InvalidTaskTable(PgqError, sqlstates=("PQ078",)):
    """The rows of the table cannot be tasks: it lacks a primary key, or the columns."""


class SchemaMissing(PgqError, sqlstates=("PQ030", "3F000", "42883", "42P01")):
    """The database has no ``pgq`` schema, or one that is older than this client."""

    default_hint = (
        "Install or upgrade it: pgqpy migrate --dsn DSN; for the part pgq_node with --node"
    )


class LostPosition(PgqError):
    """A batch does not follow the position of the target database; nothing was applied."""


class TargetBehind(LostPosition, sqlstates=("PQ040",)):
    """The target lacks events before the batch: it was restored, or the consumer moved ahead."""


class TargetAhead(LostPosition, sqlstates=("PQ041",)):
    """The target may hold the batch: the source was restored, or the consumer moved back."""


class UndeliveredRetries(LostPosition, sqlstates=("PQ043",)):
    """The target has recorded retries and dead letters that never reached the queue."""


class ForeignTick(PgqError, sqlstates=("PQ042",)):
    """Ticks that another database remembers are not of this queue's history."""


class CascadeError(PgqError):
    """The nodes of a cascaded queue do not allow it: the message says which, and why."""


class PermissionDenied(PgqError, sqlstates=("42501",)):
    """The role may not do this."""

    default_hint = (
        "Grant the role that it takes: pgq_writer to produce, pgq_reader to consume, "
        "pgq_admin to administer; if the queue is restricted, a right on it (pgq.grant_queue)."
    )


class RetryTransaction(PgqError, sqlstates=("40001", "40P01")):
    """The transaction met a concurrent one; the same transaction, run again, will succeed."""

    default_hint = "Roll back and run the transaction again."


class ReadOnlyDatabase(PgqError, sqlstates=("25006",)):
    """The server is a standby, or the transaction is read-only."""

    default_hint = (
        "Connect to the primary (target_session_attrs=read-write in the DSN), or begin a "
        "transaction that is not READ ONLY."
    )


class InvalidPayload(PgqError, ValueError, sqlstates=("22021", "22P05")):
    """A text cannot be stored: it holds a NUL character, or no valid Unicode."""

    default_hint = "PostgreSQL's text holds any character but NUL: send binary data as base64."


class PayloadTooLarge(PgqError, ValueError, sqlstates=("54000",)):
    """An event or a payload is larger than PostgreSQL can store and give back."""

    default_hint = "Store the data elsewhere and send a reference to it."


class InvalidDsn(PgqError, ValueError):
    """The connection string cannot be read. The message quotes nothing of it."""

    default_hint = (
        "Write postgresql://user@host:5432/database or host=... dbname=...; in a URI, special "
        "characters of user and password are written as %XX (@ is %40)."
    )


class InvalidConsumer(PgqError, TypeError, ValueError):
    """The class of a consumer cannot work: a name, a method or a setting of it is wrong."""

    default_hint = "Mend that; nothing was done."


class InvalidShardMap(PgqError, ValueError):
    """A shard map makes no sense: keys without a shard, or with two; the message names it."""

    default_hint = (
        'A map has queue = "..." at the top and, for each shard, a table [shards.NAME] with dsn, '
        'and with hashes = [FIRST, END] or keys = ["..."].'
    )


class WrongShard(PgqError, ValueError):
    """An event's key belongs to a shard whose database is another one."""


class StaleShardMap(PgqError):
    """The shard map is not the one that is in force in the shard's database; nothing was written.

    A map in a file was read again first. While keys are moved, the same transaction, run a little
    later, succeeds.
    """

    default_hint = (
        "Read the map again. If it is the newest, `pgqpy shards apply` has not finished: run it "
        "again."
    )


class ConnectionFailed(
    PgqError,
    sqlstates=(
        *("57P01", "57P02", "57P03", "57P05", "53300", "08006", "08P01"),
        *("25P03", "25P04"),  # idle in its transaction, or that took too long
    ),
):
    """The server cannot be reached, refused the connection, or ended it."""

    default_hint = "Check that PostgreSQL runs there and that user and password are right."


#: Errors that waiting does not cure.
PERMANENT: tuple[type[PgqError], ...] = (
    QueueNotFound,
    ConsumerNotRegistered,
    InvalidName,
    InvalidParameter,
    InvalidDsn,
    InvalidConsumer,
    InvalidShardMap,
    TickNotFound,
    ForeignRestore,
    LostPosition,
    GroupNotFound,
    GroupConflict,
    TaskQueueNotFound,
    InvalidTask,
    InvalidTaskTable,
    SchemaMissing,
    PermissionDenied,
)


#: SQLSTATEs, and classes of them, that concern the server, the connection, or other
#: transactions.
_TRANSIENT = ("08", "40", "53", "57P", "58", "25006", "25P03", "25P04", "55P03")


def is_transient(error: BaseException) -> bool:
    """Whether an error is not the fault of the request.

    A lost connection, a serialization failure or deadlock, an unavailable lock, a full disk, a
    standby: the same request may succeed later. It accepts psycopg's errors and ours.
    """
    if not isinstance(error, psycopg.Error | PgqError):
        return False
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | ConnectionFailed)
    return error.sqlstate.startswith(_TRANSIENT)


def from_psycopg(error: psycopg.Error) -> PgqError:
    """Return our error for one of psycopg's."""
    return from_driver(error)


def from_driver(error: Any) -> PgqError:
    """Return our error for one of any driver: psycopg, psycopg2, asyncpg."""
    # The server's report, of psycopg and psycopg2; asyncpg's errors have it themselves.
    diag = getattr(error, "diag", None)
    sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    message = getattr(diag, "message_primary", None) or getattr(error, "message", None)
    message = message or str(error).strip() or type(error).__name__
    # Without a SQLSTATE the error is libpq's: the connection failed.
    if isinstance(error, psycopg.OperationalError) and sqlstate is None:
        return ConnectionFailed(message)
    hint = getattr(diag, "message_hint", None) or getattr(error, "hint", None)
    detail = getattr(diag, "message_detail", None) or getattr(error, "detail", None)
    ours = of_sqlstate(sqlstate, message, hint=hint, detail=detail)
    if row := _COPIED.search(getattr(diag, "context", None) or ""):
        ours.add_note(f"row {row[1]} of those copied")
    return ours


_COPIED = re.compile(r"^COPY \S+, \w+ (\d+)", re.MULTILINE)


def of_sqlstate(
    sqlstate: str | None, message: str, *, hint: str | None = None, detail: str | None = None
) -> PgqError:
    """Return our error for PostgreSQL's report, for any driver."""
    cls = _BY_SQLSTATE.get(sqlstate or "", PgqError)
    return cls(message, hint=hint, detail=detail, sqlstate=sqlstate)


class translate_errors:  # noqa: N801
    """Raise psycopg's errors inside the block as `PgqError`, with the original as the cause."""

    # Not a generator: it is in every call, and would take twice as long.
    __slots__ = ()

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if isinstance(error, psycopg.Error):
            raise from_psycopg(error) from error


_ORIGIN = "pgqpy_dsn"


@contextmanager
def comes_from(dsn: str) -> Iterator[None]:
    """Mark errors inside the block as this database's; the innermost block wins."""
    try:
        yield
    except (psycopg.Error, PgqError) as error:
        if origin(error) is None:
            setattr(error, _ORIGIN, dsn)
        raise


def origin(error: BaseException) -> str | None:
    """Return the connection string of the database that an error comes from, if it is marked."""
    found: str | None = getattr(error, _ORIGIN, None)
    return found
