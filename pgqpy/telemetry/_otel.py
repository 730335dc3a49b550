"""Spans and metrics of OpenTelemetry, by its semantic conventions for messaging."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from time import monotonic, time_ns
from typing import Any, Self

from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pgqpy._wire.event_data import json_text
from pgqpy.event import Event, UnreadableEvent
from pgqpy.telemetry._carried import EVENTS, OFF, TASKS, Span, carried, carried_by

#: Links of a batch's span; more are cut off by the SDK, too.
MOST_LINKS = 128
#: Names of jobs in names of spans and attributes of metrics.
MOST_JOBS = 500

#: A traceparent.
_IDS = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
#: The attributes of metrics.
_FEW = (
    *("messaging.system", "messaging.operation.name", "messaging.consumer.group.name"),
    "pgqpy.job.name",
)


class Spans:
    """Makes the spans; each is measured, too.

    Unless ``each``, a call that sends has no span, only its measurement, and an event one only if
    it fails: a span costs as much as a third of an insert.
    """

    def __init__(
        self,
        tracers: trace.TracerProvider | None,
        meters: metrics.MeterProvider | None,
        *,
        each: bool = False,
    ) -> None:
        self._each = each
        provider = metrics.get_meter_provider() if meters is None else meters
        #: Whether there is a provider: that of the API does nothing.
        self.measures = not type(provider).__module__.startswith("opentelemetry.metrics")
        self.tracer = trace.get_tracer("pgqpy", version("pgqpy"), tracers)
        self.meter = meter = metrics.get_meter("pgqpy", version("pgqpy"), meters)
        operation = meter.create_histogram("messaging.client.operation.duration", "s")
        process = meter.create_histogram("messaging.process.duration", "s")
        sent = meter.create_counter("messaging.client.sent.messages", "{message}")
        consumed = meter.create_counter("messaging.client.consumed.messages", "{message}")
        #: By the operation's type.
        self.meters = {"send": (operation, sent), "process": (process, consumed)}
        self._propagator = TraceContextTextMapPropagator()
        self._jobs: set[str] = set()

    def headers(self) -> dict[str, str]:
        """Return the current trace as W3C's headers; empty if it is not recorded."""
        headers: dict[str, str] = {}
        if trace.get_current_span().get_span_context().trace_flags.sampled:
            self._propagator.inject(headers)
        return headers

    def text(self) -> str | None:
        """Return `headers` as JSON; None if there are none."""
        context = trace.get_current_span().get_span_context()
        if not context.trace_flags.sampled:
            return None
        if context.trace_state:
            return json_text(self.headers())
        ids = f"{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        return f'{{"traceparent":"00-{ids}"}}'

    def context(self, headers: dict[str, str]) -> Context:
        """Return the current context, with the span that the headers name as its span."""
        return self._propagator.extract(headers, contexts.get_current())

    def sender(self, headers: dict[str, str]) -> SpanContext:
        """Return the span that the headers name; an invalid one if they name none."""
        # The propagator takes five times as long.
        if "tracestate" not in headers and (ids := _IDS.fullmatch(headers.get("traceparent", ""))):
            trace_id, span_id, flags = (int(number, 16) for number in ids.groups())
            return SpanContext(trace_id, span_id, True, trace.TraceFlags(flags))
        named = self._propagator.extract(headers, Context())
        return trace.get_current_span(named).get_span_context()

    def measure(
        self, attributes: dict[str, Any], began: float, count: int, error: BaseException | None
    ) -> None:
        """Measure a block since ``began``, of the monotonic clock, and count its messages."""
        if not self.measures:
            return
        few = {name: attributes[name] for name in _FEW if name in attributes}
        few["messaging.destination.name"] = _short(attributes["messaging.destination.name"])
        if error is not None:
            few |= _type_of(error)
        duration, messages = self.meters[attributes["messaging.operation.type"]]
        duration.record(monotonic() - began, few)
        messages.add(count, few)

    def _few_jobs(self, name: str) -> str:
        """Return the job's name, or ``_OTHER``: any payload can name one."""
        if name not in self._jobs and len(self._jobs) == MOST_JOBS:
            return "_OTHER"
        self._jobs.add(name)
        return name

    def sending(self, system: str, queue: str) -> Span:
        if not self._each:
            return _Sending(self, system, queue) if self.measures else OFF
        attributes = _attributes(system, queue, "send", "send")
        return _Measured(self, f"send {_short(queue)}", SpanKind.PRODUCER, attributes)

    def batch(self, batch: Any) -> Span:
        # A heartbeat of an idle queue, for instance.
        if isinstance(batch.source, Sequence) and not batch.source:
            return Span()
        return _BatchSpan(self, batch)

    def one_by_one(self, batch: Any) -> _Current | None:
        # Without a watch there is no span of the batch, at whose end this one is detached.
        if self._each or batch.watch is None:
            return None
        current = _Current(self, batch)
        contexts.attach(trace.set_span_in_context(current))
        return current

    def event(self, batch: Any, event: Event) -> Span:
        return self.event_span(batch, event) if self._each else _Continuing(self, batch, event)

    def event_span(self, batch: Any, event: Event) -> _Measured:
        attributes = _attributes(EVENTS, batch.queue, "process_event", "process")
        attributes["messaging.consumer.group.name"] = batch.consumer
        attributes["messaging.message.id"] = str(event.id)
        around = trace.get_current_span().get_span_context()
        span = _Measured(self, f"process_event {batch.queue}", SpanKind.CONSUMER, attributes)
        span.parent, span.links = self.context(carried(event)), [Link(around)]
        span.counts = False
        return span

    def tasks(self, way: str, tasks: Sequence[Any]) -> Span:
        first = tasks[0]
        queue = first.queue
        attributes = _attributes(TASKS, queue, way, "process")
        if way == "process_batch":
            span = _Measured(self, f"{way} {_short(queue)}", SpanKind.CONSUMER, attributes)
            found = [headers for task in tasks if (headers := carried(task))]
            span.links = [Link(self.sender(headers)) for headers in found[:MOST_LINKS]]
            span.count = len(tasks)
            return span
        attributes["messaging.message.id"] = str(first.id)
        attributes["pgqpy.task.attempt"] = first.attempts
        name = f"{way} {_short(queue)}"
        payload = first.payload
        if isinstance(payload, dict) and payload.keys() == {"task", "args"}:
            job = attributes["pgqpy.job.name"] = self._few_jobs(str(payload["task"]))
            name = f"{name} {job}"
        span = _Measured(self, name, SpanKind.CONSUMER, attributes)
        if headers := carried(first):
            span.parent = self.context(headers)
        return span


class _Sending(Span):
    """A call that sends, measured only."""

    def __init__(self, spans: Spans, system: str, queue: str) -> None:
        self._spans = spans
        self._attributes = _attributes(system, queue, "send", "send")

    def __enter__(self) -> Self:
        self._began = monotonic()
        return self

    def __exit__(self, *error: Any) -> None:
        count = 1 if self.count is None else self.count
        self._spans.measure(self._attributes, self._began, count, _failure(error[1]))


class _Current(NonRecordingSpan):
    """The span that has sent the event that is processed, or the batch's.

    Which one, is read if asked: a context for each event would cost more than reading it.
    """

    #: The event, and when it began, by the monotonic clock.
    event: Event | None = None
    began: float

    def __init__(self, spans: Spans, batch: Any) -> None:
        self._spans = spans
        self._batch = batch
        self._around = trace.get_current_span()

    def now(self) -> trace.Span:
        sender = self._spans.sender({} if self.event is None else carried(self.event))
        return NonRecordingSpan(sender) if sender.is_valid else self._around

    def failed(self, error: BaseException) -> None:
        """Make a span of the event, which has failed. What it does else is in its trace."""
        event, self.event = self.event, None
        if event is None or _failure(error) is None or not carried(event):
            return
        span = self._spans.event_span(self._batch, event)
        span.began = time_ns() - int((monotonic() - self.began) * 1e9), self.began
        span.__enter__().__exit__(type(error), error, error.__traceback__)


def _of_now(name: str) -> Callable[..., Any]:
    def call(current: _Current, *args: Any, **kwargs: Any) -> Any:
        return getattr(current.now(), name)(*args, **kwargs)

    return call


for _name in (*trace.Span.__abstractmethods__, "add_link"):
    setattr(_Current, _name, _of_now(_name))


class _Continuing(Span):
    """An event that is processed beside others: it has a context of its own."""

    def __init__(self, spans: Spans, batch: Any, event: Event) -> None:
        self._current = _Current(spans, batch)
        self._event = event

    def __enter__(self) -> Self:
        self._current.event, self._current.began = self._event, monotonic()
        self._token = contexts.attach(trace.set_span_in_context(self._current))
        return self

    def __exit__(self, *error: Any) -> None:
        contexts.detach(self._token)
        if error[1] is not None:
            self._current.failed(error[1])


class _Measured(Span):
    #: Its begin, if that was before: nanoseconds of the clock, seconds of the monotonic one.
    began: tuple[int | None, float] | None = None
    parent: Context | None = None
    links: Sequence[Link] = ()
    span: trace.Span
    #: Whether its events or tasks are counted; those of a batch are counted with it.
    counts = True

    def __init__(self, spans: Spans, name: str, kind: SpanKind, attributes: dict[str, Any]) -> None:
        self._start = spans, name, kind, attributes

    def __enter__(self) -> Self:
        spans, name, kind, attributes = self._start
        start, self._began = self.began or (None, monotonic())
        self.span = spans.tracer.start_span(name, self.parent, kind, attributes, self.links, start)
        self._token = contexts.attach(trace.set_span_in_context(self.span, self.parent))
        return self

    def __exit__(self, *raised: Any) -> None:
        contexts.detach(self._token)
        if self.count is not None:
            self.span.set_attribute("messaging.batch.message_count", self.count)
        if (error := _failure(raised[1])) is not None:
            self.span.set_attributes(_type_of(error))
            self.span.record_exception(error)
            self.span.set_status(StatusCode.ERROR, str(error))
        self.span.end()
        spans, _, _, attributes = self._start
        count = 1 if self.count is None else self.count
        spans.measure(attributes, self._began, count if self.counts else 0, error)


class _BatchSpan(_Measured):
    """A batch's span is linked with the spans that have sent its events, when these are read."""

    def __init__(self, spans: Spans, batch: Any) -> None:
        attributes = _attributes(EVENTS, batch.queue, "process_batch", "process")
        attributes["messaging.consumer.group.name"] = batch.consumer
        attributes["pgqpy.batch.id"] = batch.id
        super().__init__(spans, f"process_batch {batch.queue}", SpanKind.CONSUMER, attributes)
        self._spans = spans
        self._batch = batch
        self._seen: set[str | None] = set()

    def __enter__(self) -> Self:
        self._batch.watch = self._link
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._batch.watch = None
        self.count = self._batch.events_read
        super().__exit__(*error)

    def _link(self, events: Iterable[Event]) -> None:
        if len(self._seen) == MOST_LINKS:
            return
        try:
            texts = dict.fromkeys([event.extra4 for event in events])
        except ValueError:  # The texts of one are not UTF-8.
            readable = (event for event in events if not isinstance(event, UnreadableEvent))
            texts = dict.fromkeys([event.extra4 for event in readable])
        # Events that were sent together have one trace.
        for text in texts:
            if text not in self._seen and (headers := carried_by(text)):
                self._seen.add(text)
                self.span.add_link(self._spans.sender(headers))
                if len(self._seen) == MOST_LINKS:
                    return


def _attributes(system: str, queue: str, name: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": system,
        "messaging.destination.name": queue,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }


def _failure(error: BaseException | None) -> Exception | None:
    """Return an error if it is a failure, not a retry that was asked for, or the program's end."""
    if isinstance(error, Exception) and getattr(error, "is_failure", True):
        return error
    return None


def _type_of(error: BaseException) -> dict[str, str]:
    return {"error.type": type(error).__qualname__}


def _short(queue: str) -> str:
    """Return a queue's name without its tenant: names of spans must be few."""
    return queue.partition("/")[0]
