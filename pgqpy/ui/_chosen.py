"""Tasks of a queue that a filter finds, and their changes: previewed, then done in chunks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from pgqpy._runtime.words import plural
from pgqpy.connection import Connection
from pgqpy.errors import InvalidParameter, TaskConflict
from pgqpy.tasks import Tasks
from pgqpy.ui._view import Bulk, Done, Look

STATES = ("available", "claimed", "scheduled", "held", "stopped")
#: The fields of the filter, by the condition of pgq_task.list_tasks() that each is.
FIELDS = {
    "state": "status",
    "payload": "payload",
    "headers": "headers",
    "error": "error",
    "claimant": "claimant",
    "attempts": "attempts",
    "priority": "priority",
    "key": "unique_key",
    "before": "created_before",
}
#: Tasks of one change; a chunk of it.
MOST, CHUNK = 100_000, 1000
CANCELLED = "cancelled in the console"

COUNT = "select count(*) from pgq_task.list_tasks(%s, %s, %s)"
IDS = "select array(select id from pgq_task.list_tasks(%s, %s, %s) order by id)"

#: Changes tasks of a queue; returns their number.
Apply = Callable[[Tasks, str, list[int], str], int]


@dataclass(frozen=True, slots=True)
class Change:
    """What can be done to tasks; ``function`` is that which does it."""

    label: str
    past: str
    #: What it means, in the preview.
    meaning: str
    function: str
    apply: Apply
    #: The label of the value that it takes.
    value: str = ""
    placeholder: str = ""
    destroys: bool = False


def _set(field: str, read: Callable[[str], object]) -> Apply:
    def apply(tasks: Tasks, queue: str, ids: list[int], value: str) -> int:
        return tasks.change(queue, {"ids": ids}, {field: read(value)})

    return apply


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidParameter(
            f"{text!r:.80} is no priority", hint="give a whole number, like 3"
        ) from None


def _queue_name(text: str) -> str:
    if not text:
        raise InvalidParameter("no queue is named", hint="say where the tasks go")
    return text


def _requeue(tasks: Tasks, queue: str, ids: list[int], _: str) -> int:
    return tasks.requeue(queue, {"ids": ids})


def _remove(tasks: Tasks, queue: str, ids: list[int], _: str) -> int:
    return tasks.remove(queue, {"ids": ids})


def _cancel(tasks: Tasks, queue: str, ids: list[int], _: str) -> int:
    count = 0
    for each in tasks.list(queue, {"ids": ids}, max_tasks=None, payloads=False):
        try:
            with tasks.conn.transaction():
                tasks.cancel(each.id, CANCELLED)
        except TaskConflict:
            continue  # it has ended meanwhile
        count += 1
    return count


_CHANGE = "pgq_task.change_tasks(text, jsonb, jsonb, integer, boolean)"
CHANGES = {
    "retry": Change(
        "Retry",
        "sent back",
        "go back to the queue where they failed, with no attempts",
        "pgq_task.requeue(text, jsonb, integer)",
        _requeue,
    ),
    "start": Change(
        "Start",
        "started",
        "become available, now or after a time; workers keep theirs",
        _CHANGE,
        _set("delay", lambda text: text or "0"),
        "after",
        "1 hour",
    ),
    "stop": Change(
        "Stop",
        "stopped",
        "stay until they are started; workers keep theirs",
        _CHANGE,
        _set("stop", lambda _: True),
    ),
    "prioritise": Change(
        "Set priority",
        "given another priority",
        "get another priority; workers keep theirs",
        _CHANGE,
        _set("priority", _whole),
        "priority",
        "0",
    ),
    "move": Change(
        "Move",
        "moved",
        "go to another queue, with no attempts; workers keep theirs",
        _CHANGE,
        _set("queue", _queue_name),
        "to the queue",
    ),
    "cancel": Change(
        "Cancel",
        "cancelled",
        "are deleted; workers are told to end theirs, which then count as failed",
        "pgq_task.cancel(bigint, text)",
        _cancel,
        destroys=True,
    ),
    "delete": Change(
        "Delete",
        "deleted",
        "are deleted for good; workers keep theirs",
        "pgq_task.remove_tasks(text, jsonb, integer, boolean)",
        _remove,
        destroys=True,
    ),
}


def allowed(look: Look) -> dict[str, Change]:
    """Return the changes that are offered to the viewer."""
    may = look.visit.may_change_by
    return {name: each for name, each in CHANGES.items() if may(each.function)}


def fields(given: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of the filter as they are written."""
    return {name: given.get(name, "").replace("\0", "").strip() for name in FIELDS}


def conditions(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the filter. Raises InvalidParameter."""
    found: dict[str, Any] = {}
    for name, text in fields(given).items():
        if not text:
            continue
        value: Any = text
        if name in ("payload", "headers"):
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                raise InvalidParameter(
                    f"what {name} hold is to be JSON, not {text:.80}",
                    hint='a part of it is enough, like {"to": "ann"}; a text needs quotes',
                ) from None
        elif name in ("attempts", "priority"):
            value = _whole(text)
        found[FIELDS[name]] = value
    return found


def count(conn: Connection, queue: str, given: Mapping[str, str]) -> int:
    """Count the tasks that a change would concern."""
    [[number]] = conn.execute(COUNT, [queue, Jsonb(conditions(given)), MOST]).fetchall()
    return int(number)


def change_all(name: str) -> Callable[[Look, Mapping[str, str]], Done]:
    """Return the action that changes what the preview counted: not the tasks that come later."""
    change = CHANGES[name]

    def act(look: Look, form: Mapping[str, str]) -> Done:
        queue, value = look.name, form.get("value", "").strip()
        if "*" in queue:
            raise InvalidParameter("a change is for the tasks of one queue", hint="name it")
        which = Jsonb(conditions(form))
        [[ids]] = look.visit.conn.execute(IDS, [queue, which, MOST]).fetchall()
        if not ids:
            raise InvalidParameter("no task was found", hint="they are gone, or none fits")
        chunks = _chunks(ids)

        def step(conn: Connection) -> int:
            for some in chunks:
                # Those that cannot be changed are skipped, and 0 would be the end.
                if done := change.apply(Tasks(conn), queue, some, value):
                    return done
            return 0

        what = f"{change.label.lower()} {plural(len(ids), 'task')} of {queue}"
        # A value that is refused is told at once.
        with look.visit.conn.transaction(force_rollback=True):
            change.apply(Tasks(look.visit.conn), queue, ids[:1], value)
        return Done(f"began to {what}", bulk=Bulk(what, len(ids), step))

    return act


def _chunks(ids: list[int]) -> Iterator[list[int]]:
    for first in range(0, len(ids), CHUNK):
        yield ids[first : first + CHUNK]
