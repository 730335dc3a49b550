"""Consumers: classes to subclass, each for sync code and for asyncio."""

from pgqpy._runtime.acompat import on_stop_signals
from pgqpy._runtime.checks import check_names
from pgqpy.consumer._settings import RunOptions
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

__all__ = [
    "AsyncBatch",
    "AsyncConsumer",
    "AsyncCoopConsumer",
    "AsyncGroupBatch",
    "AsyncGroupConsumer",
    "AsyncRemoteConsumer",
    "AsyncSerialConsumer",
    "AsyncTrackedConsumer",
    "Batch",
    "Consumer",
    "CoopConsumer",
    "GroupBatch",
    "GroupConsumer",
    "RemoteConsumer",
    "RunOptions",
    "SerialConsumer",
    "TrackedConsumer",
    "check_names",
    "on_stop_signals",
]
