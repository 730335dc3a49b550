"""The statements for tasks; arguments are converted for PostgreSQL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from pgqpy._runtime.checks import is_whole
from pgqpy._runtime.failure import interval
from pgqpy._wire.event_data import json_text
from pgqpy._wire.statements import checked
from pgqpy.errors import InvalidPayload, InvalidTask, PayloadTooLarge
from pgqpy.tasks._values import Modified, Task, TaskInfo, Unreadable
from pgqpy.telemetry._spans import headers_with_trace

#: Seconds, or an interval.
Duration: TypeAlias = float | timedelta

# With explicit types: otherwise the server finds no function for a value of another type.
PUSH = b"""
select pgq_task.push(%s::text, %s::jsonb, %s::timestamptz, %s::interval, %s::int4, %s::jsonb,
                     %s::text, %s::text)
"""
PUSH_UNIQUE = b"""
select id, inserted
  from pgq_task.push_unique(%s::text, %s::jsonb, %s::text, %s::text, %s::interval, %s::boolean,
                            %s::timestamptz, %s::interval, %s::int4, %s::jsonb, %s::text)
"""
PUSH_MANY = b"""
select pgq_task.push_many(%s::text, %s::jsonb[], %s::timestamptz, %s::interval, %s::int4,
                          %s::jsonb, %s::text[], %s::text[], %s::text, %s::interval, %s::boolean)
"""
PUSH_FLOW = b"select min(flow) from pgq_task.push_flow(%s::jsonb)"
#: Also for connections of other libraries: they return ids, which every driver reads alike.
PUSHES = frozenset({PUSH, PUSH_UNIQUE, PUSH_MANY, PUSH_FLOW})
#: The error of a task whose last attempt ended without a result: pgq_task._lost_error().
LOST = "the worker was lost"
_TASK = b"""
select id, version, queue, priority, attempts, lease, created, payload, headers, error, unique_key,
       order_key"""
#: The seconds until the lease ends, because clocks differ.
_SECONDS = b", extract(epoch from lease - clock_timestamp())::float8"
_CLAIM = b"""
  from pgq_task.claim(%s::text[], %s::text, %s::interval, %s::int4, %s)
"""
_FINISH_AND_CLAIM = b"""
  from pgq_task.finish_and_claim(%s::text, %s, %s::int4, %s::text, %s::jsonb, %s::interval, %s)
 where id is not null
"""
CLAIM = _TASK + _CLAIM
CLAIM_FOR_WORKER = _TASK + _SECONDS + _CLAIM
FINISH_AND_CLAIM = _TASK + _FINISH_AND_CLAIM
FINISH_AND_CLAIM_FOR_WORKER = _TASK + _SECONDS + _FINISH_AND_CLAIM
POP = _TASK + b" from pgq_task.pop(%s::text, %s::int4, %s::text)"
RENEW = b"select id, version from pgq_task.renew(%s, %s::bigint[], %s::int4[], %s::interval)"
LEASES = b"select * from pgq_task.get_leases(%s, %s::bigint[], %s)"
#: With the ends of the leases.
RENEW_FOR_CLIENT = b"select * from pgq_task.renew(%s, %s::bigint[], %s::int4[], %s::interval)"
RELEASE = b"""
select * from pgq_task.release(%s, %s::bigint[], %s::int4[], %s::interval[], %s::text[])
"""
FINISH = b"select pgq_task.finish(%s, %s, %s::int4, %s::jsonb)"
FINISH_MANY = b"""
select * from pgq_task.finish_many(%s, %s::bigint[], %s::int4[], %s::jsonb[], %s::text[])
"""
FAIL_MANY = b"""
select * from pgq_task.fail_many(%s, %s::bigint[], %s::int4[], %s::text[], %s::interval[],
                                 %s::boolean[])
"""
MODIFY = b"""
select * from pgq_task.modify(%s, %s::jsonb, %s::jsonb, %s::jsonb, %s::jsonb, %s, %s)
"""
#: Python has no infinite time, which a stopped task has.
LIST = b"""
select id, version, queue, priority, status, nullif(at, 'infinity') as at, claimant, attempts,
       last_attempt, created, payload, headers, error, unique_key, order_key, failures
  from pgq_task.list_tasks(%s::text, %s::jsonb, %s::int4)
"""
LIST_WITHOUT_PAYLOADS = LIST.replace(b"payload", b"null::jsonb as payload")
SET_WAITING = b"select pgq_task.set_waiting(%s::text[])"
IS_EMPTY = b"select pgq_task.queue_is_empty(%s::text[], %s)"
#: Returns those of a claimant's tasks that were cancelled.
CANCELLED = b"select id, reason from pgq_task.heartbeat(%s, %s::bigint[])"
FIND_QUEUES = b"select pgq_task.find_queues(%s::text[])"
SWEEP = b"select pgq_task.sweep()"
CATCH_UP = b"select pgq_task.catch_up(%s::text[])"
FINISHED = b"""
select id, %s as queue, outcome, finished, claimant, attempts, last_attempt, created, result, error,
       payload, headers, priority, unique_key, order_key
  from pgq_task.finished_tasks(%s::text, %s::int4, %s::bigint[], %s::timestamptz, %s::timestamptz,
                               %s::jsonb, %s::text)
"""
REPLAY = b"""
select * from pgq_task.replay(%s::text, %s::text, %s::bigint[], %s::timestamptz, %s::timestamptz,
                              %s::jsonb, %s::text, %s::int4)
"""
STATISTICS = b"""
select queue_name as queue, pushed, claimed, finished, popped, failed_attempts, failed,
       released, moved, deleted
  from pgq_task.get_statistics(%s)
"""
SET_LIMITS = b"""
select pgq_task.set_limits(%s, %s::int4, %s::int4, %s::int4, %s::int4, %s::interval)
"""
RESULT = b"select status, result, error from pgq_task.get_result(%s)"

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
#: The bytes of the largest jsonb; the server takes a minute to find that a text is larger.
_LARGEST = 2**28 - 1


def jsonb(value: object) -> str:
    """Return a payload, or a result, as JSON. Raises InvalidPayload if it cannot be JSON,
    PayloadTooLarge if jsonb cannot hold it."""
    if isinstance(value, Unreadable):
        raise InvalidPayload(str(value), hint="Push it by SQL: its text is JSON of PostgreSQL's.")
    text = json_text(value)
    if len(text) > _LARGEST / 4 and _is_too_large(json.loads(text)):
        raise PayloadTooLarge(f"a payload has more than {_LARGEST:,} bytes", sqlstate="54000")
    checked([text])
    if "\\u0000" in text and _NUL.search(text):
        raise InvalidPayload("a text of a payload holds a NUL character")
    return text


def _is_too_large(value: object) -> bool:
    """Whether jsonb cannot hold a value, by its texts alone, and 4 bytes for each value."""
    size, left = 0, [value]
    while left and size <= _LARGEST:
        each = left.pop()
        if isinstance(each, str):
            size += len(each) if each.isascii() else len(each.encode(errors="replace"))
        elif isinstance(each, dict):
            size += 8 * len(each)
            left += [*each, *each.values()]
        elif isinstance(each, list):
            size += 4 * len(each)
            left += each
    return size > _LARGEST


def jsonb_or_null(value: object) -> str | None:
    """Return a value as JSON; None stays None."""
    return None if value is None else jsonb(value)


def headers_json(headers: object) -> str | None:
    """Return headers as JSON. Raises InvalidTask unless they are a mapping with texts as keys."""
    if headers is None:
        return None
    if not isinstance(headers, Mapping) or not all(isinstance(key, str) for key in headers):
        raise InvalidTask(
            f"headers are {headers!r:.80}", hint="Give a dict whose keys are texts, or None."
        )
    return jsonb(dict(headers))


def smallint(priority: object) -> int:
    """Return a priority. Raises InvalidTask if it is invalid."""
    if not is_whole(priority) or not -(2**15) <= priority < 2**15:
        raise InvalidTask(
            f"priority {priority!r:.80}", hint="Give a whole number between -32768 and 32767."
        )
    return priority


def whole(value: object, what: str, bits: int = 32) -> Any:
    """Return an integer of at most ``bits`` bits, or None. Raises InvalidTask for other values."""
    end = 2 ** (bits - 1)
    if value is None:
        return None
    if not (is_whole(value) and -end <= int(value) < end):
        raise InvalidTask(
            f"{what} is {value!r:.80}", hint=f"Give a whole number between {-end} and {end - 1}."
        )
    return int(value)


def task_id(value: object) -> Any:
    return whole(value, "the id of a task", 64)


def task_ids(values: Iterable[object] | None) -> list[Any] | None:
    """Return ids of tasks as a list, if there are any. Raises InvalidTask if one is invalid."""
    return None if values is None else [task_id(value) for value in values]


def queue_names(queues: object) -> list[str]:
    """Return one name, or several, as a list. Raises InvalidTask for other values, or no name."""
    names: list[Any] = [queues]
    if isinstance(queues, Iterable) and not isinstance(queues, str):
        names = list(queues)
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidTask(
            f"queues are {queues!r:.80}", hint="Give the name of a task queue, or several."
        )
    return checked(names)


def duration(value: Duration | None, what: str) -> timedelta | None:
    """Return seconds or an interval as an interval; ``what`` names it in the ValueError."""
    return None if value is None else interval(value, what)


def when(at: datetime | None, delay: Duration | None) -> tuple[datetime | None, timedelta | None]:
    """Return the time or the delay of a push. Raises InvalidTask for a time without zone."""
    if at is not None and getattr(at, "tzinfo", None) is None:
        raise InvalidTask(
            f"the time {at!r:.80} has no time zone",
            hint="Give an aware datetime, for instance datetime.now(UTC) + timedelta(hours=1).",
        )
    return at, duration(delay, "delay")


def push_options(
    at: datetime | None, delay: Duration | None, priority: object, headers: object
) -> tuple[Any, ...]:
    """Return these options of a push; the headers get the current trace. Raises InvalidTask."""
    return *when(at, delay), smallint(priority), headers_json(headers_with_trace(headers))


def finished_filter(
    ids: Iterable[object] | None,
    finished_from: datetime | None,
    finished_before: datetime | None,
    payload: object,
    outcome: str | None,
) -> tuple[Any, ...]:
    """Return the conditions for finished tasks. Raises InvalidTask, InvalidPayload."""
    times = when(finished_from, None)[0], when(finished_before, None)[0]
    return task_ids(ids), *times, jsonb_or_null(payload), outcome


def changes_json(changes: object, kind: str = "insert", *, traced: bool = False) -> str:
    """Return inserts, changes, deletes or dependencies of `modify` as a JSON array; if ``traced``,
    the headers of inserts get the current trace.

    Raises InvalidTask for values that are not mappings or, if allowed, tasks.
    """
    given = changes if isinstance(changes, Iterable) else [changes]
    written = [_modification(kind, one) for one in given]
    if traced:
        for one in written:
            if (headers := headers_with_trace(one.get("headers"))) is not None:
                one["headers"] = headers
    return json_text(written)


def _modification(kind: str, given: object) -> dict[str, Any]:
    if isinstance(given, Mapping):
        return _plain_object(given)
    if kind in ("delete", "depend") and isinstance(given, Task | TaskInfo | Modified):
        return {"id": given.id, "version": given.version}
    example = '{"queue": "mails"}' if kind == "insert" else '{"id": task.id, "version": 2}'
    raise InvalidTask(
        f"{kind} {given!r:.80} is no dict", hint=f"Give a list of dicts, such as [{example}]."
    )


def filter_json(conditions: object) -> str | None:
    """Return the conditions of a filter, or a change, as a JSON object."""
    if conditions is None:
        return None
    if not isinstance(conditions, Mapping):
        raise InvalidTask(
            f"{conditions!r:.80} is no dict", hint='Give one such as {"status": "scheduled"}.'
        )
    return json_text(_plain_object(conditions))


def _plain_object(given: Mapping[str, Any]) -> dict[str, Any]:
    if not all(isinstance(key, str) for key in given):
        raise InvalidTask(
            f"{given!r:.80} has keys that are no texts", hint='Give a dict such as {"delay": 60}.'
        )
    return {key: _plain(key, value) for key, value in given.items()}


def _plain(key: str, value: Any) -> Any:
    is_json = key in ("payload", "headers")
    if isinstance(value, datetime) and not is_json:
        when(value, None)
        return value.isoformat()
    if isinstance(value, timedelta) and not is_json:
        return f"{value / timedelta(microseconds=1):.0f} microseconds"
    if key == "delay" and isinstance(value, int | float):
        return f"{value} seconds"
    jsonb(value)
    return value


def versions(tasks: Iterable[Any]) -> tuple[list[int], list[int]]:
    known: Sequence[Any] = list(tasks)
    return [task.id for task in known], [task.version for task in known]
