"""The workers of cascaded queues as one process that a file configures."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import pgqpy.cascade
from pgqpy_consumers.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The settings in the file."""

    nodes: tuple[str, ...] = setting(
        "The databases whose nodes it keeps.",
        example=("postgresql:///shop", "postgresql://reports.example/reports"),
    )
    poll_interval: float = setting(
        "Seconds between looks at the states of a database's nodes.", default=1.0, at_least=0.01
    )
    watermark_interval: float = setting(
        "Seconds between reports of which ticks are not needed any more.", default=60.0, at_least=0
    )
    batch_size: int = setting(
        "The approximate number of events a transaction, when a node is behind.",
        default=200_000,
        at_least=1,
    )
    at_once: int = setting(
        "The number of queues that are copied at the same time.", default=4, at_least=1
    )


class Cascade(pgqpy.cascade.Cascade):
    """Copies cascaded queues from node to node, all those of some databases in one process."""

    Config = Config

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """The cascade with these settings."""
        made = cls(config.nodes)
        for each in fields(config):
            if each.name != "nodes":
                setattr(made, each.name, getattr(config, each.name))
        return made
