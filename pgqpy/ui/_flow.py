"""A flow of tasks as a graph: its steps from left to right, each behind those it waits for."""

from __future__ import annotations

from collections import Counter
from typing import Any
from urllib.parse import urlencode

from psycopg.rows import class_row

from pgqpy.connection import Connection
from pgqpy.errors import InvalidTask, PgqError, translate_errors
from pgqpy.tasks import FlowStep
from pgqpy.ui._graph import BOXES, Box, draw
from pgqpy.ui._piece import IN_LIST, piece
from pgqpy.ui._view import Look, View

#: Steps that are drawn singly, steps in the table.
SINGLE, LISTED = 40, 200
#: With a piece of each result, as text.
STEPS = f"""
select nr, id, name, queue, after, state, attempts, {piece("error")}, {piece("result")}
  from pgq_task.get_flow(%(flow)s::int8)
"""
TONES = {"finished": "good", "failed": "bad", "removed": "bad", "claimed": "warn"}


class FlowNotFound(PgqError):
    """There is no flow of this number."""


def boxes(steps: list[FlowStep]) -> list[Box]:
    """Arrange steps, those with lower numbers first. Many of them are drawn together."""
    single = len(steps) <= SINGLE
    column: dict[int, int] = {}
    found: dict[tuple[int, object], int] = {}
    box_of: dict[int, int] = {}
    rows: Counter[int] = Counter()
    drawn: list[Box] = []
    states: list[Counter[str]] = []
    for step in steps:
        column[step.nr] = at = max((column[each] + 1 for each in step.after), default=0)
        name = step.name or step.queue
        key = at, step.nr if single else name
        if key not in found:
            found[key] = len(drawn)
            drawn.append(Box(at, rows[at], name, url=address(step) if single else ""))
            states.append(Counter())
            rows[at] += 1
        box_of[step.nr] = found[key]
        states[found[key]][step.state or "not readable"] += 1
        drawn[found[key]].after |= {box_of[each] for each in step.after}
    for box, counts in zip(drawn, states, strict=True):
        tones = {TONES.get(state, "plain") for state in counts}
        box.tone = next((each for each in ("bad", "warn", "plain") if each in tones), "good")
        counted = ", ".join(f"{count:,} {state}" for state, count in counts.most_common())
        box.lines = [next(iter(counts)) if single else counted]
    return drawn


def address(step: FlowStep) -> str:
    """Return the page of a step's task."""
    if step.state in ("finished", "removed"):
        return f"/finished_task?{urlencode({'name': step.queue, 'id': step.id})}"
    return f"/task?id={step.id}"


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
