"""Commands about task queues: ``pgqpy task``. Their modules add themselves to the group."""

from pgqpy.cli._tasks import change, grant, history, limit, look, periodic, push, queue, work
from pgqpy.cli._tasks.group import task

MODULES = (change, grant, history, limit, look, periodic, push, queue, work)

__all__ = ["MODULES", "task"]
