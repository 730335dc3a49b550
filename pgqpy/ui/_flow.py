"""A flow of tasks as a graph: its steps from left to right, each behind those it waits for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup
from psycopg.rows import class_row

from pgqpy.connection import Connection
from pgqpy.errors import InvalidTask, PgqError, translate_errors
from pgqpy.tasks import FlowStep
from pgqpy.ui._piece import IN_LIST, piece
from pgqpy.ui._view import Look, View

#: Steps that are drawn singly, boxes in the drawing, steps in the table.
SINGLE, BOXES, LISTED = 40, 200, 200
WIDTH, HEIGHT, GAP_X, GAP_Y = 170, 44, 50, 16
#: With a piece of each result, as text.
STEPS = f"""
select nr, id, name, queue, after, state, attempts, {piece("error")}, {piece("result")}
  from pgq_task.get_flow(%(flow)s::int8)
"""
TONES = {"finished": "good", "failed": "bad", "removed": "bad", "claimed": "warn"}


class FlowNotFound(PgqError):
    """There is no flow of this number."""


@dataclass(slots=True)
class Box:
    """One step, or all with the same name and distance from the start."""

    column: int
    row: int
    name: str
    states: Counter[str] = field(default_factory=Counter)
    after: set[int] = field(default_factory=set)
    #: The one step that it is.
    step: FlowStep | None = None

    @property
    def tone(self) -> str:
        tones = {TONES.get(state, "plain") for state in self.states}
        for tone in ("bad", "warn", "plain"):
            if tone in tones:
                return tone
        return "good"

    @property
    def says(self) -> str:
        if self.step is not None:
            return next(iter(self.states))
        return ", ".join(f"{count:,} {state}" for state, count in self.states.most_common())

    @property
    def place(self) -> tuple[int, int]:
        return 2 + self.column * (WIDTH + GAP_X), 2 + self.row * (HEIGHT + GAP_Y)


def boxes(steps: list[FlowStep]) -> list[Box]:
    """Arrange steps, those with lower numbers first. Many of them are drawn together."""
    single = len(steps) <= SINGLE
    column: dict[int, int] = {}
    found: dict[tuple[int, object], int] = {}
    box_of: dict[int, int] = {}
    rows: Counter[int] = Counter()
    drawn: list[Box] = []
    for step in steps:
        column[step.nr] = at = max((column[each] + 1 for each in step.after), default=0)
        name = step.name or step.queue
        key = at, step.nr if single else name
        if key not in found:
            found[key] = len(drawn)
            drawn.append(Box(at, rows[at], name, step=step if single else None))
            rows[at] += 1
        box_of[step.nr] = found[key]
        box = drawn[found[key]]
        box.states[step.state or "not readable"] += 1
        box.after |= {box_of[each] for each in step.after}
    return drawn


def address(step: FlowStep, root: str) -> str:
    """Return the page of a step's task."""
    if step.state in ("finished", "removed"):
        return f"{root}/finished_task?{urlencode({'name': step.queue, 'id': step.id})}"
    return f"{root}/task?id={step.id}"


def draw(drawn: list[Box], root: str) -> Markup:
    """Draw boxes and what each waits for; a single step leads to its task."""
    shown = drawn[:BOXES]
    lines, rects = Markup(""), Markup("")
    for box in shown:
        x, y = box.place
        for before in sorted(box.after):
            a, b = shown[before].place
            a, b, middle = a + WIDTH, b + HEIGHT // 2, x - GAP_X // 2
            lines += Markup('<path d="M{} {}C{} {} {} {} {} {}"/>').format(
                a, b, middle, b, middle, y + HEIGHT // 2, x, y + HEIGHT // 2
            )
        inner = Markup(
            '<rect x="{}" y="{}" width="{}" height="{}" rx="5" class="{}"/>'
            '<text x="{}" y="{}">{}</text><text x="{}" y="{}" class="quiet">{}</text>'
        ).format(
            *(x, y, WIDTH, HEIGHT, box.tone),
            *(x + 9, y + 19, _short(box.name)),
            *(x + 9, y + 35, _short(box.says)),
        )
        title = Markup("<title>{}: {}</title>").format(box.name, box.says)
        if box.step is None:
            rects += Markup("<g>{}{}</g>").format(title, inner)
        else:
            rects += Markup('<a href="{}">{}{}</a>').format(address(box.step, root), title, inner)
    wide = max(box.place[0] for box in shown) + WIDTH + 2
    high = max(box.place[1] for box in shown) + HEIGHT + 2
    return Markup(
        '<svg class="graph" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="group"'
        ' aria-label="Steps of the flow">{2}{3}</svg>'
    ).format(wide, high, lines, rects)


def _short(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:23]}…"


def flow(look: Look) -> dict[str, Any]:
    text = look.query.get("id", "")
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise _unknown(text)
    try:
        with look.visit.conn.transaction():
            steps = _steps(look.visit.conn, int(text))
    except InvalidTask:
        raise _unknown(text) from None
    return {
        "id": text,
        "steps": steps[:LISTED],
        "total": len(steps),
        "states": Counter(step.state or "not readable" for step in steps),
        "boxes": boxes(steps),
        "most": BOXES,
        "draw": draw,
        "address": address,
        "tones": TONES,
    }


def _steps(conn: Connection, number: int) -> list[FlowStep]:
    with translate_errors(), conn.cursor(row_factory=class_row(FlowStep)) as cursor:
        return cursor.execute(STEPS.encode(), IN_LIST | {"flow": number}).fetchall()


def _unknown(text: str) -> FlowNotFound:
    return FlowNotFound(
        f"there is no flow {text:.80}", hint="a flow is known until a day after its end"
    )


VIEWS = [View("flow", "Flow", flow, menu="task_queues")]
