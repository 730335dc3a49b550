"""Periodic tasks: when they are due, in words, and their next runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from pgqpy.errors import InvalidTask
from pgqpy.tasks import PeriodicInfo, Tasks
from pgqpy.tasks._jobs.periodic import Cron
from pgqpy.ui._piece import IN_LIST, ON_PAGE, piece
from pgqpy.ui._view import Done, Look, NotFound, View

SHOWN = 5
CHANGES = {
    "run": "pgq_task.run_periodic(text)",
    "pause": "pgq_task.pause_periodic(text)",
    "resume": "pgq_task.resume_periodic(text)",
    "drop": "pgq_task.drop_periodic(text)",
}


#: With a piece of each payload, as text.
PERIODIC = f"""
select name, queue, cron, time_zone, priority, missed, last_due, last_run, paused, unique_key,
       order_key, {piece("payload")}, {piece("headers")}
  from pgq_task.get_periodic_info()
 order by name
"""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A periodic task, when it is due in words, and its next runs: none if it is paused."""

    info: PeriodicInfo
    words: str
    next: list[datetime]

    @classmethod
    def of(cls, info: PeriodicInfo, shown: int = 1) -> Schedule:
        try:
            cron = Cron(info.cron, info.time_zone)
        except InvalidTask as error:
            # Written by SQL, which knows no crons.
            return cls(info, error.message, [])
        runs = [] if info.paused else list(islice(cron.after(info.last_due), shown))
        return cls(info, cron.explain(), runs)


def schedules(look: Look) -> list[Schedule]:
    """Return all of them, by name."""
    return [Schedule.of(PeriodicInfo(**each)) for each in look.visit.rows(PERIODIC, IN_LIST)]


def periodic(look: Look) -> dict[str, Any]:
    for each in look.visit.rows(PERIODIC, ON_PAGE):
        if each["name"] == look.name:
            may = {name for name, each in CHANGES.items() if look.visit.may_change_by(each)}
            return {"schedule": Schedule.of(PeriodicInfo(**each), SHOWN), "may": may}
    raise NotFound(
        f"there is no periodic task {look.name!r:.80}",
        hint="it was dropped; a worker whose program has it creates it when it starts",
    )


def run(look: Look, form: Mapping[str, str]) -> Done:
    number = Tasks(look.visit.conn).run_periodic(look.name)
    return Done(f"pushed a run of {look.name}: task {number}", count=1)


def change(past: str, what: Callable[[Tasks, str], None]) -> Callable[..., Done]:
    """Return the action that changes the schedule, or the task queue, of the page."""

    def act(look: Look, form: Mapping[str, str]) -> Done:
        what(Tasks(look.visit.conn), look.name)
        return Done(f"{past} {look.name}", "/task_queues" if past == "dropped" else "")

    return act


VIEWS = [
    View(
        "periodic",
        "Periodic task",
        periodic,
        {
            "run": run,
            "pause": change("paused", Tasks.pause_periodic),
            "resume": change("resumed", Tasks.resume_periodic),
            "drop": change("dropped", Tasks.drop_periodic),
        },
        menu="task_queues",
    )
]
