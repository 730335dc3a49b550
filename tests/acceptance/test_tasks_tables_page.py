"""The examples of docs/tasks-tables.md do what the page says."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy.orm import Session

import pgqpy.alembic  # noqa: F401
from pgqpy.tasks import TableWorker
from tests.fixtures.fix_db import Connection
from tests.fixtures.pages import blocks, run, text_of

PAGE = text_of("tasks-tables.md")


def execute(conn: Connection, statements: str) -> Any:
    """The rows of the last one."""
    cursor = None
    for line in statements.split(";\n"):
        if line.strip():
            cursor = conn.execute(line.split(" -- ")[0].encode())
    assert cursor is not None
    return cursor.fetchall() if cursor.description else None


def without_comments(block: str) -> str:
    return "\n".join(line.split("--")[0] for line in block.splitlines()) + "\n"


def test_the_page(
    conn: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PGQPY_DSN", dsn)
    columns, others, notify, changes, search, large = (
        without_comments(block) for block in blocks(PAGE, "sql")
    )
    working, batch, policy, model, migration = blocks(PAGE)
    page: dict[str, Any] = {"__name__": __name__}

    execute(conn, columns)
    execute(conn, others)
    execute(conn, notify)
    conn.execute("create table sent (mail_id bigint)")
    conn.execute("insert into mail (address, company) values ('ann@example.org', 3), ('x', 8)")
    run(working, page)
    assert capsys.readouterr().out == "mail to ann@example.org\nmail to x\n"
    run(batch, page)
    run(policy, page)
    assert isinstance(page["worker"], TableWorker)

    execute(conn, changes)
    page["Invoicing"](dsn).run(until_empty=True)
    assert conn.execute("select mail_id from sent order by ctid").fetchall() == [(1,), (2,), (1,)]
    conn.execute("update mail set status = 'failed', last_error = 'refused' where company = 3")
    failed, sizes = search.split(";\n")[:2]
    assert execute(conn, failed) == [(1, 2, "refused")]
    assert [row[:4] for row in execute(conn, sizes)] == [("failed", 1, 0, 0), ("new", 0, 0, 1)]
    (statement,) = execute(conn, large)[0]
    conn.execute("drop index mail_next_attempt_idx")
    conn.execute(statement.encode())

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
