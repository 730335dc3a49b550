"""The run as a picture: arrivals, backlog and latency over time."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from examples.demo import DemoError
from examples.demo.results import Delivery, Measurements, percentile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#22303c"
ARRIVALS = "#9db4c0"
CONSUMER = "#0072b2"
SPARK = "#d55e00"

STYLE = Path(__file__).with_name("chart.mplstyle")

BINS = 120
FINE_BINS = 400

MARGINS = {"left": 0.07, "right": 0.98, "top": 0.89, "bottom": 0.07, "hspace": 0.24}

Curve = tuple[list[float], list[int]]


def require_matplotlib() -> None:
    """Raise `DemoError` if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise DemoError(
            "The chart needs matplotlib, which is not installed.",
            hint="pip install matplotlib",
        )


def draw(path: Path, measured: Measurements) -> None:
    """Write the chart; the file name's ending gives the format."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(fname=STYLE):
        figure = Figure(figsize=(10, 8), dpi=150)
        FigureCanvasAgg(figure)
        arrivals, backlog, latency = figure.subplots(3, sharex=True, gridspec_kw=MARGINS)
        figure.suptitle(
            _title(measured), x=MARGINS["left"], ha="left", fontsize=14, fontweight="bold"
        )
        _draw_arrivals(arrivals, measured)
        _draw_backlog(backlog, measured)
        _draw_latency(latency, measured)
        latency.set_xlabel("seconds since the first commit")
        last = [delivery.at for delivery in (*measured.deliveries, *measured.ranges)]
        latency.set_xlim(0, max(last) - measured.start)
        try:
            figure.savefig(path)
        except (OSError, ValueError) as error:
            raise DemoError(f"The chart cannot be written: {error}") from error


def _draw_arrivals(axes: Axes, measured: Measurements) -> None:
    width = _length(measured) / BINS
    rates = [0.0] * (BINS + 1)
    for commit in measured.commits:
        rates[int((commit.at - measured.start) / width)] += commit.rows / width
    axes.stairs(rates, [n * width for n in range(BINS + 2)], fill=True, color=ARRIVALS, linewidth=0)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    _headline(axes, "Arrivals", "events committed a second")


def _draw_backlog(axes: Axes, measured: Measurements) -> None:
    # A few events wait for the one, a hundred thousand for the other: a log scale shows both.
    axes.set_yscale("symlog", linthresh=10)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    curves = [("Consumer", CONSUMER, measured.deliveries)]
    if measured.ranges:
        curves.append(("SparkConsumer", SPARK, measured.ranges))
    for place, (name, colour, deliveries) in enumerate(reversed(curves)):
        peaks, edges = _peaks(_backlog(measured, deliveries))
        axes.stairs(peaks, edges, fill=True, color=colour, alpha=0.15, linewidth=0)
        axes.stairs(peaks, edges, color=colour, linewidth=1.4)
        axes.text(
            1 - 0.15 * place, 1.04, name, transform=axes.transAxes, ha="right", color=colour,
            fontweight="bold",
        )  # fmt: skip
    axes.set_ylim(bottom=0)
    _headline(axes, "Backlog", "events committed and not yet delivered, at most")


def _draw_latency(axes: Axes, measured: Measurements) -> None:
    latencies = measured.latencies()
    times = [at - measured.start for at, _ in latencies]
    millis = [seconds * 1000 for _, seconds in latencies]
    axes.scatter(times, millis, s=3, color=CONSUMER, alpha=0.25, linewidths=0)
    for percent, style in ((50, "solid"), (99, (0, (4, 2)))):
        value = percentile(millis, percent)
        axes.axhline(value, color=INK, linewidth=1, linestyle=style)
        axes.annotate(
            f"p{percent}  {value:,.1f} ms ", (1, value), xycoords=("axes fraction", "data"),
            xytext=(0, 3), textcoords="offset points", ha="right", va="bottom", fontweight="bold",
            bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 1},
        )  # fmt: skip
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,g}")
    _headline(axes, "Latency", "milliseconds from COMMIT to the Consumer's method, by transaction")


def _headline(axes: Axes, name: str, unit: str) -> None:
    axes.set_title(f"{name}  ", loc="left", fontsize=11, fontweight="bold")
    axes.annotate(
        unit, (0, 1), xycoords="axes fraction", xytext=(70, 6), textcoords="offset points",
        alpha=0.75,
    )  # fmt: skip


def _title(measured: Measurements) -> str:
    return (
        f"{measured.events:,} events of {len(measured.commits):,} transactions"
        f" through pgqpy in {_length(measured):.0f} seconds"
    )


def _length(measured: Measurements) -> float:
    return max(measured.commits[-1].at - measured.start, 1e-3)


def _backlog(measured: Measurements, deliveries: Sequence[Delivery]) -> Curve:
    """Return the number of pending events after each commit and delivery."""
    changes = [(commit.at, commit.rows) for commit in measured.commits]
    changes += [(delivery.at, -delivery.events) for delivery in deliveries]
    # The clock is read before COMMIT, so no delivery precedes its commit.
    changes.sort()
    waiting = accumulate(change for _, change in changes)
    return [at - measured.start for at, _ in changes], list(waiting)


def _peaks(curve: Curve) -> tuple[list[int], list[float]]:
    """Return the highest point in each of some hundred intervals, and the intervals' edges."""
    times, values = curve
    width = max(times[-1], 1e-3) / FINE_BINS
    peaks = [0] * FINE_BINS
    stretch = before = 0
    for time, value in zip(times, values, strict=True):
        arrived = min(int(time / width), FINE_BINS - 1)
        # An interval without changes keeps the level at which the one before it ended.
        for quiet in range(stretch + 1, arrived + 1):
            peaks[quiet] = before
        stretch = arrived
        peaks[stretch] = max(peaks[stretch], value)
        before = value
    return peaks, [n * width for n in range(FINE_BINS + 1)]
