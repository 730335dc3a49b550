"""The settings of workers of a group, and what one says if too many events are parked."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from pgqpy._runtime.checks import COUNT, INTERVAL, TEXT
from pgqpy._runtime.failure import Failure
from pgqpy.consumer._settings import WorkerSettings
from pgqpy.errors import ParkingFull
from pgqpy.event import Event
from pgqpy.retry import ExponentialBackoff, RetryPolicy
from pgqpy.telemetry._spans import trace_fields


class GroupSettings(WorkerSettings):
    """The settings of a `GroupConsumer`."""

    key: str = "ev_extra1"
    """The key that orders events: an immutable SQL expression over ev_type, ev_data and ev_extra1
    to ev_extra4, or ``pkey``: the primary key of captured rows. An event for which it is NULL, or
    fails, has no order with others. Fixed when the group is created."""
    partitions: int = 8
    """Their number, when the group is created; `pgqpy group resize` changes it."""
    lease: timedelta = timedelta(seconds=15)
    """The silence after which a worker loses its partitions; used when the group is created."""
    park_limit: int = 10_000
    """The maximum parked events of a partition that goes on; used when the group is created."""

    retry_policy: RetryPolicy | None = ExponentialBackoff()
    """The delay before a parked key is retried: seconds after an attempt (from 1) that failed with
    an error, or None: until it is unparked. Without a policy the whole batch is retried."""

    _kinds = WorkerSettings._kinds | {"key": TEXT, "lease": INTERVAL, "partitions": COUNT}

    def log_fields(self, batch: Any = None) -> dict[str, Any]:
        """Return the fields of every log line, and those of a batch."""
        partition = getattr(batch, "partition", None)
        of_batch = {} if partition is None else {"partition": partition}
        return super().log_fields(batch) | of_batch

    def new_group(self) -> dict[str, Any]:
        """Return the arguments with which its group is created."""
        names = ("key", "partitions", "lease", "park_limit", "start")
        return {name: getattr(self, name) for name in names}


def parking_full(consumer: GroupSettings, full: Iterable[int]) -> ParkingFull:
    """Return the error for partitions that are full."""
    partitions = ", ".join(map(str, full))
    return ParkingFull(
        f"too many events are parked: partition {partitions} of consumer group "
        f"{consumer.consumer} on queue {consumer.queue} takes no batches",
        hint="See what fails: pgqpy group parked QUEUE GROUP. Mend it and unpark the keys, "
        "give events up, or allow more: pgqpy group set QUEUE GROUP park_limit N.",
    )


def log_parked(fields: dict[str, Any], event: Event, attempt: int, failure: Failure) -> None:
    """Log that the key of an event is parked."""
    failure.log(
        f"event {event.id}, whose key is parked,",
        attempt,
        fields | {"event_id": event.id} | trace_fields(event),
        end="waits to be unparked",
        level=logging.WARNING,
        always_traceback=True,
    )
