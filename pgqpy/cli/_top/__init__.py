"""``pgqpy top``: all queues, consumers, workers and problems on a full screen, with keys."""

from pgqpy.cli._top.command import top

__all__ = ["top"]
