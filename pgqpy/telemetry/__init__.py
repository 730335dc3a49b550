"""Traces from the producer's transaction to the effect, and metrics, with OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgqpy.telemetry import _spans as spans
from pgqpy.telemetry._carried import carried

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import TracerProvider

    from pgqpy.event import Event
    from pgqpy.tasks import Task

__all__ = ["context_of", "headers", "instrument", "meter", "uninstrument"]


def instrument(
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    *,
    each: bool = False,
) -> None:
    """Switch it on, in this process: consumers and workers make spans, and all is measured.

    Events and tasks that are sent in a span that is recorded carry its trace. Batches and tasks
    have spans; with ``each`` also each call that sends, and each event that carries a trace.
    Providers that are not given are OpenTelemetry's global ones. Raises ImportError without the
    extra ``otel``.
    """
    try:
        from pgqpy.telemetry._otel import Spans
    except ModuleNotFoundError as error:
        raise ImportError('telemetry needs OpenTelemetry: pip install "pgqpy[otel]"') from error
    spans.active = Spans(tracer_provider, meter_provider, each=each)


def uninstrument() -> None:
    """Switch it off."""
    spans.active = None


def meter() -> Meter | None:
    """Return the meter of pgqpy's metrics; None if telemetry is off."""
    return None if spans.active is None else spans.active.meter


def headers(item: Event | Task | None = None) -> dict[str, str]:
    """Return the current trace as W3C's headers ``traceparent`` and, if there is one,
    ``tracestate``; or that of an event or a task.

    Empty if the current span is not recorded, or telemetry is off; if the event or task has none.
    """
    if item is not None:
        return carried(item)
    return {} if spans.active is None else spans.active.headers()


def context_of(item: Event | Task) -> Context:
    """Return the current context with the span that has sent an event or a task.

    It is the ``context`` of ``tracer.start_as_current_span``. Without a trace, or if telemetry
    is off, it is the current one.
    """
    from opentelemetry.context import get_current

    named = carried(item)
    if spans.active is None or not named:
        return get_current()
    return spans.active.context(named)
