"""Task queues: the list, one queue by state, and one task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from pgqpy.errors import PermissionDenied, PgqError, TaskConflict, TaskQueueNotFound
from pgqpy.tasks import Tasks
from pgqpy.ui._overview import COUNTED, TASK_SIZES
from pgqpy.ui._view import Done, Look, View

STATES = ("available", "claimed", "scheduled", "held", "stopped")
#: Tasks on a page.
SHOWN = 100
CHANGES = {
    "retry": "pgq_task.requeue(text, jsonb, integer)",
    "cancel": "pgq_task.cancel(bigint, text)",
    "delete": "pgq_task.remove_tasks(text, jsonb, integer, boolean)",
}


class TaskNotFound(PgqError):
    """There is no task with this id, or the role may not read it."""


def task_queues(look: Look) -> dict[str, Any]:
    _require(look)
    return {"tasks": Tasks(look.visit.conn).queues(max_count=COUNTED)}


def task_queue(look: Look) -> dict[str, Any]:
    _require(look)
    tasks = Tasks(look.visit.conn)
    if "*" in look.name:
        raise TaskQueueNotFound(f"queue {look.name!r} does not exist: * stands for several")
    [info] = tasks.queues(look.name, max_count=COUNTED)
    state = look.query.get("state", "")
    given = {"status": state} if state in STATES else {}
    found = [] if info.total is None else tasks.list(look.name, given, max_tasks=SHOWN + 1)
    return {
        "queue": info,
        "states": STATES,
        "state": state,
        "has_errors": _exists(look, info.error_queue),
        "found": found[:SHOWN],
        "more": len(found) > SHOWN,
    }


def _exists(look: Look, queue: str) -> bool:
    try:
        with look.visit.conn.transaction():
            return bool(Tasks(look.visit.conn).queues(queue, max_count=1))
    except TaskQueueNotFound:
        return False


def task(look: Look) -> dict[str, Any]:
    tasks = Tasks(look.visit.conn)
    found = next(iter(tasks.list(filter={"ids": [_id(look)]})), None)
    if found is None:
        raise _gone(look)
    return {
        "task": found,
        "progress": next(iter(tasks.progress(ids=[found.id])), None),
        "origin": (found.headers or {}).get("origin"),
        "may": {
            name
            for name, function in CHANGES.items()
            if not look.visit.read_only and look.visit.may_call(function)
        },
    }


def retry(look: Look, form: Mapping[str, str]) -> Done:
    return _change(look, form, "sent back", Tasks.requeue)


def delete(look: Look, form: Mapping[str, str]) -> Done:
    return _change(look, form, "deleted", Tasks.remove)


def cancel(look: Look, form: Mapping[str, str]) -> Done:
    gone = Tasks(look.visit.conn).cancel(_id(look), "cancelled in the console")
    told = "deleted: no worker had it" if gone else "its worker is told"
    return Done(f"cancelled task {_id(look)}: {told}", _page_of(form) if gone else "")


def _change(look: Look, form: Mapping[str, str], past: str, change: Any) -> Done:
    tasks, number = Tasks(look.visit.conn), _id(look)
    if not change(tasks, form.get("queue", ""), {"ids": [number]}):
        raise TaskConflict(
            f"task {number} cannot be {past}",
            hint="a worker has it, it has left the queue, or it came from no other queue",
        )
    return Done(f"{past} task {number}", _page_of(form))


def _page_of(form: Mapping[str, str]) -> str:
    return f"/task_queue?{urlencode({'name': form.get('queue', '')})}"


def _require(look: Look) -> None:
    if not look.visit.may_call(TASK_SIZES):
        raise PermissionDenied(f"role {look.visit.role} may not look at task queues")


def _id(look: Look) -> int:
    text = look.query.get("id", "")
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise _gone(look)
    return int(text)


def _gone(look: Look) -> TaskNotFound:
    return TaskNotFound(
        f"there is no task {look.query.get('id', '')}",
        hint="it was finished or deleted, or you may not read its queue",
    )


VIEWS = [
    View("task_queues", "Tasks", task_queues, menu="task_queues"),
    View("task_queue", "Task queue", task_queue, menu="task_queues"),
    View("task", "Task", task, {"retry": retry, "cancel": cancel, "delete": delete}, "task_queues"),
]
