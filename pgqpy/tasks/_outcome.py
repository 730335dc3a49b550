"""The outcomes of tasks that were worked on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from pgqpy._runtime.failure import Failure, decide, decide_anyway
from pgqpy.errors import InvalidTask
from pgqpy.retry import DeadLetter, Retry, RetryPolicy, in_short
from pgqpy.tasks._statements import Duration, headers_json, jsonb, smallint, when
from pgqpy.tasks._values import Task

#: Keeps the payload.
KEEP: Any = object()


class TaskLost(Exception):
    """The last attempt at the task had no end, for instance because its worker was killed."""


class Move(Exception):
    """Return it to move the task to another queue, with another payload if one is given.

    Both happen in the transaction in which the task would be finished: it is always in exactly one
    of the queues. It begins there with no attempts. Raise it to also roll back the writes for the
    task.
    """

    #: For telemetry.
    is_failure = False

    def __init__(
        self,
        queue: str,
        payload: Any = KEEP,
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        priority: int | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> None:
        """Options of `Tasks.push`; None keeps a value. Raises InvalidPayload, InvalidTask."""
        if not isinstance(queue, str):
            raise InvalidTask(
                f"a task is moved to {queue!r:.80}", hint="Give the name of a task queue."
            )
        super().__init__(f"moved to {queue}")
        at, delay = when(at, delay)
        if priority is not None:
            smallint(priority)
        # Checked here, so that the error is the caller's, not the worker's that sends it.
        headers_json(headers)
        given = {"at": at, "delay": delay, "priority": priority, "headers": headers}
        # Always set, since it may be the task's own queue.
        self.change: dict[str, Any] = {"queue": queue, "attempts": 0, "error": None} | {
            key: value for key, value in given.items() if value is not None
        }
        if payload is not KEEP:
            jsonb(payload)
            self.change["payload"] = payload


@dataclass(frozen=True, slots=True)
class Finished:
    """The task is done; ``result`` as JSON, or a ``note`` that tells why it was not kept."""

    result: str | None
    note: str | None = None


def without_result(error: Exception) -> Finished:
    """Finish without the result: its error is no reason to repeat the work."""
    return Finished(None, f"the result is not kept: {in_short(error)}")


def outcomes_in(values: object) -> list[Any] | None:
    """Return the values for a batch as a list of outcomes; None if they are not a list."""
    if isinstance(values, str | bytes | bytearray):
        return None
    return [*values] if isinstance(values, Sequence | Iterator) else None


def no_outcomes(values: object) -> TypeError:
    """Return the error for the invalid values of a batch."""
    return TypeError(
        f"process_batch returned {type(values).__name__}; it must be None, or a list of outcomes"
    )


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed; ``raised`` is the error. The task is retried after ``delay``, if any."""

    error: str
    delay: timedelta | None
    raised: Exception


@dataclass(frozen=True, slots=True)
class Released:
    """The task is returned, the attempt does not count; the ``note`` says why."""

    delay: timedelta | None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """The task moves: ``change`` is JSON for `pgq_task.modify`."""

    change: Mapping[str, Any]


Outcome: TypeAlias = Finished | Failed | Released | Moved


def outcome_of(value: Any, encode: Callable[[Any], str | None]) -> Outcome:
    """Return the outcome for the value of a handler. Raises DeadLetter, ValueError."""
    if isinstance(value, Retry | DeadLetter):
        return _decided(decide(value, 0, None), value)
    if isinstance(value, Move):
        return Moved(value.change)
    if inspect.iscoroutine(value):
        value.close()
        raise DeadLetter("a coroutine was returned, which was not awaited")
    try:
        return Finished(encode(value))
    except Exception as error:
        return without_result(error)


def outcome_of_error(error: Exception, task: Task, policy: RetryPolicy) -> Outcome:
    """Return the outcome of a task for which an error was raised that is no outage."""
    if isinstance(error, Move):
        return Moved(error.change)
    return _decided(decide_anyway(error, task.attempts, policy, f"task {task.id}"), error)


def _decided(failure: Failure, raised: Exception) -> Outcome:
    if isinstance(failure.error, Retry):
        return Released(failure.delay, failure.error.reason)
    return Failed(failure.described(), failure.delay, raised)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStats:
    """The latest outcomes of tasks: how many were ``finished``, ``failed``, ``moved``, returned
    (``released``), and ``lost`` to another worker after their leases ended."""

    finished: int = 0
    failed: int = 0
    moved: int = 0
    released: int = 0
    lost: int = 0
