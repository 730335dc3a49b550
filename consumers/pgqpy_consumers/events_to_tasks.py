"""Events as tasks: an event that every consumer receives becomes work for one worker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Self

import pgqpy
from pgqpy import telemetry
from pgqpy.dsn import resolve
from pgqpy.errors import InvalidPayload, InvalidTask, translate_errors
from pgqpy.tasks import Tasks
from pgqpy.tasks.formats import changes_json, jsonb
from pgqpy_consumers._shared import pieces
from pgqpy_consumers.settings import Configured, setting

#: The number of tasks that are pushed at once.
_PIECE = 1000
#: The most bytes of a key.
_MAX_KEY = 1000

_PUSH = b"select from pgq_task.modify(%s, %s::jsonb, skip_collisions => true)"

Payload = Literal["json", "text", "event"]
Key = Literal["none", "id", "type", "extra1", "extra2", "extra3", "extra4"]


class JsonText(str):
    """A text that is JSON and is stored as written: numbers keep their digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTask:
    """A task to be pushed. ``payload`` is a JSON value, or a `JsonText`; the rest is as for
    `pgqpy.tasks.Tasks.push`, but ``at`` may be in the past: the consumer may have been away.
    If ``queue`` is None, the consumer's ``target_queue`` is used."""

    payload: Any = None
    queue: str | None = None
    at: datetime | None = None
    delay: float | timedelta | None = None
    priority: int = 0
    headers: Mapping[str, Any] | None = None
    unique_key: str | None = None
    order_key: str | None = None


class EventsToTasks(Configured, pgqpy.RemoteConsumer):
    """Pushes a task for each event of a queue, exactly once, in the order of the events.

    The tasks of a batch are committed together with the consumer's position, or not at all. To
    make other tasks, or to leave out events, subclass it and override `task_of`.
    """

    consumer = "events_to_tasks"
    target_dsn: str = setting(
        "The database with the task queue, if it is another one.", default=None
    )
    target_queue: str = setting("The task queue, for tasks that name none.", example="mails")
    types: tuple[str, ...] = setting(
        "Only events of these types; none: all of them.", default=(), example=["order.paid"]
    )
    payload: Payload = setting(
        "json: the event's data, which must be JSON; text: the data as a text; event: an object"
        " with all of the event.",
        default="json",
    )
    priority: int = setting("The tasks' priority; higher ones come first.", default=0)
    order_key: Key = setting(
        "Tasks with the same value of this field are processed one after the other.", default="none"
    )
    unique_key: Key = setting(
        "No task is pushed while the queue has one with the same value of this field.",
        default="none",
    )
    batch_size: int | None = setting(
        "The approximate number of events a transaction.", default=10_000, at_least=1
    )

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Raise ValueError if no task has this priority."""
        if not -(2**15) <= config.priority < 2**15:
            raise ValueError("priority must be between -32768 and 32767")

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """A consumer with these settings."""
        target = resolve(config.dsn) if config.target_dsn is None else config.target_dsn
        return super().from_config(replace(config, target_dsn=target))

    def task_of(self, event: pgqpy.Event) -> NewTask | None:
        """The task for an event; None for no task."""
        if self.types and event.type not in self.types:
            return None
        return NewTask(
            payload=self._payload_of(event),
            priority=self.priority,
            order_key=_key(event, self.order_key),
            unique_key=_key(event, self.unique_key),
        )

    def prepare_target(self, target: pgqpy.Connection) -> None:
        """Raises TaskQueueNotFound if the task queue is missing."""
        Tasks(target).queues(self.target_queue, max_count=1)

    def process_remote_batch(
        self, conn: pgqpy.Connection, batch: pgqpy.Batch, target: pgqpy.Connection
    ) -> None:
        """Push the batch's tasks."""
        inserts = (
            self._insert_of(event, task)
            for event in batch
            if (task := self.task_of(event)) is not None
        )
        for piece in pieces(inserts, _PIECE):
            with translate_errors():
                target.execute(_PUSH, [self.consumer, f"[{','.join(piece)}]"])

    def _insert_of(self, event: pgqpy.Event, task: NewTask) -> str:
        """The arguments for a task as an insert of pgq_task.modify()."""
        at = task.at
        if at is not None and at.tzinfo is not None and at <= datetime.now(UTC):
            at = None
        insert: dict[str, Any] = {
            "queue": task.queue or self.target_queue,
            "at": at,
            "delay": task.delay,
            "priority": task.priority,
            "headers": {**telemetry.headers(event), **(task.headers or {})} or None,
            "unique_key": task.unique_key,
            "order_key": task.order_key,
        }
        try:
            _check_keys(task)
            rest = changes_json(
                [{key: value for key, value in insert.items() if value is not None}]
            )
            payload = _json_of(task.payload)
        except (InvalidPayload, InvalidTask) as error:
            raise type(error)(
                f"the task of event {event.id} cannot be pushed: {error.message}", hint=error.hint
            ) from error
        return f'{rest[1:-2]}, "payload": {payload}}}'

    def _payload_of(self, event: pgqpy.Event) -> Any:
        if self.payload == "text":
            return event.data
        if self.payload == "event":
            return {
                name: value.isoformat() if isinstance(value, datetime) else value
                for name in ("id", "time", "type", "data", "extra1", "extra2", "extra3", "extra4")
                if (value := getattr(event, name)) is not None
            }
        if event.data is None:
            return None
        try:
            json.loads(event.data, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise InvalidPayload(
                f"the data of event {event.id} is no JSON: {error}",
                hint='Set payload to "text" or "event", leave its type out by types, or override'
                " task_of.",
            ) from None
        return JsonText(event.data)


def _key(event: pgqpy.Event, name: Key) -> str | None:
    value = None if name == "none" else getattr(event, name)
    return None if value in (None, "") else str(value)


def _check_keys(task: NewTask) -> None:
    for name, key in (("unique_key", task.unique_key), ("order_key", task.order_key)):
        size = None if key is None else len(str(key).encode(errors="replace"))
        if size is not None and not 1 <= size <= _MAX_KEY:
            raise InvalidTask(
                f"a key has 1 to {_MAX_KEY} bytes, this {name} has {size}",
                hint="Take another field as key, or override task_of.",
            )


def _json_of(payload: Any) -> str:
    if not isinstance(payload, JsonText):
        return jsonb(payload)
    if "\\u" in payload:
        # JSON has escapes that jsonb lacks.
        jsonb(json.loads(payload, parse_float=str))
    return payload


def _refuse(name: str) -> None:
    raise ValueError(f"JSON has no {name}")
