"""Task queues: the list with workers and periodic tasks, one queue, one task."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from pgqpy.cli._tasks.queue import PARAMETERS
from pgqpy.doctor._readings import task_workers
from pgqpy.errors import (
    InvalidParameter,
    PermissionDenied,
    PgqError,
    TaskConflict,
    TaskQueueNotFound,
    translate_errors,
)
from pgqpy.tasks import TaskProgress, Tasks
from pgqpy.ui import _chosen, _pipeline
from pgqpy.ui._chosen import CHANGES, allowed
from pgqpy.ui._mask import UNREADABLE, masked, read_flat_json
from pgqpy.ui._overview import COUNTED, TASK_SIZES, WORKERS
from pgqpy.ui._periodic import change, schedules
from pgqpy.ui._piece import IN_LIST, LONGEST, ON_PAGE, header, piece
from pgqpy.ui._queues import actions
from pgqpy.ui._view import Done, Look, NotFound, View, address, digits

#: Tasks on a page, finished ones on it, those that are grouped, groups and workers on a page.
SHOWN, FINISHED, GROUPED, LARGEST = 100, 20, 10_000, 30
LIST = "pgq_task.list_tasks(text, jsonb, integer)"
CREATE = "pgq_task.create_queue(text)"
GET_LIMITS = "pgq_task.get_limits(text)"
REPLAY = "pgq_task.replay(text, text, bigint[], timestamptz, timestamptz, jsonb, text, integer)"
LIMITS = ("max_running", "max_running_per_key", "rate", "rate_per_key")

#: Python has no infinite time, which a stopped task has.
TASKS = f"""
select id, version, queue, priority, status, nullif(at, 'infinity') as at, claimant, attempts,
       last_attempt, created, unique_key, order_key, failures, {piece("payload")},
       {piece("headers")}, {piece("error")}, {header("flow")}, {header("origin")}
  from pgq_task.list_tasks(%(queue)s::text, %(filter)s::jsonb, %(most)s::int4)
"""
FINISHED_TASKS = f"""
select id, %(queue)s::text as queue, outcome, finished, claimant, attempts, last_attempt, created,
       priority, unique_key, order_key, {piece("result")}, {piece("error")}, {piece("payload")},
       {piece("headers")}, {header("flow")}
  from pgq_task.finished_tasks(%(queue)s::text, %(most)s::int4, %(ids)s::bigint[])
"""
GROUPS = """
select case when pg_column_size(payload) <= %(largest)s and jsonb_typeof(payload) = 'object'
            then left(payload ->> 'task', %(cut)s) end as kind,
       regexp_replace(left(split_part(error, e'\n', 1), %(cut)s), '[0-9]+', '#', 'g') as error,
       count(*), min(created) as first, max(coalesce(last_attempt, created)) as last
  from pgq_task.list_tasks(%(queue)s, %(filter)s, %(grouped)s)
 group by 1, 2
 order by 3 desc, 1, 2
 limit %(most)s
"""
# As text: written back as it was read, it is the same value.
SETTINGS = "select {} from pgq_task.get_queue_info(%s, 1)".format(
    ", ".join(f"{name}::text" for name in PARAMETERS)
)


def task_queues(look: Look) -> dict[str, Any]:
    _require(look)
    # None: the role may not look at tasks.
    workers = task_workers(look.visit.conn, LARGEST + 1) if look.visit.may(WORKERS) else None
    may_list = look.visit.may("pgq_task.list_flows(integer)")
    flows = Tasks(look.visit.conn).flows(LARGEST + 1) if may_list else []
    return {
        "tasks": Tasks(look.visit.conn).queues(max_count=COUNTED),
        "schedules": schedules(look),
        "pipelines": _pipeline.pipelines(look),
        "flows": flows[:LARGEST],
        "more_flows": len(flows) > LARGEST,
        "workers": workers and workers[:LARGEST],
        "more_workers": len(workers or ()) > LARGEST,
        "may_create": look.visit.may_change_by(CREATE),
        "new": look.name,
    }


def task_queue(look: Look) -> dict[str, Any]:
    _require(look)
    visit, conn, name = look.visit, look.visit.conn, look.name
    tasks = Tasks(conn)
    if "*" in name:
        raise TaskQueueNotFound(f"queue {name!r} does not exist: * stands for several")
    [info] = tasks.queues(name, max_count=COUNTED)
    problem, found, groups, done = None, [], [], []
    may_read = info.total is not None and visit.may(LIST)
    if may_read:
        try:
            with conn.transaction(), translate_errors():
                which = IN_LIST | {
                    "queue": name,
                    "filter": Jsonb(_chosen.conditions(look.query)),
                    "grouped": GROUPED,
                }
                found = visit.rows(TASKS, which | {"most": SHOWN + 1})
                if len(found) <= SHOWN:
                    # All of them: to find them once more may take long.
                    which["filter"] = Jsonb({"ids": [each["id"] for each in found]})
                groups = visit.rows(GROUPS, which | {"most": LARGEST})
        except PgqError as error:
            problem = error
        if info.keep:
            last = IN_LIST | {"queue": name, "most": FINISHED, "ids": None}
            done = visit.rows(FINISHED_TASKS, last)
    may_read_limits = visit.may(GET_LIMITS)
    changes = allowed(look)
    preview = changes.get(look.query.get("preview", "")) if found else None
    return {
        "queue": info,
        "pipeline": _pipeline.pipeline_of(look) if may_read else None,
        "may_read": may_read,
        "states": _chosen.STATES,
        "given": _chosen.fields(look.query),
        "has_errors": _exists(look, info.error_queue),
        "problem": problem,
        "found": found[:SHOWN],
        "more": len(found) > SHOWN,
        "groups": [
            each | {"part": _part(each["error"]), "shown": _shown(each["kind"], look)}
            for each in groups
        ],
        "done": done,
        "limits": next(iter(tasks.limits(name)), None) if may_read_limits else None,
        "limit_names": LIMITS,
        "settings": visit.rows(SETTINGS, [name])[0],
        "meanings": PARAMETERS,
        "changes_of": _offered(changes, any(each["origin"] for each in found)),
        "preview": look.query.get("preview") if preview else None,
        "change": preview,
        # Not while the page is only kept up to date.
        "count": lambda: _chosen.count(conn, name, look.query),
        "most": _chosen.MOST,
        "may_change": may_read_limits and not visit.read_only,
        "switches": (),
    }


def _offered(changes: Mapping[str, _chosen.Change], has_failed: bool) -> dict[str, _chosen.Change]:
    return {name: each for name, each in changes.items() if name != "retry" or has_failed}


def _shown(kind: str | None, look: Look) -> str | None:
    """Return the kind, which is a part of payloads, as the masks show it."""
    shown: Any = masked({"task": kind}, look.masks)
    return None if kind is None else str(shown["task"])


def _part(error: str | None) -> str:
    """The longest part of an error that has no number."""
    return max((error or "").split("#"), key=len)


def _exists(look: Look, queue: str) -> bool:
    # A pattern, of which it is the first match: for a missing name the server would log an error.
    found = Tasks(look.visit.conn).queues(f"{queue}*", max_count=1, max_queues=1)
    return [each.queue_name for each in found] == [queue]


def limit(look: Look, form: Mapping[str, str]) -> Done:
    given = {name: form.get(name, "").strip() for name in LIMITS}
    for name, text in given.items():
        if text and digits(text, 9) is None:
            raise InvalidParameter(
                f"{name} is {text!r:.80}", hint="give a whole number, or nothing: no limit"
            )
    period = form.get("rate_period", "").strip()
    with translate_errors():
        [[seconds]] = look.visit.conn.execute(
            "select extract(epoch from %s::interval)::float8", [period or "1 minute"]
        ).fetchall()
    limits = {name: int(text) if text else None for name, text in given.items()}
    Tasks(look.visit.conn).set_limits(look.name, **limits, rate_period=seconds)
    return Done(f"set the limits of {look.name}")


# --- one task


def task(look: Look) -> dict[str, Any]:
    which = ON_PAGE | {"queue": None, "filter": Jsonb({"ids": [_id(look)]}), "most": 1}
    found = _one(look, TASKS, which)
    payload = found["payload"]
    # A mask would be written, and a part would be all that is left.
    may_edit = not look.masks and len(payload) <= LONGEST and read_flat_json(payload) != UNREADABLE
    return {
        "task": found,
        "progress": _progress(Tasks(look.visit.conn), found["id"]),
        "failures": [
            each | {"at": datetime.fromisoformat(each["at"])} for each in found["failures"] or ()
        ],
        "changes_of": {
            name: each
            for name, each in _offered(allowed(look), bool(found["origin"])).items()
            if found["status"] != "claimed" or name == "cancel"
        },
        "may_edit": may_edit,
        "longest": LONGEST,
    }


def _progress(tasks: Tasks, number: int) -> TaskProgress | None:
    """Return what a worker has told of a task; a standby has no unlogged tables."""
    try:
        with tasks.conn.transaction():
            return next(iter(tasks.progress(ids=[number])), None)
    except PgqError as error:
        if error.sqlstate == "0A000":
            return None
        raise


def change_one(name: str) -> Callable[[Look, Mapping[str, str]], Done]:
    """Return the action that changes the task of the page."""
    change = CHANGES[name]

    def act(look: Look, form: Mapping[str, str]) -> Done:
        tasks, number = Tasks(look.visit.conn), _id(look)
        queue = form.get("queue", "")
        if not change.apply(tasks, queue, [number], form.get("value", "").strip()):
            raise TaskConflict(
                f"task {number} cannot be {change.past}",
                hint="a worker has it, it has left the queue, or it came from no other queue",
            )
        stays = bool(tasks.list(filter={"ids": [number]}, payloads=False))
        return Done(
            f"{change.past} task {number}", "" if stays else address("task_queue", name=queue), 1
        )

    return act


def cancel(look: Look, form: Mapping[str, str]) -> Done:
    gone = Tasks(look.visit.conn).cancel(_id(look), _chosen.CANCELLED)
    told = "deleted: no worker had it" if gone else "its worker is told"
    page = address("task_queue", name=form.get("queue", "")) if gone else ""
    return Done(f"cancelled task {_id(look)}: {told}", page, 1)


def edit(look: Look, form: Mapping[str, str]) -> Done:
    """Give the task another payload, if it is as the viewer has seen it."""
    if look.masks:
        raise InvalidParameter("payloads are masked here, so they cannot be edited")
    version = digits(form.get("version", ""), 9)
    if version is None:
        raise InvalidParameter("the version of the task is missing", hint="load the page again")
    try:
        payload = json.loads(form.get("payload", ""))
    except (ValueError, RecursionError) as error:
        raise InvalidParameter(
            f"the new payload is no JSON: {error}", hint="nothing was changed"
        ) from None
    changed = {"id": _id(look), "version": version, "payload": payload}
    Tasks(look.visit.conn).modify(changes=[changed])
    return Done(f"task {_id(look)} has another payload", count=1)


def finished_task(look: Look) -> dict[str, Any]:
    which = ON_PAGE | {"queue": look.name, "most": 1, "ids": [_id(look)]}
    return {
        "task": _one(look, FINISHED_TASKS, which),
        "longest": LONGEST,
        "may_replay": look.visit.may_change_by(REPLAY),
    }


def replay(look: Look, form: Mapping[str, str]) -> Done:
    pushed = Tasks(look.visit.conn).replay(look.name, ids=[_id(look)])
    if not pushed:
        raise _gone(look)
    return Done(f"pushed task {_id(look)} again: {pushed[0]}", f"/task?id={pushed[0]}", 1)


def _require(look: Look) -> None:
    if not look.visit.may(TASK_SIZES):
        raise PermissionDenied(f"role {look.visit.role} may not look at task queues")


def _one(look: Look, statement: str, which: Mapping[str, Any]) -> dict[str, Any]:
    for each in look.visit.rows(statement, which):
        return each
    raise _gone(look)


def _id(look: Look) -> int:
    if look.id is None:
        raise _gone(look)
    return look.id


def _gone(look: Look) -> NotFound:
    return NotFound(
        f"there is no task {look.query.get('id', '')}",
        hint="it was finished or deleted, or you may not read its queue",
    )


create, _OF_ONE = actions(Tasks, Tasks.set_config, "task queue", "task_queue", PARAMETERS)
VIEWS = [
    View("task_queues", "Tasks", task_queues, {"create": create}, "task_queues", needs=TASK_SIZES),
    View(
        "task_queue",
        "Task queue",
        task_queue,
        {name: _chosen.change_all(name) for name in CHANGES}
        | {
            **_OF_ONE,
            "limit": limit,
            "pause": change("paused", Tasks.pause),
            "resume": change("resumed", Tasks.resume),
        },
        menu="task_queues",
    ),
    View(
        "task",
        "Task",
        task,
        {name: change_one(name) for name in CHANGES} | {"cancel": cancel, "edit": edit},
        menu="task_queues",
    ),
    View("finished_task", "Finished task", finished_task, {"replay": replay}, menu="task_queues"),
    *_pipeline.VIEWS,
]
