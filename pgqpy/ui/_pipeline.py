"""A pipeline of tasks as a graph: its stations, as its workers have noted them, with counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pgqpy.errors import TaskQueueNotFound
from pgqpy.ui._graph import BOXES, Box, draw
from pgqpy.ui._overview import COUNTED
from pgqpy.ui._view import Look, View, address

GET_STATIONS = "pgq_task.get_stations(text)"
#: Pipelines in the list.
LISTED = 30
PIPELINES = """
select pipeline_name as name, count(*) as stations
  from pgq_task.get_stations()
 group by 1
 order by 1
 limit %s
"""
# Those that workers have noted, and those to which they lead, which may have queues already. An
# error queue comes with the first task that fails.
STATIONS = """
with noted as (
     select * from pgq_task.get_stations(%(pipeline)s) limit %(boxes)s
), named as (
     select queue_name from noted
      union
     select %(pipeline)s || '.' || target from noted cross join unnest(leads_to) target
      limit %(boxes)s
)
select substr(n.queue_name, length(%(pipeline)s) + 2) as station, i.*, s.is_start, s.leads_to,
       e.total as failed, e.exact as failed_exact
  from named n
 cross join lateral pgq_task.find_queues(array[n.queue_name]) f
 cross join lateral pgq_task.get_queue_info(f, %(counted)s) i
  left join noted s on s.queue_name = f
  left join lateral (
       select x.total, x.exact
         from pgq_task.find_queues(array[i.error_queue]) g
        cross join lateral pgq_task.get_queue_info(g, %(counted)s) x
        where g = i.error_queue) e on true
 where f = n.queue_name
 order by 1
"""
STATES = ("available", "claimed", "scheduled", "held", "stopped")


def pipelines(look: Look) -> list[dict[str, Any]]:
    """Return pipelines of which workers were seen, with their numbers of stations."""
    return look.visit.rows(PIPELINES, [LISTED]) if look.visit.may(GET_STATIONS) else []


def pipeline_of(look: Look) -> str | None:
    """Return the pipeline of which the page's queue, which the role may read, is a station."""
    statement = "select pipeline_name from pgq_task.get_stations() where queue_name = %s"
    found = look.visit.conn.execute(statement, [look.name]).fetchone()
    return found and found[0]


def pipeline(look: Look) -> dict[str, Any]:
    which = {"pipeline": look.name, "boxes": BOXES, "counted": COUNTED}
    found = look.visit.rows(STATIONS, which) if look.visit.may(GET_STATIONS) else []
    if not found:
        raise TaskQueueNotFound(
            f"no station of a pipeline {look.name:.80} is known",
            hint="its workers tell when they start; you see stations whose queues you may read",
        )
    return {
        "pipeline": look.name,
        "stations": [each for each in found if each["total"] is not None],
        "boxes": boxes(found),
        "draw": draw,
        "most": BOXES,
    }


def boxes(stations: list[dict[str, Any]]) -> list[Box]:
    """Arrange stations, each behind those that lead to it, unless that is a way back."""
    known = {each["station"]: each for each in stations}
    leads_to: dict[str, list[str]] = {n: each["leads_to"] or [] for n, each in known.items()}
    for target in sorted({target for each in leads_to.values() for target in each}):
        if len(leads_to) < BOXES:
            leads_to.setdefault(target, [])
    leads_to = {name: [to for to in each if to in leads_to] for name, each in leads_to.items()}
    starts = [name for name, each in known.items() if each["is_start"]]
    column = columns(starts, leads_to)
    rows: Counter[int] = Counter()
    numbers = {name: number for number, name in enumerate(column)}
    drawn: list[Box] = []
    for name, at in column.items():
        after = {numbers[before] for before, targets in leads_to.items() if name in targets}
        box = Box(at, rows[at], name, after, lines=("no queue", ""))
        if name in known:
            _fill(box, known[name])
        drawn.append(box)
        rows[at] += 1
    return drawn


def columns(starts: Iterable[str], leads_to: Mapping[str, list[str]]) -> dict[str, int]:
    """Return how far from a start each station is, by the longest way without a loop."""
    ended: list[str] = []
    back: set[tuple[str, str]] = set()
    path: dict[str, bool] = {}

    def follow(name: str) -> None:
        path[name] = True
        for target in leads_to[name]:
            if path.get(target):
                back.add((name, target))
            elif target not in path:
                follow(target)
        path[name] = False
        ended.append(name)

    for name in (*starts, *leads_to):
        if name not in path:
            follow(name)
    column = dict.fromkeys(reversed(ended), 0)
    for name in column:
        for target in leads_to[name]:
            if (name, target) not in back:
                column[target] = max(column[target], column[name] + 1)
    return column


def _fill(box: Box, station: Mapping[str, Any]) -> None:
    """Say how many tasks are at a station."""
    if station["total"] is None:
        box.lines = ("you may not read it", "")
        return
    at_least = "" if station["exact"] else "+"
    shown = [f"{station[name]:,}{at_least} {name}" for name in STATES if station[name]]
    shown = shown or ["no tasks"]
    is_served = station["leads_to"] is not None
    if not is_served:
        shown.insert(1, "no worker seen")
    if station["failed"]:
        box.tone = "bad"
        shown.append(f"{station['failed']:,}{'' if station['failed_exact'] else '+'} failed")
    elif station["paused"] or (station["total"] and not is_served):
        box.tone = "warn"
    elif station["claimed"]:
        box.tone = "good"
    box.lines = (shown[0], ", ".join(shown[1:]))
    box.url = address("task_queue", name=station["queue_name"])


VIEWS = [View("pipeline", "Pipeline", pipeline, menu="task_queues")]
