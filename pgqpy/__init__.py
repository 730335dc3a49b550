"""PgQ for Python and Spark: transactional event queues in PostgreSQL.

Producing, consuming and administering, each for sync and for asyncio::

    Producer("flights").insert_event(conn, "departed", "...")     # AsyncProducer
    class DelayCounter(Consumer): ...                             # AsyncConsumer
    Admin(conn).create_queue("flights")                           # AsyncAdmin
"""

from psycopg import IsolationLevel

from pgqpy import errors
from pgqpy._runtime.version import __version__ as __version__
from pgqpy.admin import Admin, GroupAdmin
from pgqpy.admin_async import AsyncAdmin, AsyncGroupAdmin
from pgqpy.connection import Connection, connect
from pgqpy.connection_async import AsyncConnection, async_connect
from pgqpy.consumer.base import Consumer
from pgqpy.consumer.base_async import AsyncConsumer
from pgqpy.consumer.batch import Batch
from pgqpy.consumer.batch_async import AsyncBatch
from pgqpy.consumer.coop import CoopConsumer
from pgqpy.consumer.coop_async import AsyncCoopConsumer
from pgqpy.consumer.group import GroupConsumer
from pgqpy.consumer.group_async import AsyncGroupConsumer
from pgqpy.consumer.group_batch import GroupBatch
from pgqpy.consumer.group_batch_async import AsyncGroupBatch
from pgqpy.consumer.remote import RemoteConsumer, SerialConsumer
from pgqpy.consumer.remote_async import AsyncRemoteConsumer, AsyncSerialConsumer
from pgqpy.consumer.tracked import TrackedConsumer
from pgqpy.consumer.tracked_async import AsyncTrackedConsumer
from pgqpy.dead_letters import DeadLetters
from pgqpy.dead_letters_async import AsyncDeadLetters
from pgqpy.errors import PgqError
from pgqpy.event import Event, NewEvent
from pgqpy.models import (
    BatchInfo,
    BatchStats,
    ConsumerInfo,
    ConsumerPause,
    Contract,
    ContractInfo,
    DeadLetterFilter,
    DeadLetterInfo,
    EventPlace,
    NextBatch,
    QueueGrant,
    QueueInfo,
)
from pgqpy.producer import Producer
from pgqpy.producer_async import AsyncProducer
from pgqpy.retry import DeadLetter, ExponentialBackoff, FixedDelay, Retry, RetryPolicy
from pgqpy.shards import AsyncShardedConsumer, Shard, ShardedConsumer, ShardMap

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
    "AsyncShardedConsumer",
    "AsyncTrackedConsumer",
    "Batch",
    "BatchInfo",
    "BatchStats",
    "Connection",
    "Consumer",
    "ConsumerInfo",
    "ConsumerPause",
    "Contract",
    "ContractInfo",
    "CoopConsumer",
    "DeadLetter",
    "DeadLetterFilter",
    "DeadLetterInfo",
    "DeadLetters",
    "Event",
    "EventPlace",
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
    "QueueGrant",
    "QueueInfo",
    "RemoteConsumer",
    "Retry",
    "RetryPolicy",
    "SerialConsumer",
    "Shard",
    "ShardMap",
    "ShardedConsumer",
    "TrackedConsumer",
    "async_connect",
    "connect",
    "errors",
]
