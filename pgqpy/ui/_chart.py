"""Charts as SVG, drawn by the server; their colours are in the style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from markupsafe import Markup, escape

WIDTH = 120
HEIGHT = 24


def sparkline(points: Sequence[tuple[float, float]], span: float, title: str) -> Markup:
    """Draw values over time; points are (seconds, value), the last one is now.

    The right edge is now, the left one ``span`` seconds ago.
    """
    if len(points) < 2:
        return Markup("")
    top = max(value for _, value in points) or 1
    now = points[-1][0]
    # The largest value of each unit of the width, and no points on a level line.
    high: dict[int, int] = {}
    for when, value in points:
        x = round(WIDTH - (now - when) / span * WIDTH)
        high[x] = min(high.get(x, HEIGHT), round(HEIGHT - 1 - value / top * (HEIGHT - 2)))
    places = list(high.items())
    line = " ".join(
        f"{x},{y}"
        for (_, before), (x, y), (_, after) in zip(
            [(0, None), *places], places, [*places[1:], (0, None)], strict=False
        )
        if not before == y == after
    )
    # Not by Markup.format(), which is slow: a page has hundreds.
    return Markup(
        f'<svg class="spark" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" preserveAspectRatio="none">'
        f"<title>{escape(title)}</title>"
        f'<polygon points="{places[0][0]},{HEIGHT} {line} {WIDTH},{HEIGHT}"/>'
        f'<polyline points="{line}"/></svg>'
    )


def timeline(oldest: datetime, position: datetime, newest: datetime) -> Markup:
    """Draw what is kept of a queue: what a consumer has read, and what it has not."""
    span = (newest - oldest).total_seconds() or 1
    read = min(max((position - oldest).total_seconds() / span, 0), 1) * 100
    return Markup(
        '<svg class="timeline" viewBox="0 0 100 10" role="img" preserveAspectRatio="none">'
        "<title>{:.0f} % of the time that is kept has been read</title>"
        '<rect class="unread" width="100" height="10"/><rect width="{:.2f}" height="10"/></svg>'
    ).format(read, read)
