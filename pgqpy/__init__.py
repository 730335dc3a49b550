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
from pgqpy.coop_consumer import CoopConsumer
from pgqpy.coop_consumer_async import AsyncCoopConsumer
from pgqpy.dead_letter import DeadLetterFilter, DeadLetterInfo
from pgqpy.dead_letters import DeadLetters
from pgqpy.dead_letters_async import AsyncDeadLetters
from pgqpy.errors import PgqError
from pgqpy.event import Event, NewEvent
from pgqpy.group_admin import GroupAdmin
from pgqpy.group_admin_async import AsyncGroupAdmin
from pgqpy.group_batch import GroupBatch
from pgqpy.group_batch_async import AsyncGroupBatch
from pgqpy.group_consumer import GroupConsumer
from pgqpy.group_consumer_async import AsyncGroupConsumer
from pgqpy.producer import Producer
from pgqpy.producer_async import AsyncProducer
from pgqpy.remote_consumer import RemoteConsumer
from pgqpy.remote_consumer_async import AsyncRemoteConsumer
from pgqpy.retry_policy import DeadLetter, ExponentialBackoff, FixedDelay, Retry, RetryPolicy
from pgqpy.serial_consumer import SerialConsumer
from pgqpy.serial_consumer_async import AsyncSerialConsumer
from pgqpy.tracked_consumer import TrackedConsumer
from pgqpy.tracked_consumer_async import AsyncTrackedConsumer
from pgqpy.values import BatchInfo, BatchStats, ConsumerInfo, NextBatch, QueueInfo

__version__ = "0.1.0"

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncBatch",
    "AsyncConnection",
    "AsyncConsumer",
    "AsyncCoopConsumer",
    "AsyncDeadLetters",
    "AsyncGroupAdmin",
    "AsyncGroupBatch",
    "AsyncGroupConsumer",
    "AsyncProducer",
    "AsyncRemoteConsumer",
    "AsyncSerialConsumer",
    "AsyncTrackedConsumer",
    "Batch",
    "BatchInfo",
    "BatchStats",
    "Connection",
    "Consumer",
    "ConsumerInfo",
    "CoopConsumer",
    "DeadLetter",
    "DeadLetterFilter",
    "DeadLetterInfo",
    "DeadLetters",
    "Event",
    "ExponentialBackoff",
    "FixedDelay",
    "GroupAdmin",
    "GroupBatch",
    "GroupConsumer",
    "IsolationLevel",
    "NewEvent",
    "NextBatch",
    "PgqError",
    "Producer",
    "QueueInfo",
    "RemoteConsumer",
    "Retry",
    "RetryPolicy",
    "SerialConsumer",
    "TrackedConsumer",
    "async_connect",
    "connect",
    "errors",
]
