"""The examples of docs/tasks-pipelines.md do what the page says."""

from __future__ import annotations

from typing import Any

import pytest

from pgqpy.tasks import PipelineWorker, Tasks
from tests.fixtures.fix_db import Connection
from tests.fixtures.pages import blocks, run, text_of

PAGE = text_of("tasks-pipelines.md")


def test_the_page(conn: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGQPY_DSN", dsn)
    conn.execute("create table parcel (item text)")
    conn.execute("create table bill (order_id int, sum int)")
    conn.execute("create table refused (order_id int)")
    page: dict[str, Any] = {"__name__": __name__}
    (block,) = blocks(PAGE)
    run(block, page)
    assert conn.execute("select item from parcel order by 1").fetchall() == [("book",), ("pen",)]
    assert conn.execute("select * from bill").fetchall() == [(7, 20)]

    tasks, orders = Tasks(conn), page["orders"]
    for reminders in (1, 3):
        unpaid = {"id": 8 + reminders, "paid": False, "reminders": reminders}
        tasks.push(orders.queue("check"), unpaid)
    PipelineWorker(dsn, orders).run(until_empty=True)
    assert conn.execute("select * from refused").fetchall() == [(11,)]
    (later,) = tasks.list("orders.check")
    assert (later.payload["reminders"], later.status) == (2, "scheduled")
