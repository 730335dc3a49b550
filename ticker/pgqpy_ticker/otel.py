"""The metrics over OpenTelemetry, with the names and labels of the page for Prometheus."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from pgqpy_ticker.metrics import METRICS, samples
from pgqpy_ticker.served import OPERATIONS, ROUNDS, Histogram, Record, Served

_BOUNDS = {"pgqpy_ticker_round_seconds": ROUNDS, "pgqpy_maintenance_seconds": OPERATIONS}
_FIRST = next(iter(METRICS))


def measure(meter: Meter, served: Callable[[], list[Served]]) -> Record:
    """Make an instrument for each metric. ``served`` returns the databases that are served now.

    Returns what takes durations: OpenTelemetry cannot ask for the state of a histogram.
    """
    found: dict[str, list[Observation]] = defaultdict(list)

    def ask(name: str, _: CallbackOptions) -> list[Observation]:
        # A reader asks in the order of creation; this makes it one pass over all of them.
        if name == _FIRST:
            found.clear()
            for each, labels, value in samples(served()):
                if not isinstance(value, Histogram):
                    found[each].append(Observation(float(value), labels))
        return found[name]

    histograms = {}
    for name, (kind, about) in METRICS.items():
        unit = "s" if name.endswith("_seconds") else ""
        if kind == "histogram":
            histograms[name] = meter.create_histogram(
                name, unit, about, explicit_bucket_boundaries_advisory=_BOUNDS[name]
            )
        elif kind == "counter":
            meter.create_observable_counter(name, [partial(ask, name)], unit, about)
        else:
            meter.create_observable_gauge(name, [partial(ask, name)], unit, about)
    return lambda name, seconds, labels: histograms[name].record(seconds, labels)
