"""The examples on the pages about tasks do what the pages say."""

from __future__ import annotations

import re
import shlex
import sys
from threading import Event
from types import ModuleType
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy.orm import Session

import pgqpy.alembic  # noqa: F401
from pgqpy import Retry
from pgqpy.tasks import PipelineWorker, TableWorker, TaskApp, Tasks, TaskWorker
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_client import running, wait_until
from tests.fixtures.fix_db import Connection
from tests.fixtures.pages import blocks, run, section, text_of


@pytest.fixture
def page(dsn: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of a module, which annotations are looked up in."""
    monkeypatch.setenv("PGQPY_DSN", dsn)
    module = ModuleType("tasks_page")
    monkeypatch.setitem(sys.modules, "tasks_page", module)
    return vars(module)


@pytest.fixture
def tasks(conn: Connection) -> Tasks:
    return Tasks(conn)


def test_tasks(
    conn: Connection,
    dsn: str,
    page: dict[str, Any],
    tasks: Tasks,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = text_of("tasks.md")
    first, pushing, unique, binary, ways, outcomes, tenants, alone = blocks(text)

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

    run(binary, page)
    assert page["picture"] == b"\x00\xff"

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

    pushed, claimed = blocks(text, "sql")
    conn.execute(pushed.encode())
    claim, _, finish = claimed.partition(";")
    conn.execute(claim.encode())
    (mine, *_) = tasks.list("mails", {"claimant": "me"})
    conn.execute(finish.replace("17, 2", f"{mine.id}, {mine.version}").encode())
    assert tasks.list(filter={"ids": [mine.id]}) == []

    run(tenants, page)
    found = [(info.queue_name, info.total) for info in tasks.queues("mails/*")]
    assert found == [("mails/acme", 1), ("mails/bloat", 1000)]


def test_jobs(conn: Connection, page: dict[str, Any], tasks: Tasks) -> None:
    page |= {"tasks": tasks}
    found = blocks(text_of("tasks-jobs.md"))
    first, timed, periodic, schedules, limits, results, flow, progress = found

    run(first, page)
    page["conn"] = conn
    assert tasks.statistics("mails")[0].finished == 1

    run(timed, page)
    run(periodic, page)
    page["app"].worker().run(until_empty=True)
    known, other = tasks.periodic()
    assert (known.name, known.time_zone, known.missed) == ("clean_up", "Europe/Berlin", "last")
    assert (other.name, other.cron) == ("look_for_mail", "@every 90s")
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

    run(flow, page)
    page["app"].worker().run(until_empty=True)
    steps = tasks.flow(page["number"])
    assert [(step.state, step.result) for step in steps] == [
        ("finished", 17),
        ("finished", 17),
        ("finished", 34),
        ("finished", None),
    ]

    run(progress, page)
    page["scale"].push(conn, ["a.png", "b.png"])
    page["app"].worker().run(until_empty=True)
    assert tasks.is_empty("mails")


def test_compared(
    conn: Connection, page: dict[str, Any], tasks: Tasks, capsys: pytest.CaptureFixture[str]
) -> None:
    found = blocks(text_of("tasks-compared.md"))
    define, in_transaction, delay, retry, cron, unique, priority, inspect, requeue, test = found
    conn.execute("create table orders (id int)")
    tasks.create_queue("mails")

    run(define, page)
    run(in_transaction, page)
    page["conn"] = conn
    for block in (delay, retry, cron, unique, unique, priority):
        run(block, page)
    states = [(task.status, task.priority) for task in tasks.list("mails")]
    assert sorted(states) == [("available", 0)] * 2 + [("available", 9), ("scheduled", 0)]

    page["fetch"].push(conn, "nowhere:")
    for _ in range(5):
        page["app"].worker().run(until_empty=True)
        tasks.change("mails", {"status": "scheduled"}, {"delay": 0})
    assert capsys.readouterr().out == "mail to ada\n" * 4
    (periodic,) = tasks.periodic()
    assert (periodic.name, periodic.time_zone) == ("clean", "Europe/Berlin")

    run(inspect, page)
    (failed,) = page["failed"]
    assert (failed.headers["attempts"], failed.error[:8]) == (5, "URLError")
    run(requeue, page)
    assert [task.payload["task"] for task in tasks.list("mails")] == ["fetch"]

    run(test, page)
    page["test_mail"]()
    assert capsys.readouterr().out == "mail to ada\n"


def test_compared_lines_are_counted() -> None:
    *subjects, table = re.split(r"^## ", text_of("tasks-compared.md"), flags=re.MULTILINE)[1:]
    shown = [line.strip("| ").split(" | ") for line in table.splitlines() if line[:1] == "|"]
    counted = [["pgqpy", "Celery", "procrastinate", "Oban", "River"]]
    for subject in subjects:
        name = subject.splitlines()[0]
        (block,), (text,) = blocks(subject), blocks(subject, "text")
        lines = [line for line in block.splitlines() if line and not re.match("import|from", line)]
        peers = re.split(r"^(?=\S)", text, flags=re.MULTILINE)[1:]
        assert [peer.split()[0] for peer in peers] == counted[0][1:]
        theirs = [0 if peer.endswith(" -\n") else peer.count("\n") for peer in peers]
        counted.append([name, str(len(lines)), *(str(each or "-") for each in theirs)])
        assert len(lines) <= min(filter(None, theirs)), name
    assert [shown[0], *shown[2:]] == counted


def test_history(conn: Connection, dsn: str, page: dict[str, Any], tasks: Tasks) -> None:
    for queue in ("orders", "orders-again"):
        tasks.create_queue(queue)
    kept, statistics, counters = blocks(text_of("tasks-history.md"))
    counter, waiting = blocks(text_of("tasks-history.md"), "sql")
    run(kept, page)
    tasks.push("orders", {"customer": 3})
    tasks.pop("orders")
    run(kept, page)
    page["tasks"] = tasks
    assert tasks.queues("orders-again")[0].available == 1
    run(statistics, page)
    assert tasks.statistics("orders")[0].popped == 1

    create, total, fold, reset = statements(counter)
    conn.execute(create.encode())
    run(counters, page)
    tasks.push_many("orders", [{"items": ["a", "b"]}, {"items": ["c"]}])
    page["Shipping"](dsn).run(until_empty=True)
    conn.execute(fold.encode())
    assert conn.execute(total.encode()).fetchall() == [("items", 3)]
    conn.execute(reset.encode())
    assert conn.execute(total.encode()).fetchall() == []

    tasks.push("orders", "a")
    free = Event()
    workers = [TaskWorker(dsn, "orders", lambda _: free.wait(), name=f"orders-{n}") for n in "12"]
    with running(workers[0]), running(workers[1]):
        try:
            wait_until(lambda: conn.execute(waiting.encode()).fetchall() == [(1,)])
        finally:
            free.set()
        wait_until(lambda: conn.execute(waiting.encode()).fetchall() == [(2,)])


def test_changing(conn: Connection, dsn: str, page: dict[str, Any], tasks: Tasks) -> None:
    text = text_of("tasks-modify.md")
    modify, documents = blocks(text)
    for queue in ("mails", "letters"):
        tasks.create_queue(queue)
    tasks.push("mails", {"to": "ada"})
    run(modify, page)
    assert [task.queue for task in tasks.list()] == ["letters"]

    conn.execute(blocks(section(text, "## Documents"), "sql")[0].encode())
    run(documents, page)
    tasks.push_many("mails", range(3))
    value, version = page["claim"](conn, "report", "other")
    page["Counting"](dsn).run(until_empty=True)
    assert [task.attempts for task in tasks.list("mails")] == [0, 0, 0]
    assert page["claim"](conn, "report", "other") == (value, version + 1)
    with pytest.raises(Retry):
        page["change"](conn, "report", version, {"mails": 0})
    page["change"](conn, "report", version + 1, value)
    tasks.change("mails", None, {"delay": 0})
    page["Counting"](dsn).run(until_empty=True)
    assert conn.execute("select value, lease from document").fetchall() == [({"mails": 3}, None)]


def test_pipelines(conn: Connection, dsn: str, page: dict[str, Any], tasks: Tasks) -> None:
    conn.execute("create table parcel (item text)")
    conn.execute("create table bill (order_id int, sum int)")
    conn.execute("create table refused (order_id int)")
    (block,) = blocks(text_of("tasks-pipelines.md"))
    run(block, page)
    assert conn.execute("select item from parcel order by 1").fetchall() == [("book",), ("pen",)]
    assert conn.execute("select * from bill").fetchall() == [(7, 20)]

    orders = page["orders"]
    for reminders in (1, 3):
        unpaid = {"id": 8 + reminders, "paid": False, "reminders": reminders}
        tasks.push(orders.queue("check"), unpaid)
    PipelineWorker(dsn, orders).run(until_empty=True)
    assert conn.execute("select * from refused").fetchall() == [(11,)]
    (later,) = tasks.list("orders.check")
    assert (later.payload["reminders"], later.status) == (2, "scheduled")


def test_commands(cli: Cli, tasks: Tasks) -> None:
    for queue in ("mails", "mails.failed", "reports"):
        tasks.create_queue(queue)
    app = TaskApp("reports")
    app.periodic("0 2 * * *")(app.task(name="clean_up")(lambda: None))
    app.worker(cli.dsn).run(until_empty=True)
    # Number 17 is one of these.
    tasks.push_many("reports", range(20), delay=3600)
    tasks.push_many("mails", range(2))
    for error in ("timeout", "no address"):
        [failed] = tasks.try_claim("mails")
        tasks.fail(failed, error, final=True)

    lines = [line for block in blocks(text_of("tasks-cli.md"), "sh") for line in block.splitlines()]
    commands = [
        line for line in lines if line.startswith("pgqpy task") and "work" not in line.split()[:3]
    ]
    assert len(commands) > 10
    for line in commands:
        command = line.removesuffix(" --watch").replace("retry 17", f"retry {failed.id}")
        cli.ok(*shlex.split(command)[1:])
    assert tasks.list("mails.failed") == []
    assert tasks.list("reports", {"ids": [17]}) == []
    assert len(tasks.list("reports", {"priority": 9, "status": "available"})) == 19
    assert tasks.limits("mails")[0].max_running == 20


def statements(block: str) -> list[str]:
    """Split a block of SQL, without its comments."""
    text = "\n".join(line.split("--")[0] for line in block.splitlines()) + "\n"
    return [statement for statement in text.split(";\n") if statement.strip()]


def test_tables(
    conn: Connection, dsn: str, page: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    def execute(*sql: str) -> list[tuple[Any, ...]]:
        """Run statements; return the rows of the last one."""
        cursor = [conn.execute(statement.encode()) for statement in sql][-1]
        return cursor.fetchall() if cursor.description else []

    text = text_of("tasks-tables.md")
    columns, others, notify, changes, search, large = map(statements, blocks(text, "sql"))
    working, batch, policy, model, migration = blocks(text)

    execute(*columns, *others, *notify)
    conn.execute("create table sent (mail_id bigint)")
    conn.execute("insert into mail (address, company) values ('ann@example.org', 3), ('x', 8)")
    run(working, page)
    assert capsys.readouterr().out == "mail to ann@example.org\nmail to x\n"
    run(batch, page)
    run(policy, page)
    assert isinstance(page["worker"], TableWorker)

    execute(*changes)
    page["Invoicing"](dsn).run(until_empty=True)
    assert conn.execute("select mail_id from sent order by ctid").fetchall() == [(1,), (2,), (1,)]
    conn.execute("update mail set status = 'failed', last_error = 'refused' where company = 3")
    assert execute(search[0]) == [(1, 2, "refused")]
    assert [row[:4] for row in execute(search[1])] == [("failed", 1, 0, 0), ("new", 0, 0, 1)]
    (statement,) = execute(*large)[0]
    execute("drop index mail_next_attempt_idx", statement)

    # Its annotations are not to be texts, as they are in this file.
    exec(compile(model, "page", "exec", dont_inherit=True), page)
    engine = sa.create_engine(sa.make_url(dsn).set(drivername="postgresql+psycopg"))
    page["Base"].metadata.create_all(engine)
    order = page["Order"]
    with Session(engine) as session, session.begin():
        session.add(order(id=1, item="book"))
    page["shipping"].run(until_empty=True)
    with Session(engine) as session:
        assert session.scalars(sa.select(order.shipped_by)).all() == ["van"]

    conn.execute('drop table "order"')
    conn.execute('create table "order" (id int primary key)')
    with engine.begin() as connection:
        run(migration, page)
        page["op"] = Operations(MigrationContext.configure(connection))
        page["upgrade"]()
    described = """select has_index, signal is not null from pgq_task.describe_table('"order"')"""
    assert conn.execute(described).fetchall() == [(True, True)]
    with engine.begin() as connection:
        page["op"] = Operations(MigrationContext.configure(connection))
        page["downgrade"]()
    assert [column.name for column in conn.execute('table "order"').description or ()] == ["id"]
    engine.dispose()
