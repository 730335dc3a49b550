"""Captures that mapped classes declare are made, however their tables are made."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    declarative_base,
    mapped_column,
    registry,
)

from pgqpy import errors
from pgqpy.sqlalchemy import Capture, captures_of, declare_capture
from tests.fixtures.fix_db import Connection, MakeRole

ONLY_INSERTS = Capture("audit", operations=["insert"])


def table_of(cls: Any) -> sa.Table:
    table = sa.inspect(cls).local_table
    assert isinstance(table, sa.Table)
    return table


def orders() -> sa.MetaData:
    """A table whose capture is declared."""
    metadata = sa.MetaData()
    order = sa.Table("order", metadata, sa.Column("id", sa.Integer, primary_key=True))
    declare_capture(order, "orders")
    return metadata


def captured(conn: Connection) -> list[tuple[str, str]]:
    return conn.execute("select table_name, queue_name from pgq.capture_info()").fetchall()


@pytest.mark.smoke
def test_create_all_captures_what_it_creates(conn: Connection, engine: sa.Engine) -> None:
    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "order"
        __pgq_queue__ = ("orders", ONLY_INSERTS)
        id: Mapped[int] = mapped_column(primary_key=True)
        item: Mapped[str]

    class Unheard(Base):
        __tablename__ = "unheard"
        id: Mapped[int] = mapped_column(primary_key=True)

    Base.metadata.create_all(engine)
    Base.metadata.create_all(engine)
    assert captured(conn) == [('public."order"', "audit"), ('public."order"', "orders")]
    with Session(engine) as session, session.begin():
        session.add(Order(item="book"))
        session.add(Unheard())
    assert (
        conn.execute("select ev_extra1 from pgq.event_template").fetchall()
        == [("public.order",)] * 2
    )
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    assert len(captured(conn)) == 2


def test_create_all_of_an_async_engine(conn: Connection, dsn: str) -> None:
    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "order"
        __pgq_queue__ = Capture("100% orders", condition="new.item like 'a%:b'")
        id: Mapped[int] = mapped_column(primary_key=True)
        item: Mapped[str]

    async def run() -> None:
        url = sa.make_url(dsn).set(drivername="postgresql+asyncpg")
        engine = create_async_engine(url)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        await engine.dispose()

    asyncio.run(run())
    conn.execute("insert into \"order\" values (1, 'ax:b'), (2, 'b')")
    assert conn.execute("select count(*) from pgq.event_template").fetchall() == [(1,)]


def test_a_translated_schema_is_the_one_that_is_captured(
    conn: Connection, engine: sa.Engine
) -> None:
    conn.execute("create schema tenant")
    orders().create_all(engine.execution_options(schema_translate_map={None: "tenant"}))
    assert captured(conn) == [('tenant."order"', "orders")]


def test_other_databases_and_printed_statements() -> None:
    metadata = orders()
    sqlite = sa.create_engine("sqlite://")
    metadata.create_all(sqlite)
    sqlite.dispose()
    printed: list[str] = []

    def show(statement: Any, *_: Any) -> None:
        printed.append(str(statement.compile(dialect=postgresql.dialect())))  # type: ignore[no-untyped-call]

    mock = sa.create_mock_engine("postgresql+psycopg://", show)
    metadata.create_all(mock, checkfirst=False)
    assert "pgq.capture_table('\"order\"', 'orders')" in printed[-1]


def test_a_role_that_may_not_create_queues_captures_into_one_that_is_there(
    conn: Connection, engine: sa.Engine, make_role: MakeRole
) -> None:
    role = make_role("app", "pgq_writer")
    conn.execute(f"select pgq.create_queue('orders'); create schema authorization {role}".encode())
    metadata = orders()
    with engine.connect() as connection:
        connection.exec_driver_sql(f"set session authorization {role}")
        metadata.create_all(connection)
        connection.commit()
        assert captured(conn) == [(f'{role}."order"', "orders")]
        declare_capture(metadata.tables["order"], "new")
        metadata.drop_all(connection)
        with pytest.raises(errors.PermissionDenied, match="create_queue"):
            metadata.create_all(connection)


def test_without_the_schema_the_error_says_how_to_install_it(empty_dsn: str) -> None:
    engine = sa.create_engine(sa.make_url(empty_dsn).set(drivername="postgresql+psycopg"))
    with pytest.raises(errors.SchemaMissing, match="pgqpy migrate"):
        orders().create_all(engine)
    engine.dispose()


def test_classes_inherit_the_declaration_for_tables_of_their_own_and_must_not_contradict_it() -> (
    None
):
    class Base(DeclarativeBase):
        pass

    class Person(Base):
        __tablename__ = "person"
        __pgq_queue__: ClassVar[Any] = "people"
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "person"}  # noqa: RUF012
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str]

    class Engineer(Person):
        __tablename__ = "engineer"
        __mapper_args__ = {"polymorphic_identity": "engineer"}  # noqa: RUF012
        id: Mapped[int] = mapped_column(sa.ForeignKey("person.id"), primary_key=True)

    class Guest(Person):
        __tablename__ = "guest"
        __pgq_queue__ = None
        __mapper_args__ = {"polymorphic_identity": "guest"}  # noqa: RUF012
        id: Mapped[int] = mapped_column(sa.ForeignKey("person.id"), primary_key=True)

    class Manager(Person):
        # in the table of Person
        __mapper_args__ = {"polymorphic_identity": "manager"}  # noqa: RUF012

    assert captures_of(table_of(Person)) == [Capture("people")]
    assert captures_of(table_of(Engineer)) == [Capture("people")]
    assert captures_of(table_of(Guest)) == []
    assert sa.inspect(Manager).local_table is table_of(Person)

    class Owner(Person):
        __pgq_queue__ = Capture("people", exclude=["kind"])
        __mapper_args__ = {"polymorphic_identity": "owner"}  # noqa: RUF012

    with pytest.raises(errors.InvalidParameter, match="declare it once"):
        captures_of(table_of(Person))


def test_every_kind_of_mapping_counts() -> None:
    Base: Any = declarative_base()  # noqa: N806

    class Old(Base):  # type: ignore[misc]
        __tablename__ = "old"
        __pgq_queue__ = "old"
        id = sa.Column(sa.Integer, primary_key=True)

    class Imperative:
        __pgq_queue__ = ["imperative"]  # noqa: RUF012

    mapping = registry()
    table = sa.Table("i", mapping.metadata, sa.Column("id", sa.Integer, primary_key=True))
    mapping.map_imperatively(Imperative, table)
    assert captures_of(table_of(Old)) == [Capture("old")]
    assert captures_of(table) == [Capture("imperative")]


IMPORTED_LATE = """
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

class Base(DeclarativeBase):
    pass

class Order(Base):
    __tablename__ = "order"
    __pgq_queue__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)

import pgqpy.sqlalchemy

engine = sa.create_engine("postgresql+psycopg://" + __import__("sys").argv[1].partition("://")[2])
Base.metadata.create_all(engine)
engine.dispose()
"""


def test_it_does_not_matter_what_is_imported_first(conn: Connection, dsn: str) -> None:
    subprocess.run([sys.executable, "-c", IMPORTED_LATE, dsn], check=True)
    assert captured(conn) == [('public."order"', "orders")]
