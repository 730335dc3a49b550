"""Cascaded queues: exact copies of a queue in other databases, and which of them is the root."""

from pgqpy.cascade._create import create_node
from pgqpy.cascade._failover import take_over_dead_root
from pgqpy.cascade._manage import change_provider, drop_node, set_paused
from pgqpy.cascade._nodes import Location, Node, NodeInfo, Nodes, NodeType
from pgqpy.cascade._status import NodeStatus, status
from pgqpy.cascade._takeover import Takeover, takeover
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
    "Location",
    "Node",
    "NodeInfo",
    "NodeStatus",
    "NodeType",
    "Nodes",
    "Takeover",
    "change_provider",
    "create_node",
    "drop_node",
    "set_paused",
    "status",
    "take_over_dead_root",
    "takeover",
]
