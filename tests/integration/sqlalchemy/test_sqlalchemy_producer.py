"""Events from SQLAlchemy are in the transaction of the session, whatever its driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    scoped_session,
    sessionmaker,
)

import pgqpy
from pgqpy import errors
from pgqpy.sqlalchemy import AsyncProducer, Producer, libpq_dsn
from tests.fixtures.fix_db import Connection

# More than are sent at once.
EVENTS = [("many", str(number)) for number in range(6_000)]


@pytest.fixture(params=["psycopg", "asyncpg"])
def url(request: pytest.FixtureRequest, dsn: str) -> sa.URL:
    return sa.make_url(dsn).set(drivername=f"postgresql+{request.param}")


@asynccontextmanager
async def opened(url: sa.URL) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(url)
    try:
        yield engine
    finally:
        await engine.dispose()


def types(conn: Connection) -> list[str | None]:
    rows = conn.execute("select ev_type from pgq.event_template order by ev_id").fetchall()
    return [ev_type for (ev_type,) in rows]


@pytest.mark.smoke
def test_events_exist_only_if_the_session_and_its_savepoints_commit(
    conn: Connection, queue: str, engine: sa.Engine
) -> None:
    producer = Producer(queue)
    with Session(engine) as session:
        for kept in (False, True):
            producer.insert_events(session, [("many",), ("many",)])
            producer.insert_event(session, "one")
            producer.insert_events_returning(session, [("some",)])
            with session.begin_nested() as savepoint:
                producer.insert_event(session, "inside")
                producer.insert_events(session, [("inside",)])
                savepoint.rollback()
            with session.begin_nested():
                producer.insert_event(session, "kept")
            assert types(conn) == []
            session.commit() if kept else session.rollback()
    assert types(conn) == ["many", "many", "one", "some", "kept"]


def test_events_may_come_from_the_sessions_own_hooks(
    conn: Connection, queue: str, engine: sa.Engine
) -> None:
    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "order"
        id: Mapped[int] = mapped_column(primary_key=True)

    Base.metadata.create_all(engine)
    orders = Producer(queue)
    with Session(engine) as session:

        @sa.event.listens_for(session, "after_flush")
        def tell(session: Session, _: object) -> None:
            for order in session.new:
                orders.insert_event(session, "new", str(order.id))

        session.add_all([Order(id=1), Order(id=2)])
        session.commit()
    assert types(conn) == ["new", "new"]


def test_connections_and_scoped_sessions_are_as_good(
    conn: Connection, queue: str, engine: sa.Engine
) -> None:
    producer = Producer(queue)
    with engine.begin() as connection:
        producer.insert_event(connection, "connection")
        producer.insert_events(connection, [("connection",)])
    scoped = scoped_session(sessionmaker(engine))
    producer.insert_event(scoped, "scoped")
    producer.insert_events(scoped, [("scoped",)])
    scoped.commit()
    scoped.remove()
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        producer.insert_event(connection, "autocommit")
        with pytest.raises(errors.PgqError, match="transaction"):
            producer.insert_events(connection, [("lost",)])
    assert types(conn) == ["connection"] * 2 + ["scoped"] * 2 + ["autocommit"]


def test_what_is_written_is_what_is_stored(conn: Connection, queue: str, engine: sa.Engine) -> None:
    producer = Producer(queue)
    fields = ("t%(a)s:b", "{é'\\}", "1", None, "", "4")
    with Session(engine) as session, session.begin():
        first = producer.insert_event(
            session, *fields[:2], extra1="1", extra2=None, extra3="", extra4="4"
        )
        (second,) = producer.insert_events_returning(session, [fields])
        assert producer.insert_events(session, [fields]) == 1
        empty = producer.insert_event(session, None)
        for write in (producer.insert_events, producer.insert_events_returning):
            write(session, [("t", {"a": 1})])
        producer.insert_event(session, "t", {"a": 1})
    assert first < second < empty
    assert (
        conn.execute(
            "select ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
            " from pgq.event_template order by ev_id"
        ).fetchall()
        == [fields] * 3 + [(None,) * 6] + [("t", '{"a":1}', *[None] * 4)] * 3
    )


def test_many_events_are_whole_or_not_at_all_and_the_session_goes_on(
    conn: Connection, queue: str, engine: sa.Engine
) -> None:
    def broken() -> Iterator[tuple[str, str]]:
        yield from EVENTS
        raise ZeroDivisionError

    producer = Producer(queue)
    with Session(engine) as session, session.begin():
        with pytest.raises(ZeroDivisionError):
            producer.insert_events(session, broken())
        assert producer.insert_events(session, iter(EVENTS)) == len(EVENTS)
    assert len(types(conn)) == len(EVENTS)


def test_errors_are_of_pgqpy_and_the_savepoint_survives_them(
    conn: Connection, queue: str, engine: sa.Engine
) -> None:
    with Session(engine) as session, session.begin():
        with pytest.raises(errors.QueueNotFound) as caught, session.begin_nested():
            Producer("nowhere").insert_event(session, "lost")
        assert caught.value.hint
        assert caught.value.diag is not None
        with pytest.raises(errors.InvalidPayload):
            Producer(queue).insert_event(session, "NUL", "\0")
        with pytest.raises(errors.QueueNotFound):
            Producer("nowhere").insert_events(session, [("lost",)])
        Producer(queue).insert_event(session, "kept")
    assert types(conn) == ["kept"]


def asynchronous(work: Callable[[AsyncEngine], Awaitable[None]], url: sa.URL) -> None:
    async def run() -> None:
        async with opened(url) as engine:
            await work(engine)

    asyncio.run(run())


def test_an_async_sessions_events_exist_only_if_it_commits(
    conn: Connection, queue: str, url: sa.URL
) -> None:
    producer = AsyncProducer(queue)

    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            for kept in (False, True):
                await producer.insert_events(session, EVENTS[:2])
                await producer.insert_event(session, "one", extra2="x")
                (event_id,) = await producer.insert_events_returning(session, [("some", None)])
                assert event_id > 0
                async with session.begin_nested() as savepoint:
                    await producer.insert_event(session, "inside")
                    await savepoint.rollback()
                assert types(conn) == []
                await (session.commit() if kept else session.rollback())
        async with engine.begin() as connection:
            await producer.insert_event(connection, "connection")
            await producer.insert_events(connection, [("connection",)])
        scoped = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
        await producer.insert_event(scoped, "scoped")
        await producer.insert_events(scoped, [("scoped",)])
        await scoped.commit()
        await scoped.remove()

    asynchronous(work, url)
    assert types(conn) == ["many", "many", "one", "some", *["connection"] * 2, *["scoped"] * 2]


def test_delayed_events_and_keys(conn: Connection, queue: str, url: sa.URL) -> None:
    conn.execute("select pgq.set_queue_config(%s, 'key_window', '1 day')", [queue])
    producer = AsyncProducer(queue)
    hour = timedelta(hours=1)
    later = datetime.now(UTC) + hour

    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session, session.begin():
            first = await producer.insert_event(session, "one", key="a")
            assert await producer.insert_event(session, "again", key="a") == first
            events = [("b", "1"), ("a", "2"), (None, "3")]
            _, again, _ = await producer.insert_events_returning(
                session, events, key=lambda event: event[0]
            )
            assert again == first
            assert await producer.insert_events(session, events, key=lambda event: event[0]) == 3
            waiting = await producer.insert_event(session, "later", at=later)
            assert await producer.cancel_event(session, waiting)
            await producer.insert_event(session, "later", delay=hour)
            await producer.insert_event(session, "later", delay=hour, key="c")
            await producer.insert_events(session, [("later",), ("later",)], at=later)
            await producer.insert_events(session, [("later",)], at=lambda _: later)
            await producer.insert_events(session, [("later",)], delay=hour)
            with pytest.raises(ValueError, match="time zone"):
                await producer.insert_event(session, "t", at=later.replace(tzinfo=None))

    asynchronous(work, url)
    assert types(conn) == ["one", "b", None, None]
    delayed = conn.execute("select ev_type, due from pgq.get_delayed_events(%s)", [queue])
    about = timedelta(minutes=30)
    assert [(kind, later - about < due) for kind, due in delayed] == [("later", True)] * 6


def test_many_events_of_an_async_iterator_are_whole_or_not_at_all(
    conn: Connection, queue: str, url: sa.URL
) -> None:
    producer = AsyncProducer(queue)

    async def events(*, broken: bool) -> AsyncIterator[tuple[str, str]]:
        for event in EVENTS:
            yield event
        if broken:
            raise ZeroDivisionError

    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session, session.begin():
            with pytest.raises(ZeroDivisionError):
                await producer.insert_events(session, events(broken=True))
            assert await producer.insert_events(session, events(broken=False)) == len(EVENTS)

    asynchronous(work, url)
    assert len(types(conn)) == len(EVENTS)


def test_errors_are_the_same_with_every_driver(conn: Connection, queue: str, url: sa.URL) -> None:
    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            with pytest.raises(errors.QueueNotFound) as caught:
                await AsyncProducer("nowhere").insert_event(session, "lost")
            assert caught.value.sqlstate == "PQ001"
            assert "nowhere" in caught.value.message
            assert "\n" not in caught.value.message
            assert caught.value.hint
            await session.rollback()
            me = await session.scalar(sa.text("select pg_backend_pid()"))
            conn.execute("select pg_terminate_backend(%s, 60000)", [me])
            with pytest.raises(errors.ConnectionFailed):
                await AsyncProducer(queue).insert_event(session, "lost")

    asynchronous(work, url)


def test_a_consumer_takes_the_engines_connection_string(queue: str, url: sa.URL) -> None:
    class Idle(pgqpy.Consumer):
        consumer = "idle"

        def process_event(self, conn: Any, event: pgqpy.Event) -> None:
            raise AssertionError

    assert Idle(libpq_dsn(url), queue=queue).register()
    assert libpq_dsn("postgresql+asyncpg://me:p%40ss@h:1/d") == "postgresql://me:p%40ss@h:1/d"


def test_what_has_no_transaction_or_is_of_the_other_kind_is_refused(engine: sa.Engine) -> None:
    async_engine = create_async_engine(engine.url)
    sync, other = Producer("q"), AsyncProducer("q")
    with pytest.raises(TypeError, match=r"not by Engine; Engine\.begin\(\) gives a connection"):
        sync.insert_event(engine, "t")  # type: ignore[arg-type]
    for given in (AsyncSession(async_engine), async_engine.connect()):
        with pytest.raises(TypeError, match="AsyncProducer"):
            sync.insert_event(given, "t")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="AsyncProducer"):
            sync.insert_events(given, EVENTS)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"AsyncEngine\.begin"):
        asyncio.run(other.insert_event(async_engine, "t"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"sqlalchemy\.Producer"):
        asyncio.run(other.insert_events(Session(engine), EVENTS))  # type: ignore[arg-type]
    with (
        pgqpy.connect(libpq_dsn(engine.url)) as conn,
        pytest.raises(TypeError, match=r"by a Session or .*, not by psycopg's Connection; "),
    ):
        sync.insert_event(conn, "t")  # type: ignore[arg-type]
