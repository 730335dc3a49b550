"""Changes of many things, in chunks: each is a transaction of its own, as the viewer's role."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgqpy.errors import PgqError
from pgqpy.log import logger
from pgqpy.ui._database import Database, Visit

if TYPE_CHECKING:
    from pgqpy.ui._view import Bulk

#: Changes of a role that are shown after their end.
KEPT = 3


@dataclass
class Running:
    """A change under way, or ended."""

    title: str
    total: int
    done: int = 0
    #: Why it ended early: an error, or that a user has stopped it.
    problem: str = ""
    ended: bool = False
    stop: bool = False


@dataclass
class Changes:
    """All changes of a console, by role; one at a time for each."""

    of_role: dict[str | None, list[Running]] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def running(self, role: str | None) -> Running | None:
        """Return the change of a role that has not ended."""
        return next((each for each in self.of_role.get(role, ()) if not each.ended), None)

    def start(
        self,
        database: Database,
        role: str | None,
        bulk: Bulk,
        log: Callable[[Visit, int], None],
    ) -> None:
        """Begin one; ``log`` notes each chunk in its transaction."""
        change = Running(bulk.title, bulk.total)
        self.of_role[role] = [*self.of_role.get(role, ())[-KEPT + 1 :], change]

        def chunk(visit: Visit) -> int:
            count = bulk.step(visit.conn)
            if count:
                log(visit, count)
            return count

        async def run() -> None:
            try:
                while not change.stop and (count := await database.visit(role, chunk, change=True)):
                    change.done += count
                change.problem = "stopped" if change.stop else ""
            except PgqError as error:
                change.problem = error.message
            except Exception:
                logger.exception("console: a change has failed")
                change.problem = "the console failed: see its log"
            change.ended = True

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
