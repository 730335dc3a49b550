"""Cascaded queues: exact copies of a queue in other databases."""

from pgqpy.cascade.cascade import Cascade
from pgqpy.cascade.consumer import CascadedConsumer
from pgqpy.cascade.consumer_async import AsyncCascadedConsumer
from pgqpy.cascade.worker import CascadedWorker
from pgqpy.cascade.worker_async import AsyncCascadedWorker

__all__ = [
    "AsyncCascadedConsumer",
    "AsyncCascadedWorker",
    "Cascade",
    "CascadedConsumer",
    "CascadedWorker",
]
