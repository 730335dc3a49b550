"""Rows of a mapped class as tasks."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, declarative_base, mapped_column

from pgqpy.errors import InvalidConsumer
from pgqpy.retry import FixedDelay
from pgqpy.sqlalchemy import AsyncModelWorker, ModelWorker, TaskColumns, libpq_dsn, task_columns
from pgqpy.tasks import TaskColumnNames
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection


class Base(DeclarativeBase):
    pass


class Upper(sa.types.TypeDecorator[str]):
    """Lower case in the database."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str:
        assert value == value.upper()
        return str(value).lower()

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> str:
        return str(value).upper()


class Mail(TaskColumns, Base):
    __tablename__ = 'it\'s "Mail"'
    __table_args__ = (sa.Index("mail_note", "note"), {"schema": "Odd %"})

    code: Mapped[str] = mapped_column("the code", Upper, primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str | None]


class Order(task_columns(TaskColumnNames.prefixed("bill_")), TaskColumns, Base):  # type: ignore[misc]
    """Two queues of one table."""

    __tablename__ = "order"

    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def engine(dsn: str, conn: Connection) -> sa.Engine:
    conn.execute('create schema "Odd %"')
    engine = sa.create_engine(
        sa.make_url(dsn).set(drivername="postgresql+psycopg"), poolclass=sa.NullPool
    )
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all(Mail(code=code, number=1) for code in "ABC")
    return engine


def found(engine: sa.Engine) -> dict[str, tuple[Any, ...]]:
    with Session(engine) as session:
        return {
            mail.code: (mail.status, mail.next_attempt is not None, mail.attempts, mail.note)
            for mail in session.scalars(sa.select(Mail))
        }


@pytest.mark.smoke
def test_a_handler_gets_the_object_and_a_session_in_the_transaction(engine: sa.Engine) -> None:
    seen = []

    def send(session: Session, mail: Mail) -> None:
        seen.append(mail.code)
        mail.note = "changed"
        if mail.code == "B":
            session.flush()
            raise RuntimeError("not this one")
        if mail.code == "C":
            session.commit()
            session.add(Mail(code="D", number=2))
            session.flush()
            session.rollback()

    ModelWorker(libpq_dsn(engine.url), Mail, send, retry_policy=FixedDelay(3600)).run(
        until_empty=True
    )
    assert seen == ["A", "B", "C"]
    assert found(engine) == {
        "A": ("succeeded", False, 1, "changed"),
        "B": ("failed", True, 1, None),
        "C": ("succeeded", False, 1, "changed"),
    }


def test_asyncio_and_batches_do_the_same(engine: sa.Engine) -> None:
    class Sender(AsyncModelWorker):
        model = Mail
        batch_size = 10
        delete_done = True
        retry_policy = FixedDelay(3600)

        async def process_object(self, session: AsyncSession, obj: Mail) -> None:
            obj.note = "changed"
            if obj.code == "B":
                await session.execute(sa.text("select 1 / 0"))
            others = await session.scalars(sa.select(Mail.code).order_by(Mail.code))
            assert list(others) == ["A", "B", "C"]

    asyncio.run(Sender(libpq_dsn(engine.url)).run(until_empty=True))
    assert found(engine) == {"B": ("failed", True, 1, None)}


def test_an_outage_is_no_rows_fault(engine: sa.Engine, conn: Connection) -> None:
    done = threading.Event()
    pids = []

    class Sender(ModelWorker):
        model = Mail
        backoff_first = 0.01

        def process_object(self, session: Session, obj: Mail) -> None:
            pids.append(session.scalar(sa.text("select pg_backend_pid()")))
            if len(pids) == 1:
                conn.execute("select pg_terminate_backend(%s, 60000)", [pids[0]])
            if len(pids) == 2:
                session.execute(sa.text("do $$ begin raise sqlstate '40P01'; end $$"))
            session.flush()
            if obj.code == "C":
                done.set()

    worker = Sender(libpq_dsn(engine.url))
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert done.wait(60)
    worker.stop()
    thread.join(60)
    assert found(engine) == dict.fromkeys("ABC", ("succeeded", False, 1, None))
    assert pids[0] != pids[2]


def test_the_mixin_declares_what_the_function_adds(engine: sa.Engine, conn: Connection) -> None:
    conn.execute('create table "Odd %".plain (code text, number int, primary key (code, number))')
    conn.execute("""select pgq_task.add_columns('"Odd %".plain')""")
    columns = (
        "select attname, atttypid, attnotnull from pg_attribute where attrelid = %s::regclass"
        " and attnum > 0 and attname <> all (%s) order by attname"
    )
    ours = ["the code", "code", "number", "note"]
    assert (
        conn.execute(columns, ['"Odd %"."it\'s ""Mail"""', ours]).fetchall()
        == conn.execute(columns, ['"Odd %".plain', ours]).fetchall()
    )
    for names in (TaskColumnNames(), TaskColumnNames.prefixed("bill_")):
        described = ops.value(
            conn, """select has_index from pgq_task.describe_table('"order"', %s)""", names.json()
        )
        assert described
    assert ops.value(conn, "select count(*) from pg_indexes where tablename = 'order'") == 3


def test_migrations_find_nothing_to_do(engine: sa.Engine, conn: Connection) -> None:
    conn.execute('drop table "order"')
    conn.execute('create table "order" (id serial primary key)')
    conn.execute("""select pgq_task.add_columns('"order"')""")
    conn.execute(
        """select pgq_task.add_columns('"order"', %s)""", [TaskColumnNames.prefixed("bill_").json()]
    )
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, sa.MetaData()) != []
        metadata = sa.MetaData()
        Base.metadata.tables["order"].to_metadata(metadata)
        assert compare_metadata(context, metadata) == []


def test_two_queues_of_a_table_are_worked_on_apart(engine: sa.Engine) -> None:
    with Session(engine) as session, session.begin():
        session.add(Order(id=1))
    seen = []
    ModelWorker(libpq_dsn(engine.url), Order, lambda _session, order: seen.append(order.id)).run(
        until_empty=True
    )
    with Session(engine) as session:
        order = session.get_one(Order, 1)
        assert seen == [1]
        assert (order.bill_status, order.bill_next_attempt) == ("succeeded", None)
        assert order.status == "new"
        assert order.next_attempt is not None


def test_other_ways_to_declare_classes_have_the_index_too() -> None:
    Old: Any = declarative_base()  # noqa: N806

    class Thing(TaskColumns, Old):  # type: ignore[misc]
        __tablename__ = "thing"
        id = mapped_column(sa.Integer, primary_key=True)

    class Part(Thing):
        __tablename__ = "part"
        part_id = mapped_column(sa.ForeignKey("thing.id"), primary_key=True)

    assert {index.name for index in Thing.__table__.indexes} == {"thing_next_attempt_idx"}
    assert not Part.__table__.indexes


def test_what_is_no_model_is_refused(dsn: str) -> None:
    for model in (None, int, "mail", Base):
        with pytest.raises(InvalidConsumer, match="mapped"):
            ModelWorker(dsn, model, lambda _session, _mail: None)  # type: ignore[arg-type]
    with pytest.raises(InvalidConsumer, match="process_object"):
        ModelWorker(dsn, Mail).run_once()
