"""Commands about task queues: ``pgqpy task``. Their modules add themselves to the group."""

from pgqpy.cli._tasks import change, history, look, periodic, push, queue, restrict, work
from pgqpy.cli._tasks.choice import task

MODULES = (change, history, look, periodic, push, queue, restrict, work)

__all__ = ["MODULES", "task"]
