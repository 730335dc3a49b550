"""Consumers: classes to subclass, each for sync code and for asyncio. `pgqpy` has them; this has
what programs that extend them need."""

from pgqpy._runtime.acompat import on_stop_signals
from pgqpy._runtime.checks import check_names
from pgqpy.consumer._settings import RunOptions

__all__ = ["RunOptions", "check_names", "on_stop_signals"]
