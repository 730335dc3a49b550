"""Charts as SVG, drawn by the server; their colours are in the style sheet."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

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
    line = [
        f"{WIDTH - (now - when) / span * WIDTH:.1f},{HEIGHT - 1 - value / top * (HEIGHT - 2):.1f}"
        for when, value in points
    ]
    first = line[0].partition(",")[0]
    area = " ".join([f"{first},{HEIGHT}", *line, f"{WIDTH},{HEIGHT}"])
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" role="img" preserveAspectRatio="none">'
        '<title>{}</title><polygon points="{}"/><polyline points="{}"/></svg>'
    ).format(WIDTH, HEIGHT, title, area, " ".join(line))
