"""The tasks that a worker has claimed, and the renewal of their leases.

A thread renews them, with a connection of its own, also with asyncio: a handler that keeps its
thread or the event loop busy must not cost the lease.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import Any

from psycopg.rows import tuple_row

from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.failure import soon
from pgqpy._runtime.heartbeat import Heartbeat
from pgqpy.connection import Connection, connect
from pgqpy.log import logger
from pgqpy.retry import DeadLetter
from pgqpy.tasks import _statements as sql
from pgqpy.tasks._settings import Database
from pgqpy.tasks._values import Task, Unreadable


@dataclass(eq=False, slots=True)
class Claim:
    """A task of the worker, from the claim until its outcome is reported."""

    task: Task
    #: The newest version, which counts.
    version: int
    #: Seconds from a renewal to the end of the lease.
    lease: float
    #: The end of the lease, by this machine's clock.
    end: float
    #: When the task was last known not to be cancelled.
    asked: float
    #: The task was cancelled meanwhile.
    cancelled: bool = False
    #: Its version may have changed without this worker's knowledge.
    doubtful: bool = False
    #: Another worker may have it.
    lost: bool = False
    #: Interrupts the work on it.
    interrupt: Callable[[], None] | None = field(default=None, repr=False)

    @property
    def suspect(self) -> bool:
        """Whether the last attempt had no outcome: it, or one beside it, has ended its worker."""
        return self.task.error == sql.LOST

    @property
    def unread(self) -> DeadLetter | None:
        """Why nothing can work on it: Python cannot read what it has."""
        for value in (self.task.payload, self.task.headers):
            if isinstance(value, Unreadable):
                return DeadLetter(str(value))
        return None

    @property
    def dangerous(self) -> bool:
        """Whether it is suspect, and this is not its first retry."""
        return self.suspect and self.task.attempts > 2

    @property
    def renew_at(self) -> float:
        return self.end - self.lease / 2

    def interruptible(self, interrupt: Callable[[], None]) -> None:
        """Have the work interrupted when the task is lost: at once if it was just now."""
        self.interrupt = interrupt
        if self.lost:
            interrupt()


class Leases:
    """The claims of a worker, renewed at half of their leases.

    Those in `waiting` have not begun. The code that takes a claim out of there owns it: to work on
    it, or to give it back, which happens if it still waits after half of its lease.
    """

    def __init__(
        self, database: Database, lease: timedelta | None, on_lost: Callable[[Claim], None]
    ) -> None:
        """``on_lost`` is called in the thread, for a claim whose lease was lost."""
        self.waiting: deque[Claim] = deque()
        #: Held while a renewal is under way: the versions are unknown until its answer.
        self.renewing = threading.Lock()
        self._claims: dict[int, Claim] = {}
        self._claimant = database.claimant
        self._lease = lease
        self._on_lost = on_lost
        self._shortest = 60.0
        self._heartbeat = Heartbeat(
            "renew",
            lambda: connect(database.dsn, **database.options),
            self._renew_due,
            self._renew_at,
            self._not_renewed,
            backoff=Backoff(0.05, 2),
        )

    def __len__(self) -> int:
        return len(self._claims)

    def __contains__(self, task: Task) -> bool:
        claim = self._claims.get(task.id)
        return claim is not None and claim.task.version == task.version

    def add(self, claims: list[Claim]) -> list[Claim]:
        """Add new claims, which wait. Returns earlier claims of the same tasks, which are lost."""
        lost = []
        first, shortest = math.inf, self._shortest
        for claim in claims:
            if (before := self._claims.get(claim.task.id)) is not None:
                lost.append(before)
            self._claims[claim.task.id] = claim
            first, shortest = min(first, claim.renew_at), min(shortest, claim.lease)
        self.waiting.extend(claims)
        self._shortest = shortest
        self._heartbeat.start()
        self._heartbeat.wake(first)
        return lost

    def claims(self) -> dict[int, Claim]:
        """Return all claims, by the ids of their tasks."""
        return self._claims.copy()

    def drop(self, claims: Iterable[Claim]) -> None:
        """Stop renewing claims; call it while `renewing` is held."""
        for claim in claims:
            if self._claims.get(claim.task.id) is claim:
                del self._claims[claim.task.id]

    def keep(self, claims: Iterable[Claim]) -> None:
        """Renew claims again."""
        for claim in claims:
            self._claims.setdefault(claim.task.id, claim)

    def take_waiting(self) -> list[Claim]:
        """Take all claims that have not begun."""
        taken = []
        with suppress(IndexError):
            while True:
                taken.append(self.waiting.popleft())
        return taken

    def close(self) -> None:
        self._heartbeat.close()

    # --- in the thread

    def _renew_at(self) -> float:
        due = [claim.renew_at for claim in [*self._claims.values()]]
        # A later claim has no shorter lease, or else it wakes the thread.
        return min(due, default=monotonic() + self._shortest / 2)

    def _renew_due(self, conn: Connection) -> None:
        with self.renewing:
            now = monotonic()
            # Some are renewed a little early, together with others.
            due = [c for c in [*self._claims.values()] if c.renew_at <= now + c.lease / 8]
            unbegun = [claim for claim in due if self._take_back(claim)]
            begun = [claim for claim in due if claim not in unbegun]
            self.drop(unbegun)
            try:
                if unbegun:
                    self._ask(conn, sql.RELEASE, *versions(unbegun), None, None)
                lost = self._renew(conn, begun) if begun else []
            except Exception:
                for claim in begun:
                    claim.doubtful = True
                raise
            # Some may have been reported to the server meanwhile.
            lost = [claim for claim in lost if claim.task in self]
            self.drop(lost)
        for claim in lost:
            self._on_lost(claim)

    def _not_renewed(self, error: Exception, pause: float) -> None:
        logger.warning(
            "leases of %s tasks could not be renewed: %s; again %s",
            len(self),
            str(error).partition("\n")[0],
            soon(pause),
            extra={"claimant": self._claimant, "pause": pause},
        )

    def _take_back(self, claim: Claim) -> bool:
        try:
            self.waiting.remove(claim)
        except ValueError:
            return False
        return True

    def _renew(self, conn: Connection, claims: list[Claim]) -> list[Claim]:
        """Renew claims; return the lost ones."""
        if any(claim.doubtful for claim in claims):
            ids = [claim.task.id for claim in claims]
            know_versions(claims, self._ask(conn, sql.LEASES, ids, False))
        asked = monotonic()
        renewed = dict(self._ask(conn, sql.RENEW, *versions(claims), self._lease))
        for claim in claims:
            claim.version = renewed.get(claim.task.id, claim.version)
            claim.end = asked + claim.lease
        return [claim for claim in claims if claim.task.id not in renewed]

    def _ask(self, conn: Connection, statement: bytes, *arguments: Any) -> list[tuple[Any, ...]]:
        cursor = conn.cursor(row_factory=tuple_row)
        return cursor.execute(statement, [self._claimant, *arguments]).fetchall()


def know_versions(claims: Iterable[Claim], held: Iterable[tuple[int, int]]) -> None:
    """Give doubtful claims the versions that the server returned."""
    newest = dict(held)
    for claim in claims:
        claim.version = newest.get(claim.task.id, claim.version)
        claim.doubtful = False


def versions(claims: Iterable[Claim]) -> tuple[list[int], list[int]]:
    """Return the ids and versions of claims."""
    known = list(claims)
    return [claim.task.id for claim in known], [claim.version for claim in known]
