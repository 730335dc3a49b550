"""Cascaded queues: exact copies of a queue in other databases."""

from pgqpy.cascade.cascade import Cascade
from pgqpy.cascade.worker import CascadedWorker
from pgqpy.cascade.worker_async import AsyncCascadedWorker

__all__ = ["AsyncCascadedWorker", "Cascade", "CascadedWorker"]
