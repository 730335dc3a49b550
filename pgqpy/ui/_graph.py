"""A graph of boxes from left to right, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

#: Boxes in a drawing.
BOXES = 200
WIDTH, LINE, GAP_X, GAP_Y = 170, 16, 50, 16


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
    """Draw boxes; what leads back is a dashed line, below them."""
    shown = drawn[:BOXES]
    height = 28 + LINE * max(len(box.lines) for box in shown)
    lines, rects = Markup(""), Markup("")

    def place(box: Box) -> tuple[int, int]:
        return 2 + box.column * (WIDTH + GAP_X), 2 + box.row * (height + GAP_Y)

    for box in shown:
        x, y = place(box)
        for before in sorted(each for each in box.after if each < len(shown)):
            lines += _line(*place(shown[before]), x, y, height)
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
            *(box.name, ", ".join(box.lines)),
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
    start, end = y + height, to_y + height
    return Markup('<path class="back" d="M{} {}C{} {} {} {} {} {}l-3 6m3 -6l5 4"/>').format(
        *(x + WIDTH - 30, start, x + WIDTH - 40, start + 20, to_x + 40, end + 20, to_x + 30, end)
    )


def _short(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:23]}…"
