"""Hooks for spans of OpenTelemetry, and the trace that travels with an event or a task.

Nothing here imports OpenTelemetry: `pgqpy.telemetry.instrument` sets ``active``. Until then a hook
is one comparison.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from pgqpy._wire.cloud_event import kept_attributes
from pgqpy._wire.event_data import json_text

if TYPE_CHECKING:
    from opentelemetry.context import Context

EVENTS = "pgq"
TASKS = "pgq_task"

#: The names of W3C's headers.
_HEADERS = ("traceparent", "tracestate")


#: An ev_extra4 with nothing else.
_TEXT = re.compile(r'\{"traceparent":"[0-9a-f-]{55}"\}')


class Span:
    """A block that is measured; this class, for when telemetry is off, does nothing."""

    #: The number of events or tasks, to be set within the block if they may be several.
    count: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass


OFF = Span()


class Spans(Protocol):
    """What makes spans: of module `_otel`."""

    def headers(self) -> dict[str, str]: ...
    def text(self) -> str | None: ...
    def context(self, headers: dict[str, str]) -> Context: ...
    def sending(self, system: str, queue: str) -> Span: ...
    def batch(self, batch: Any) -> Span: ...
    def event(self, batch: Any, event: Any, extra4: str) -> Span: ...
    def tasks(self, way: str, tasks: Sequence[Any]) -> Span: ...


#: Set while telemetry is on.
active: Spans | None = None


# --- blocks


def sending(system: str, queue: str) -> Span:
    """Return a block in which events or tasks are written into a queue."""
    return OFF if active is None else active.sending(system, queue)


def processing_batch(batch: Any) -> Span:
    """Return a block around the processing of a batch of events and its commit."""
    return OFF if active is None else active.batch(batch)


def processing_event(batch: Any, event: Any) -> Span:
    """Return a block in which an event is processed; without a trace it is the batch's."""
    if active is None:
        return OFF
    extra4 = _extra4_of(event)
    # Few events need the headers themselves.
    if extra4 is None or not (_TEXT.fullmatch(extra4) or carried_by(extra4)):
        return OFF
    return active.event(batch, event, extra4)


def processing_tasks(way: str, tasks: Sequence[Any]) -> Span:
    """Return a block in which tasks are worked on, by the worker's method ``way``."""
    return OFF if active is None else active.tasks(way, tasks)


# --- what travels


def marker() -> Callable[[str | None], str | None] | None:
    """Return a function that adds the current trace to an event's ev_extra4; None if there is none.

    Only a CloudEvent's attributes are added to: other texts there are the producer's own.
    """
    text = None if active is None else active.text()
    if text is None:
        return None

    def mark(extra4: str | None) -> str | None:
        if extra4 is None:
            return text
        kept = kept_attributes(extra4)
        if kept is None or "traceparent" in kept:
            return extra4
        return json_text(kept | carried_by(text))

    return mark


def marked(fields: Sequence[str | None]) -> Sequence[str | None]:
    """Return an event's six fields with the current trace."""
    if active is None:
        return fields
    mark = marker()
    return fields if mark is None else (*fields[:5], mark(fields[5]))


def headers_with_trace(headers: Any) -> Any:
    """Return a task's headers with the current trace, unless they have one."""
    if active is None or not (headers is None or isinstance(headers, Mapping)):
        return headers
    return {**active.headers(), **(headers or {})} or None


def carried(item: Any) -> dict[str, str]:
    """Return W3C's headers of an event's or a task's trace; empty if it has none."""
    if hasattr(item, "headers"):
        return _headers_in(item.headers)
    return carried_by(_extra4_of(item))


def _extra4_of(event: Any) -> str | None:
    try:
        text: str | None = event.extra4
    except ValueError:  # Its texts are not UTF-8.
        return None
    return text


def carried_by(extra4: str | None) -> dict[str, str]:
    """Return W3C's headers in an event's ev_extra4."""
    if extra4 is None or '"traceparent"' not in extra4:
        return {}
    if _TEXT.fullmatch(extra4):
        return {"traceparent": extra4[16:-2]}
    try:
        return _headers_in(json.loads(extra4))
    except ValueError:
        return {}


def _headers_in(found: object) -> dict[str, str]:
    if not isinstance(found, Mapping) or "traceparent" not in found:
        return {}
    return {name: value for name in _HEADERS if isinstance(value := found.get(name), str)}


def trace_fields(item: Any) -> dict[str, str]:
    """Return the trace id of an event or a task as a field of log lines."""
    parts = carried(item).get("traceparent", "").split("-")
    return {"trace_id": parts[1]} if len(parts) == 4 else {}
