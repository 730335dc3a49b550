"""PgQ for Python and Spark: transactional event queues in PostgreSQL.

Producing, consuming and administering, each for sync and for asyncio::

    Producer("flights").insert_event(conn, "departed", "...")     # AsyncProducer
    class DelayCounter(Consumer): ...                             # AsyncConsumer
    Admin(conn).create_queue("flights")                           # AsyncAdmin
"""

from psycopg import IsolationLevel

from pgqpy import errors
from pgqpy.admin import Admin
from pgqpy.admin_async import AsyncAdmin
from pgqpy.batch import Batch
from pgqpy.batch_async import AsyncBatch
from pgqpy.connection import Connection, connect
from pgqpy.connection_async import AsyncConnection, async_connect
from pgqpy.consumer import Consumer
from pgqpy.consumer_async import AsyncConsumer
from pgqpy.errors import PgqError
from pgqpy.event import Event, NewEvent
from pgqpy.producer import Producer
from pgqpy.producer_async import AsyncProducer
from pgqpy.values import BatchInfo, BatchStats, ConsumerInfo, NextBatch, QueueInfo

__version__ = "0.1.0"

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncBatch",
    "AsyncConnection",
    "AsyncConsumer",
    "AsyncProducer",
    "Batch",
    "BatchInfo",
    "BatchStats",
    "Connection",
    "Consumer",
    "ConsumerInfo",
    "Event",
    "IsolationLevel",
    "NewEvent",
    "NextBatch",
    "PgqError",
    "Producer",
    "QueueInfo",
    "async_connect",
    "connect",
    "errors",
]
