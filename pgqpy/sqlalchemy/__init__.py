"""PgQ for SQLAlchemy: events from a session, in its transaction, captured tables, rows as tasks.

Producing, with a Session or a Connection, or the asyncio ones::

    Producer("orders").insert_event(session, "created", "...")
    await AsyncProducer("orders").insert_event(async_session, "created", "...")

Events as objects, and queues as tables of Core::

    class OrderEvent(Event, Base):
        __queue__ = "orders"

    class OrderPlaced(OrderEvent):
        __event_type__ = "order.placed"

    session.add(OrderPlaced({"id": 1}))
    session.execute(queue_table("orders").insert(), [{"ev_type": "...", "ev_data": "..."}])

Capturing, by declaration; `pgqpy.alembic` has the migrations::

    class Order(Base):
        __tablename__ = "order"
        __pgq_queue__ = "orders"                      # or Capture("orders", exclude=["notes"])

Rows as tasks; also AsyncModelWorker::

    class Mail(TaskColumns, Base):
        __tablename__ = "mail"

    ModelWorker(dsn, Mail, send).run()
"""

from pgqpy.sqlalchemy._capture import Capture, captures_of, declare_capture, listen
from pgqpy.sqlalchemy._event import Event, queue_table
from pgqpy.sqlalchemy._producer import AsyncProducer, Producer
from pgqpy.sqlalchemy._session import libpq_dsn
from pgqpy.sqlalchemy.task_columns import TaskColumns, task_columns
from pgqpy.sqlalchemy.worker import ModelWorker
from pgqpy.sqlalchemy.worker_async import AsyncModelWorker

__all__ = [
    "AsyncModelWorker",
    "AsyncProducer",
    "Capture",
    "Event",
    "ModelWorker",
    "Producer",
    "TaskColumns",
    "captures_of",
    "declare_capture",
    "libpq_dsn",
    "queue_table",
    "task_columns",
]

listen()
