"""The examples of docs/tasks-jobs.md and docs/tasks-history.md do what the pages say."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from pgqpy.tasks import Tasks
from tests.fixtures.fix_db import Connection
from tests.fixtures.pages import blocks, run, text_of

JOBS = text_of("tasks-jobs.md")
HISTORY = text_of("tasks-history.md")


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of a module, which annotations are looked up in."""
    module = ModuleType("tasks_page")
    monkeypatch.setitem(sys.modules, "tasks_page", module)
    return vars(module)


def test_jobs(
    conn: Connection, dsn: str, page: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGQPY_DSN", dsn)
    tasks = Tasks(conn)
    page |= {"tasks": tasks}
    first, periodic, schedules, limits, results, progress = blocks(JOBS)

    run(first, page)
    page["conn"] = conn
    assert tasks.statistics("mails")[0].finished == 1

    run(periodic, page)
    page["app"].worker().run(until_empty=True)
    (known,) = tasks.periodic()
    assert (known.name, known.time_zone, known.missed) == ("clean_up", "Europe/Berlin", "last")
    run(schedules, page)
    page["app"].worker().run(until_empty=True)
    assert {each.name for each in tasks.periodic()} > {"morning report", "weekly report"}

    tasks.create_queue("api")
    run(limits, page)
    assert {info.queue for info in tasks.limits()} == {"mails", "api"}

    with pytest.raises(TimeoutError):
        run(results.replace("wait=30", "wait=0"), page)
    page["app"].worker().run(until_empty=True)
    assert tasks.result(page["task_id"], wait=0) == "sent to ada@example.org"

    run(progress, page)
    page["scale"].push(conn, ["a.png", "b.png"])
    page["app"].worker().run(until_empty=True)
    assert tasks.is_empty("mails")


def test_history(
    conn: Connection, dsn: str, page: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGQPY_DSN", dsn)
    tasks = Tasks(conn)
    for queue in ("orders", "orders-again"):
        tasks.create_queue(queue)
    kept, statistics = blocks(HISTORY)
    run(kept, page)
    tasks.push("orders", {"customer": 3})
    tasks.pop("orders")
    run(kept, page)
    page["tasks"] = tasks
    assert tasks.queues("orders-again")[0].available == 1
    run(statistics, page)
    assert tasks.statistics("orders")[0].popped == 1
