"""Spans and metrics of OpenTelemetry, by its semantic conventions for messaging."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from time import monotonic
from types import TracebackType
from typing import Any, Self

from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pgqpy.event import Event, UnreadableEvent
from pgqpy.telemetry._spans import EVENTS, TASKS, Span, carried, carried_by

#: Links of a batch's span; more are cut off by the SDK, too.
MOST_LINKS = 128
#: Names of jobs in names of spans and attributes of metrics.
MOST_JOBS = 500

#: The attributes of metrics.
_FEW = (
    *("messaging.system", "messaging.operation.name", "messaging.consumer.group.name"),
    "pgqpy.job.name",
)


class Spans:
    """Makes the spans; each is measured, too."""

    def __init__(
        self, tracers: trace.TracerProvider | None, meters: metrics.MeterProvider | None
    ) -> None:
        self.tracer = trace.get_tracer("pgqpy", version("pgqpy"), tracers)
        meter = metrics.get_meter("pgqpy", version("pgqpy"), meters)
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

    def context(self, headers: dict[str, str]) -> Context:
        """Return the current context, with the span that the headers name as its span."""
        return self._propagator.extract(headers, contexts.get_current())

    def link(self, headers: dict[str, str]) -> SpanContext:
        return trace.get_current_span(self.context(headers)).get_span_context()

    def _few_jobs(self, name: str) -> str:
        """Return the job's name, or ``_OTHER``: any payload can name one."""
        if name not in self._jobs and len(self._jobs) == MOST_JOBS:
            return "_OTHER"
        self._jobs.add(name)
        return name

    def sending(self, system: str, queue: str) -> Span:
        attributes = _attributes(system, queue, "send", "send")
        return _Measured(self, f"send {_short(queue)}", SpanKind.PRODUCER, attributes)

    def batch(self, batch: Any) -> Span:
        # A heartbeat of an idle queue, for instance.
        if isinstance(batch.source, Sequence) and not batch.source:
            return Span()
        return _BatchSpan(self, batch)

    def event(self, batch: Any, event: Event, headers: dict[str, str]) -> Span:
        attributes = _attributes(EVENTS, batch.queue, "process_event", "process")
        attributes["messaging.consumer.group.name"] = batch.consumer
        attributes["messaging.message.id"] = str(event.id)
        around = trace.get_current_span().get_span_context()
        span = _Measured(self, f"process_event {batch.queue}", SpanKind.CONSUMER, attributes)
        span.parent, span.links = self.context(headers), [Link(around)]
        span.counts = False
        return span

    def tasks(self, way: str, tasks: Sequence[Any]) -> Span:
        first = tasks[0]
        queue = first.queue
        attributes = _attributes(TASKS, queue, way, "process")
        if way == "process_batch":
            span = _Measured(self, f"{way} {_short(queue)}", SpanKind.CONSUMER, attributes)
            found = [headers for task in tasks if (headers := carried(task))]
            span.links = [Link(self.link(headers)) for headers in found[:MOST_LINKS]]
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


class _Measured(Span):
    parent: Context | None = None
    links: Sequence[Link] = ()
    span: trace.Span
    #: Whether its events or tasks are counted; those of a batch are counted with it.
    counts = True

    def __init__(self, spans: Spans, name: str, kind: SpanKind, attributes: dict[str, Any]) -> None:
        self._start = spans, name, kind, attributes

    def __enter__(self) -> Self:
        spans, name, kind, attributes = self._start
        self._began = monotonic()
        self.span = spans.tracer.start_span(name, self.parent, kind, attributes, self.links)
        self._token = contexts.attach(trace.set_span_in_context(self.span, self.parent))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        contexts.detach(self._token)
        if self.count is not None:
            self.span.set_attribute("messaging.batch.message_count", self.count)
        if not isinstance(error, Exception) or not getattr(error, "is_failure", True):
            error = None
        if error is not None:
            self.span.set_attribute("error.type", type(error).__qualname__)
            self.span.record_exception(error)
            self.span.set_status(StatusCode.ERROR, str(error))
        self.span.end()
        self._measure(error)

    def _measure(self, error: BaseException | None) -> None:
        spans, _, _, attributes = self._start
        few = {name: attributes[name] for name in _FEW if name in attributes}
        few["messaging.destination.name"] = _short(attributes["messaging.destination.name"])
        if error is not None:
            few["error.type"] = type(error).__qualname__
        duration, messages = spans.meters[attributes["messaging.operation.type"]]
        duration.record(monotonic() - self._began, few)
        if self.counts:
            messages.add(1 if self.count is None else self.count, few)


class _BatchSpan(_Measured):
    """A batch's span is linked with the spans that have sent its events, when these are read."""

    def __init__(self, spans: Spans, batch: Any) -> None:
        attributes = _attributes(EVENTS, batch.queue, "process_batch", "process")
        attributes["messaging.consumer.group.name"] = batch.consumer
        attributes["pgqpy.batch.id"] = batch.id
        super().__init__(spans, f"process_batch {batch.queue}", SpanKind.CONSUMER, attributes)
        self._spans = spans
        self._batch = batch
        self._seen: set[str] = set()

    def __enter__(self) -> Self:
        self._batch.watch = self._link
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._batch.watch = None
        self.count = self._batch.events_read
        super().__exit__(*error)

    def _link(self, events: Iterable[Event]) -> None:
        for event in events:
            if len(self._seen) == MOST_LINKS:
                return
            text = None if isinstance(event, UnreadableEvent) else event.extra4
            # Events that were sent together have one trace.
            if text is None or text in self._seen or not (headers := carried_by(text)):
                continue
            self._seen.add(text)
            self.span.add_link(self._spans.link(headers))


def _attributes(system: str, queue: str, name: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": system,
        "messaging.destination.name": queue,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }


def _short(queue: str) -> str:
    """Return a queue's name without its tenant: names of spans must be few."""
    return queue.partition("/")[0]
