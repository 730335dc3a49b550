"""The examples of docs/tasks.md do what the page says."""

from __future__ import annotations

from typing import Any

import pytest

from pgqpy.tasks import Tasks, TaskWorker
from tests.fixtures.fix_db import Connection
from tests.fixtures.pages import blocks, run, text_of

PAGE = text_of("tasks.md")


def test_the_page(
    conn: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PGQPY_DSN", dsn)
    tasks = Tasks(conn)
    # without, classes in the page would be of no module
    page: dict[str, Any] = {"__name__": __name__}
    first, pushing, unique, ways, outcomes, alone = blocks(PAGE)

    run(first, page)
    assert capsys.readouterr().out == "mail to ann@example.org\n"
    assert tasks.is_empty("mails")

    run(pushing, page)
    (info,) = tasks.queues("mails", max_count=None)
    assert (info.available, info.scheduled) == (10_003, 2)
    assert tasks.try_claim("mails")[0].payload == {"to": "bob@example.org"}

    run(unique, page)
    assert capsys.readouterr().out.endswith(" True\n")
    assert [len(tasks.list(queue)) for queue in ("reindex", "reports", "search")] == [1, 1, 1]

    conn.execute("create table invoice (order_id int)")
    conn.execute("create table counter as select 0 as n")
    for queue in ("orders", "clicks", "views", "audit"):
        tasks.create_queue(queue)
    tasks.push("orders", {"id": 7})
    tasks.push("clicks")
    tasks.push("views")
    run(ways, page)
    page["Invoicing"](dsn).run(until_empty=True)
    page["Counting"](dsn).run(until_empty=True)
    assert conn.execute("select order_id, n from invoice, counter").fetchall() == [(7, 2)]

    run(outcomes, page)
    tasks.push("audit", {"spam": True})
    tasks.push("audit", {"ok": 1})
    TaskWorker(dsn, "audit", page["check"]).run(until_empty=True)
    (spam,) = tasks.list("audit.failed")
    assert spam.error == "spam"
    (later,) = tasks.list("audit")
    assert (later.payload, later.status, later.attempts) == ({"ok": 1}, "scheduled", 0)

    before = len(tasks.list("mails", max_tasks=None))
    run(alone, page)
    assert len(tasks.list("mails", max_tasks=None)) == before - 10

    pushed, claimed = blocks(PAGE, "sql")
    conn.execute(pushed.encode())
    claim, _, finish = claimed.partition(";")
    conn.execute(claim.encode())
    (mine, *_) = tasks.list("mails", {"claimant": "me"})
    conn.execute(finish.replace("17, 2", f"{mine.id}, {mine.version}").encode())
    assert tasks.list(filter={"ids": [mine.id]}) == []
