"""What becomes of a task that was worked on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from pgqpy.errors import InvalidTask
from pgqpy.retry_policy import in_short
from pgqpy.tasks.statements import Duration, headers_json, jsonb, smallint, when

#: The payload stays.
KEEP: Any = object()


class TaskLost(Exception):
    """The last attempt at the task ended without a word, as when its worker was killed."""


class Move(Exception):
    """Return it to have the task go to another queue, with another payload if one is given.

    Both happen in the transaction in which the task would be finished: it is never in both queues,
    nor in neither. It begins there with no attempts. Raise it to have what was written for the task
    rolled back, too.
    """

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
        """The rest as for `pgqpy.tasks.Tasks.push`; what is None stays as it is. Raises
        InvalidPayload, InvalidTask."""
        if not isinstance(queue, str):
            raise InvalidTask(
                f"a task is moved to {queue!r:.80}", hint="Give the name of a task queue."
            )
        super().__init__(f"moved to {queue}")
        at, delay = when(at, delay)
        if priority is not None:
            smallint(priority)
        # What cannot be sent is an error of whoever makes it, not of the worker that sends it.
        headers_json(headers)
        given = {"at": at, "delay": delay, "priority": priority, "headers": headers}
        # Said, since it may be the queue where the task is.
        self.change: dict[str, Any] = {"queue": queue, "attempts": 0, "error": None} | {
            key: value for key, value in given.items() if value is not None
        }
        if payload is not KEEP:
            jsonb(payload)
            self.change["payload"] = payload


@dataclass(frozen=True, slots=True)
class Finished:
    """It is done; ``result`` as JSON. ``note`` tells why there is none, if it could not be kept."""

    result: str | None
    note: str | None = None


def without_result(error: Exception) -> Finished:
    """What was done is not done again because of what it returned."""
    return Finished(None, f"the result is not kept: {in_short(error)}")


def outcomes_in(values: object) -> list[Any] | None:
    """What was returned for a batch, as a list of outcomes; None if it is none."""
    if isinstance(values, str | bytes | bytearray):
        return None
    return [*values] if isinstance(values, Sequence | Iterator) else None


def no_outcomes(values: object) -> TypeError:
    """What is wrong with what was returned for a batch."""
    return TypeError(
        f"process_batch returned {type(values).__name__}; it must be None, or a list of outcomes"
    )


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed, as ``error`` tells; again after ``delay``, or never, if None.

    ``raised`` is what was raised for it, or returned.
    """

    error: str
    delay: timedelta | None
    raised: Exception


@dataclass(frozen=True, slots=True)
class Released:
    """It is given back, the attempt does not count."""

    delay: timedelta | None


@dataclass(frozen=True, slots=True)
class Moved:
    """It goes somewhere else: ``change`` is JSON for `pgq_task.modify`."""

    change: Mapping[str, Any]


Outcome: TypeAlias = Finished | Failed | Released | Moved


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStats:
    """What has just become of tasks: how many were ``finished``, ``failed``, ``moved``, given back
    (``released``), and ``lost``, to another worker that has them since their leases ended."""

    finished: int = 0
    failed: int = 0
    moved: int = 0
    released: int = 0
    lost: int = 0
