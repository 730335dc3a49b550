"""The workers of cascaded queues as one process that a file configures."""

from __future__ import annotations

import pgqpy.cascade
from pgqpy_consumers.settings import Configured, setting


class Cascade(Configured, pgqpy.cascade.Cascade):
    """Copies cascaded queues from node to node, all those of some databases in one process."""

    nodes: tuple[str, ...] = setting(  # type: ignore[assignment]
        "The databases whose nodes it keeps.",
        example=("postgresql:///shop", "postgresql://reports.example/reports"),
    )
    poll_interval: float = setting(
        "Seconds between looks at the states of a database's nodes.", at_least=0.01
    )
    watermark_interval: float = setting(
        "Seconds between reports of which ticks are not needed any more.", at_least=0
    )
    batch_size: int = setting(
        "The approximate number of events a transaction, when a node is behind.", at_least=1
    )
    at_once: int = setting("The number of queues that are copied at the same time.", at_least=1)
