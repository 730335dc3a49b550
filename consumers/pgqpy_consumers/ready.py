"""Consumers that are ready to run: ``pgqpy run NAME config.toml``.

Subclass one, and ``pgqpy run FILE.py:CLASS config.toml`` runs that. `Configured` gives a consumer
of your own its settings.
"""

from __future__ import annotations

import importlib
from typing import Any

from pgqpy_consumers.settings import ConfigError, Configured, advice, configured, setting

__all__ = ["READY", "ConfigError", "Configured", "configured", "ready", "setting"]

#: The names that ``pgqpy run`` knows, with module and class.
READY: dict[str, str] = {
    "cascade": "pgqpy_consumers.cascade:Cascade",
    "email_sender": "pgqpy_consumers.email_sender:EmailSender",
    "events_to_tasks": "pgqpy_consumers.events_to_tasks:EventsToTasks",
    "queue_mover": "pgqpy_consumers.queue_mover:QueueMover",
    "queue_splitter": "pgqpy_consumers.queue_splitter:QueueSplitter",
    "row_counter": "pgqpy_consumers.row_counter:RowCounter",
    "table_loader": "pgqpy_consumers.table_loader:TableLoader",
    "replicate": "pgqpy_consumers.replicate:Replicate",
    "webhook": "pgqpy_consumers.webhook:Webhook",
}


def ready(name: str) -> type[Any]:
    """The class of that name. Raises ConfigError if there is none."""
    if name not in READY:
        raise ConfigError(f"no consumer {name!r} is ready to run: {advice(name, sorted(READY))}")
    module, _, found = READY[name].partition(":")
    made: type[Any] = getattr(importlib.import_module(module), found)
    return made
