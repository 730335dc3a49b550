"""A graph of boxes from left to right, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

#: Boxes in a drawing.
BOXES = 200
WIDTH, LINE, GAP_X, GAP_Y, MARGIN = 170, 16, 50, 16, 24


@dataclass(slots=True)
class Box:
    """A box, and the numbers of those from which a line leads to it."""

    column: int
    row: int
    name: str
    after: set[int] = field(default_factory=set)
    tone: str = "plain"
    #: What it says below its name.
    lines: Sequence[str] = ()
    #: What it is about, below the root of the console.
    url: str = ""


def draw(drawn: Sequence[Box], root: str, label: str) -> Markup:
    """Draw boxes; what leads back is a dashed line around them."""
    shown = drawn[:BOXES]
    height = 28 + LINE * max(len(box.lines) for box in shown)
    ways = [
        (shown[before], box) for box in shown for before in sorted(box.after) if before < len(shown)
    ]
    left = MARGIN if any(before.column >= box.column for before, box in ways) else 2
    lines, rects = Markup(""), Markup("")

    def place(box: Box) -> tuple[int, int]:
        return left + box.column * (WIDTH + GAP_X), 2 + box.row * (height + GAP_Y)

    for before, box in ways:
        lines += _line(*place(before), *place(box), height)
    for box in shown:
        x, y = place(box)
        text = Markup("").join(
            Markup('<text x="{}" y="{}" class="quiet">{}</text>').format(
                x + 9, y + 19 + LINE * nr, _short(line)
            )
            for nr, line in enumerate(box.lines, 1)
        )
        inner = Markup(
            '<title>{}: {}</title><rect x="{}" y="{}" width="{}" height="{}" rx="5" class="{}"/>'
            '<text x="{}" y="{}">{}</text>{}'
        ).format(
            *(box.name, ", ".join(filter(None, box.lines))),
            *(x, y, WIDTH, height, box.tone),
            *(x + 9, y + 19, _short(box.name), text),
        )
        if box.url:
            rects += Markup('<a href="{}">{}</a>').format(root + box.url, inner)
        else:
            rects += Markup("<g>{}</g>").format(inner)
    wide = max(place(box)[0] for box in shown) + WIDTH + 2
    high = max(place(box)[1] for box in shown) + height + GAP_Y
    return Markup(
        '<svg class="graph" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="group"'
        ' aria-label="{2}">{3}{4}</svg>'
    ).format(wide, high, label, lines, rects)


def _line(x: int, y: int, to_x: int, to_y: int, height: int) -> Markup:
    """Draw a line between two boxes at these places."""
    if to_x > x:
        start, end, middle = y + height // 2, to_y + height // 2, to_x - GAP_X // 2
        return Markup('<path d="M{} {}C{} {} {} {} {} {}"/>').format(
            *(x + WIDTH, start, middle, start, middle, end, to_x, end)
        )
    below, beside, end = y + height + GAP_Y // 2, to_x - MARGIN // 2, to_y + height // 2
    return Markup('<path class="back" d="M{} {}V{}H{}V{}H{}"/><path d="M{} {}l6 4l-6 4"/>').format(
        *(x + WIDTH // 2, y + height, below, beside, end, to_x), to_x - 6, end - 4
    )


def _short(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:23]}…"
