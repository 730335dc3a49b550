"""Queues are tables for SQLAlchemy Core, and events are mapped objects."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import pydantic
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Session, declarative_base

import pgqpy.alembic  # noqa: F401
from pgqpy import errors
from pgqpy.sqlalchemy import Event, queue_table
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection

#: An application with no right but to write.
AS_WRITER = sa.text("set local role pgq_writer")


class Base(DeclarativeBase):
    pass


class OrderEvent(Event, Base):
    __queue__ = "orders"


class OrderPlaced(OrderEvent):
    __event_type__ = "order.placed"


class OrderPaid(OrderEvent):
    __event_type__ = "order.paid"


@pytest.fixture
def engine(conn: Connection, engine: sa.Engine) -> sa.Engine:
    conn.execute("select pgq.create_queue('orders')")
    ops.register(conn, "orders", "c")
    return engine


def inserts(engine: sa.Engine) -> list[str]:
    """The INSERTs that the engine sends from now on."""
    sent: list[str] = []

    @sa.event.listens_for(engine, "before_cursor_execute")
    def note(_conn: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("INSERT"):
            sent.append(statement)

    return sent


def delivered(conn: Connection) -> list[tuple[str | None, str | None]]:
    """The types and data of the events of the next batch, in its order."""
    ops.tick(conn, "orders")
    batch = ops.value(conn, "select pgq.next_batch('orders', 'c')")
    rows = conn.execute(
        "select ev_type, ev_data from pgq.get_batch_events(%s) order by ev_id", [batch]
    ).fetchall()
    conn.execute("select pgq.finish_batch(%s)", [batch])
    return rows


@pytest.mark.smoke
def test_one_insert_writes_the_events_of_a_flush_in_their_order(
    conn: Connection, engine: sa.Engine
) -> None:
    sent = inserts(engine)
    with Session(engine) as session:
        session.execute(AS_WRITER)
        events = [(OrderPlaced if n % 3 else OrderPaid)({"n": n}, ev_extra1="x") for n in range(50)]
        session.add_all(events)
        session.flush()
        ids = [event.ev_id for event in events]
        assert ids == sorted(ids)
        assert len(sent) == 1
        with session.begin_nested() as savepoint:
            session.add(OrderPlaced({"n": "lost"}))
            session.flush()
            savepoint.rollback()
        session.add(OrderEvent("text", ev_type="other"))
        session.commit()
    assert delivered(conn) == [
        *(("order.placed" if n % 3 else "order.paid", f'{{"n":{n}}}') for n in range(50)),
        ("other", "text"),
    ]


def test_a_guarded_queue_gives_the_same_ids(conn: Connection, engine: sa.Engine) -> None:
    conn.execute("select setval('pgq.ticker_sleep_seq', 2)")
    conn.execute("select pgq._guard_queues()")
    with Session(engine, expire_on_commit=False) as session, session.begin():
        events = [OrderPlaced({"n": n}) for n in range(5)]
        session.add_all(events)
    rows = conn.execute("select ev_id, ev_data from pgq_queue.orders order by 1").fetchall()
    assert rows == [(event.ev_id, event.ev_data) for event in events]


def test_an_event_is_added_again_after_a_rollback(conn: Connection, engine: sa.Engine) -> None:
    """As by a unit of work that is run again."""
    placed = OrderPlaced({"n": 1})
    with Session(engine) as session:
        session.add(placed)
        session.flush()
        first = placed.ev_id
        session.rollback()
        session.add(placed)
        session.flush()
        assert placed.ev_id > first
        session.commit()
    assert delivered(conn) == [("order.placed", '{"n":1}')]


@dataclass
class Line:
    item: str
    price: Decimal


@dataclass
class Placed:
    lines: list[Line]


class PlacedModel(pydantic.BaseModel):
    lines: list[Line]


class PlacedStruct(msgspec.Struct):
    lines: list[Line]


LINES = [Line("bøk", Decimal("1.50"))]


@pytest.mark.parametrize(
    "data",
    [
        {"lines": LINES},
        Placed(LINES),
        PlacedModel(lines=LINES),
        PlacedStruct(LINES),
        '{"lines":[{"item":"bøk","price":"1.50"}]}',
    ],
    ids=lambda data: type(data).__name__,
)
def test_payloads_are_dicts_dataclasses_and_models(
    conn: Connection, engine: sa.Engine, data: Any
) -> None:
    with Session(engine) as session, session.begin():
        session.add(OrderPlaced(data))
        session.execute(queue_table("orders").insert().values(ev_type="t", ev_data=data))
    expected = '{"lines":[{"item":"bøk","price":"1.50"}]}'
    assert [text for _, text in delivered(conn)] == [expected] * 2


def test_a_payload_is_dumped_when_it_is_given(conn: Connection, engine: sa.Engine) -> None:
    data = {"n": 1}
    event = OrderPlaced(data)
    data["n"] = 2
    with pytest.raises(errors.InvalidPayload, match=r"`\$\.a\[1\]`: objects of type object"):
        OrderPlaced({"a": [1, object()]})
    with pytest.raises(TypeError, match="event's data"):
        event.ev_data = 5  # type: ignore[assignment]
    with Session(engine) as session, session.begin():
        session.add(event)
    assert delivered(conn) == [("order.placed", '{"n":1}')]


def test_core_writes_one_many_and_selected_rows(conn: Connection, engine: sa.Engine) -> None:
    orders = queue_table("orders")
    assert queue_table("orders") is orders
    sent = inserts(engine)
    with engine.begin() as connection:
        connection.execute(AS_WRITER)
        one = connection.execute(orders.insert().values(ev_type="one", ev_data={"n": 0}))
        connection.execute(orders.insert(), [{"ev_type": "many", "ev_data": str(n)} for n in "12"])
        some = connection.execute(
            orders.insert().returning(orders.c.ev_id, sort_by_parameter_order=True),
            [{"ev_type": "some", "ev_data": str(n)} for n in range(3, 6)],
        ).scalars()
        ids = [*(one.inserted_primary_key or ()), *some]
        rows = sa.select(sa.literal("selected"), sa.literal("6"))
        connection.execute(orders.insert().from_select(["ev_type", "ev_data"], rows))
    assert ids == sorted(ids)
    assert len(ids) == len(sent) == 4
    with engine.connect() as connection:
        read = connection.execute(
            sa.select(orders.c.ev_data).where(orders.c.ev_id >= ids[1]).order_by(orders.c.ev_id)
        )
        assert read.scalars().all() == ["3", "4", "5", "6"]
    assert [data for _, data in delivered(conn)] == ['{"n":0}', *"123456"]


def test_asyncpg_writes_them_too(conn: Connection, engine: sa.Engine, dsn: str) -> None:
    async def work() -> None:
        url = sa.make_url(dsn).set(drivername="postgresql+asyncpg")
        async_engine = create_async_engine(url)
        async with AsyncSession(async_engine) as session, session.begin():
            await session.execute(AS_WRITER)
            events = [OrderPlaced({"n": n}) for n in range(3)]
            session.add_all(events)
            await session.flush()
            ids = [event.ev_id for event in events]
            assert ids == sorted(ids)
            await session.execute(
                queue_table("orders").insert(), [{"ev_type": "t", "ev_data": "3"}] * 2
            )
        await async_engine.dispose()

    asyncio.run(work())
    assert [data for _, data in delivered(conn)] == [*(f'{{"n":{n}}}' for n in range(3)), "3", "3"]


def test_a_reader_gets_objects_of_the_class_of_their_type(
    conn: Connection, engine: sa.Engine
) -> None:
    for kind in ("order.placed", "order.paid", "unknown", None):
        ops.value(conn, "select pgq.insert_event('orders', %s, 'x')", kind)
    with Session(engine) as session:
        session.execute(sa.text("set local role pgq_reader"))
        kinds = [type(each) for each in session.scalars(sa.select(OrderEvent))]
        assert sorted(kind.__name__ for kind in kinds) == [
            *("OrderEvent", "OrderEvent", "OrderPaid", "OrderPlaced")
        ]
        (paid,) = session.scalars(sa.select(OrderPaid))
        assert (paid.ev_data, paid.ev_type) == ("x", "order.paid")
        # The class of an application's event is found later, too.
        later: Any = type("OrderLater", (OrderEvent,), {"__event_type__": "unknown"})
        session.expunge_all()
        assert len(session.scalars(sa.select(later)).all()) == 1


def test_neither_create_all_nor_alembic_see_the_relations(
    conn: Connection, engine: sa.Engine
) -> None:
    for drop in (False, True):
        if drop:
            conn.execute("select pgq.drop_queue('orders', true)")
        Base.metadata.create_all(engine)
        for options in ({"include_schemas": True}, {}):
            with engine.connect() as connection:
                context = MigrationContext.configure(connection, opts=options)
                assert compare_metadata(context, Base.metadata) == []
    assert ops.value(conn, "select count(*) from pg_class where relname = 'orders'") == 0


def test_names_are_quoted_and_long_ones_refused(conn: Connection, engine: sa.Engine) -> None:
    names = ['odd %s "name".x', "x" * 59]
    for name in names:
        conn.execute("select pgq.create_queue(%s)", [name])
        with engine.begin() as connection:
            connection.execute(queue_table(name).insert(), [{"ev_type": "a"}, {"ev_type": "b"}])
        assert ops.value(conn, "select count(*) from pgq.event_template") > 0
    for name in ("x" * 60, "ä" * 30, ""):
        with pytest.raises(errors.InvalidParameter, match="Producer"):
            queue_table(name)


def test_an_event_has_a_type(conn: Connection, engine: sa.Engine) -> None:
    event = OrderPlaced({"n": 1})
    for write in (lambda: OrderEvent({"n": 1}), lambda: setattr(event, "ev_type", None)):
        with pytest.raises(errors.InvalidParameter, match="has no type"):
            write()
    with engine.begin() as connection, pytest.raises(sa.exc.IntegrityError, match="has no type"):
        connection.execute(queue_table("orders").insert().values(ev_data="x"))
    assert ops.value(conn, "select count(*) from pgq.event") == 0


def test_a_queue_has_one_class() -> None:
    for bases in ((Event, Base), (OrderPlaced,)):
        with pytest.raises(errors.InvalidParameter, match="__event_type__"):
            type("Second", bases, {"__queue__": "orders"})
    other: Any = declarative_base()
    with pytest.raises(errors.InvalidParameter, match="Lacking has no queue"):
        type("Lacking", (Event, other), {"__event_type__": "only"})
    type("Common", (Event, other), {"__abstract__": True})
    made: Any = type("Other", (Event, other), {"__queue__": "orders", "__event_type__": "only"})
    assert made({"n": 1}).ev_type == "only"
