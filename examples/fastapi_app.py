"""FastAPI and SQLAlchemy: an order and its event are one transaction; a consumer confirms it.

Run the ticker (``pgqpy ticker``), and this; the database is named by PGQPY_DSN, a URI::

    uvicorn --app-dir examples fastapi_app:app
    curl --json '{"item": "book"}' localhost:8000/orders
    curl localhost:8000/orders/1

An application in earnest makes its tables by Alembic; see docs/sqlalchemy.md.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import sqlalchemy as sa
from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import pgqpy
from pgqpy.sqlalchemy import AsyncProducer, libpq_dsn

URL = sa.make_url(os.environ.get("PGQPY_DSN", "postgresql://")).set(drivername="postgresql+asyncpg")

engine = create_async_engine(URL)
sessions = async_sessionmaker(engine)
orders = AsyncProducer("orders")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "web_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    confirmed: Mapped[bool] = mapped_column(server_default=sa.false())


class OrderIn(BaseModel):
    item: str


class OrderOut(OrderIn):
    id: int
    confirmed: bool


class Confirmer(pgqpy.AsyncConsumer):
    """Confirms orders: exactly once, since that and the batch's end are one transaction."""

    queue = "orders"
    consumer = "confirmer"
    event_types = ("order.placed",)

    async def process_event(self, conn: pgqpy.AsyncConnection, event: pgqpy.Event) -> None:
        await conn.execute(
            "update web_order set confirmed = true where id = %s", [event.json()["id"]]
        )


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        await connection.execute(sa.text("select pgq.create_queue('orders')"))
    confirmer = Confirmer(libpq_dsn(URL))
    await confirmer.register()
    async with asyncio.TaskGroup() as tasks:
        # The signals are the server's; it ends here when it stops.
        tasks.create_task(confirmer.run(handle_signals=False))
        yield
        confirmer.stop()
    await engine.dispose()


async def in_transaction() -> AsyncIterator[AsyncSession]:
    async with sessions.begin() as session:
        yield session


# Committed before the answer is sent, so the client finds the order.
Session = Annotated[AsyncSession, Depends(in_transaction, scope="function")]
app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def place_order(order_in: OrderIn, session: Session) -> OrderOut:
    order = Order(item=order_in.item)
    session.add(order)
    await session.flush()  # for its id
    data = {"id": order.id, "item": order.item}
    await orders.insert_event(session, "order.placed", data)
    if not order.item:
        # Raised after both were written: neither will be there.
        raise HTTPException(422, "an order is for an item")
    return OrderOut(id=order.id, item=order.item, confirmed=False)


@app.get("/orders/{order_id}")
async def show_order(order_id: int, session: Session) -> OrderOut:
    order = await session.get(Order, order_id)
    if order is None:
        raise HTTPException(404, "there is no such order")
    return OrderOut(id=order.id, item=order.item, confirmed=order.confirmed)
