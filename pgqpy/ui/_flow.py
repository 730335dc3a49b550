"""A flow of tasks as a graph: its steps from left to right, each behind those it waits for."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pgqpy.errors import InvalidTask, translate_errors
from pgqpy.tasks import FlowStep
from pgqpy.ui._graph import BOXES, Box, draw
from pgqpy.ui._piece import IN_LIST, piece
from pgqpy.ui._view import Look, NotFound, View, address

#: Steps that are drawn singly, steps in the table.
SINGLE, LISTED = 40, 200
#: With a piece of each result, as text.
STEPS = f"""
select nr, id, name, queue, after, state, attempts, {piece("error")}, {piece("result")}
  from pgq_task.get_flow(%(flow)s::int8)
"""
TONES = {"finished": "good", "failed": "bad", "removed": "bad", "claimed": "warn"}


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
            drawn.append(Box(at, rows[at], name, url=page_of(step) if single else ""))
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


def page_of(step: FlowStep) -> str:
    """Return the page of a step's task."""
    if step.state in ("finished", "removed"):
        return address("finished_task", name=step.queue, id=step.id)
    return address("task", id=step.id)


def flow(look: Look) -> dict[str, Any]:
    try:
        if look.id is None:
            raise InvalidTask("a flow has a number")
        with look.visit.conn.transaction(), translate_errors():
            found = look.visit.rows(STEPS, IN_LIST | {"flow": look.id})
    except InvalidTask:
        raise NotFound(
            f"there is no flow {look.query.get('id', ''):.80}",
            hint="a flow is known until a day after its end",
        ) from None
    steps = [FlowStep(**each) for each in found]
    return {
        "id": look.id,
        "steps": steps[:LISTED],
        "total": len(steps),
        "states": Counter(step.state or "not readable" for step in steps),
        "boxes": boxes(steps),
        "most": BOXES,
        "draw": draw,
        "address": page_of,
        "tones": TONES,
    }


VIEWS = [View("flow", "Flow", flow, menu="task_queues")]
