"""Hooks for spans of OpenTelemetry, and the trace that travels with an event or a task.

Nothing here imports OpenTelemetry: `pgqpy.telemetry.instrument` sets ``active``. Until then a hook
is one comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pgqpy._wire.cloud_event import kept_attributes
from pgqpy._wire.event_data import json_text
from pgqpy.telemetry._carried import EVENTS, OFF, TASKS, Span, carried, carried_by

if TYPE_CHECKING:
    from pgqpy.telemetry._otel import Spans

__all__ = ["EVENTS", "TASKS"]

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
    return OFF if active is None or not carried(event) else active.event(batch, event)


def processing_tasks(way: str, tasks: Sequence[Any]) -> Span:
    """Return a block in which tasks are worked on, by the worker's method ``way``."""
    return OFF if active is None else active.tasks(way, tasks)


# --- what travels


class Marker:
    """Adds a trace to events' ev_extra4."""

    def __init__(self, text: str) -> None:
        self._text = text
        #: What an event lacks, by the number of its fields: many are marked by that alone.
        self.padding = [*((None,) * missing + (text,) for missing in range(5, -1, -1)), ()]

    def __call__(self, extra4: str | None) -> str | None:
        return _with_trace(extra4, self._text)


def _with_trace(extra4: str | None, text: str) -> str | None:
    """Return an event's ev_extra4 with a trace.

    Only a CloudEvent's attributes are added to: other texts there are the producer's own.
    """
    if extra4 is None:
        return text
    kept = kept_attributes(extra4)
    if kept is None or "traceparent" in kept:
        return extra4
    return json_text(kept | carried_by(text))


def marker() -> Marker | None:
    """Return what adds the current trace to events; None if there is none."""
    text = None if active is None else active.text()
    return None if text is None else Marker(text)


def marked(fields: Sequence[str | None]) -> Sequence[str | None]:
    """Return an event's six fields with the current trace."""
    text = None if active is None else active.text()
    return fields if text is None else (*fields[:5], _with_trace(fields[5], text))


def headers_with_trace(headers: Any) -> Any:
    """Return a task's headers with the current trace, unless they have one."""
    if active is None or not (headers is None or isinstance(headers, Mapping)):
        return headers
    return {**active.headers(), **(headers or {})} or None


def trace_fields(item: Any) -> dict[str, str]:
    """Return the trace id of an event or a task as a field of log lines."""
    parts = carried(item).get("traceparent", "").split("-")
    return {"trace_id": parts[1]} if len(parts) == 4 else {}
