"""The examples of docs/sqlalchemy.md do what the page says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import produce_migrations, render_python_code
from alembic.runtime.migration import MigrationContext
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import pgqpy.alembic
from pgqpy.tasks import Tasks
from tests.fixtures import pages
from tests.fixtures.fix_db import Connection
from tests.fixtures.pages import text_of

PAGE = text_of("sqlalchemy.md")


def blocks(title: str) -> list[str]:
    """The Python of one section."""
    return pages.blocks(pages.section(PAGE, f"## {title}"))


def order() -> Any:
    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "order"
        id: Mapped[int] = mapped_column(primary_key=True)
        item: Mapped[str]

    return Order


def test_it(conn: Connection, dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    engine = sa.create_engine(sa.make_url(dsn).set(drivername="postgresql+psycopg"))
    async_engine = create_async_engine(sa.make_url(dsn).set(drivername="postgresql+asyncpg"))
    page: dict[str, Any] = {
        # without, classes in the page would be of no module
        "__name__": __name__,
        "engine": engine,
        "async_engine": async_engine,
        "Order": order(),
    }
    page["Order"].metadata.create_all(engine)
    conn.execute("select pgq.create_queue('orders')")

    for block in blocks("Events from a session"):
        exec(block, page)
    assert conn.execute(
        "select ev_type, count(*) from pgq.event_template group by ev_type order by ev_type"
    ).fetchall() == [("created", 1), ("imported", 10_000)]

    for block in (*blocks("Events as objects"), *blocks("Queues as tables")):
        exec(block, page)
    count = 10_000 + 6
    assert capsys.readouterr().out.splitlines() == ["10002", str(count)]
    assert conn.execute(
        "select ev_type, ev_data, ev_extra1 from pgq_queue.orders order by ev_id offset 10001"
    ).fetchall() == [
        ("order.placed", '{"id":2,"item":"pen"}', None),
        ("order.paid", '{"order":2,"amount":4.5}', "EUR"),
        ("seen", '{"id":1}', None),
        ("seen", '{"id":2}', None),
        ("item", "book", None),
    ]

    Tasks(conn).create_queue("mails")
    for block in blocks("Tasks from a session"):
        exec(block, page)
    assert [task.payload for task in Tasks(conn).list("mails")] == [{"order": 3}]

    for block in blocks("asyncio"):
        exec(block, page)
    conn.execute("select setval('order_id_seq', 10)")

    async def place() -> None:
        await page["place"]("lamp")
        await async_engine.dispose()

    asyncio.run(place())
    assert conn.execute(
        "select ev_data from pgq.event_template order by ev_id desc limit 1"
    ).fetchall() == [("11",)]

    for block in blocks("Tables that are captured"):
        exec(block, page)
    env, migration, filters = blocks("Migrations")
    exec(env, page)
    exec(filters, page)
    with engine.connect() as connection:
        options = {"include_name": page["include_name"], "include_object": mine}
        context = MigrationContext.configure(connection, opts=options)
        script = produce_migrations(context, page["Base"].metadata)
        upgrade, downgrade = script.upgrade_ops, script.downgrade_ops
        assert upgrade is not None
        assert downgrade is not None
        written = render_python_code(upgrade) + render_python_code(downgrade)
    # Alembic's quotes are single, and this page's are as Ruff wants them.
    migration = migration.replace('"', "'")
    shown = [line.strip() for line in migration.splitlines() if line.startswith("    op.")]
    assert len(shown) == 4
    assert [line.strip() for line in written.splitlines() if line.strip() in shown] == shown

    page["Base"].metadata.create_all(engine)
    assert conn.execute("select table_name, queue_name from pgq.capture_info()").fetchall() == [
        ("public.account", "accounts"),
        ("public.customer", "audit"),
        ("public.customer", "customers"),
        ("public.tag", "audit"),
        ("public.tag", "tags"),
    ]

    for block in blocks("Consumers"):
        exec(block, page)
    conn.execute("create table audit_log (event text)")
    page["auditor"].register()
    conn.execute("insert into customer values (1, 'Ada', 0)")
    pgqpy.Admin(conn).force_tick("audit")
    pgqpy.Admin(conn).ticker("audit")
    page["auditor"].run(until_empty=True)
    assert conn.execute("select * from audit_log").fetchall() == [('{"id":1,"name":"Ada"}',)]
    engine.dispose()


def test_inserting(conn: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGQPY_DSN", dsn)
    conn.execute("select pgq.create_queue('orders')")
    conn.execute("create table shop_order as select 7 as id, 'ann' as customer")
    page = text_of("inserting.md")
    for block in pages.blocks(page):
        exec(block, {})
    relation, copy = pages.blocks(page, "sql")
    conn.execute(relation.encode())
    begin, ask, last = copy.splitlines()
    assert begin == "begin;"
    with conn.transaction(), conn.cursor() as cursor:
        (table,) = cursor.execute(ask.encode()).fetchone() or ()
        assert table in last
        with cursor.copy(last.encode()) as rows:
            rows.write_row(("placed", "copied"))
    counts = "select ev_data ^@ '{', count(*) from pgq_queue.orders group by 1 order by 1"
    assert conn.execute(counts).fetchall() == [(False, 1), (True, 1001)]


def mine(_object: Any, name: str, kind: str, *_: Any) -> bool:
    return not (kind == "table" and name == "order")
