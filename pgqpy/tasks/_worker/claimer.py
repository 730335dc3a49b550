"""The decisions of a worker: when to claim tasks, and how many. No I/O."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from pgqpy.tasks._settings import Settings
from pgqpy.tasks._values import Task
from pgqpy.tasks._worker.leases import Claim, Leases

#: The seconds that a batch should take: if it takes less, the next one is twice as large.
_QUICK, _SLOW = 0.1, 0.5
#: The first poll after a claim that found nothing: some uncommitted pushes send no notification.
_FIRST_LOOK = 0.05
#: The number of notifications answered at once before they are folded, so that tasks that come once
#: an interval need not wait if one of them is a little early.
_AT_ONCE = 3


class Claimer:
    """Decides when to claim tasks, and how many."""

    def __init__(self, settings: Settings, leases: Leases) -> None:
        self._settings = settings
        self._leases = leases
        #: The number of tasks to claim at once.
        self._size = settings.concurrency
        self._claimed_at = 0.0
        #: A task that may end this process: while it is worked on no other one begins.
        self._dangerous: Claim | None = None
        #: Whether the last claim got fewer tasks than it could.
        self.dry = False
        #: Whether it got none after catching up, while no task was worked on: none is available.
        self.done = False
        self._look_at = 0.0
        self._look_pause = _FIRST_LOOK
        #: The time to answer a notification that arrives earlier; and the time by which all answers
        #: so far would have been given, had there been an interval between them.
        self._answer_at = 0.0
        self._answers_until = 0.0
        #: The number of consecutive notifications that were answered in vain.
        self._vain = 0
        #: The number of tasks of the last claim.
        self._found = 0

    @property
    def share(self) -> int:
        """The tasks of one concurrency slot, which `process_batch` gets at once."""
        return -(-self._size // self._settings.concurrency)

    def room(self, running: int, ended: int) -> int:
        """Return the number of tasks to claim; ``ended`` ones are about to be completed."""
        if self._dangerous is not None and self._dangerous.task in self._leases:
            return 0
        concurrency = self._settings.concurrency
        if not self._settings.in_slots:
            return 0 if self._leases.waiting else self._size
        room = self._size - len(self._leases) + ended
        if not self._leases.waiting:
            # An idle slot gets a task, however many the others have.
            return max(room, concurrency - running)
        return room if room * 2 >= self._size else 0

    def answers(self, now: float) -> bool:
        return now >= self._answer_at

    def looks(self, now: float, running: int, ended: int) -> bool:
        """Whether to claim without a notification."""
        if not self.dry or now >= self._look_at:
            return True
        # Finished tasks may have pushed others.
        return self._settings.until_empty and (bool(ended) or not (self.done or running))

    def wakes_at(self, heard: bool) -> float:
        """Return the time of the next claim, with or without an unanswered notification."""
        return min(self._look_at, self._answer_at) if heard else self._look_at

    def look_soon(self) -> None:
        """Claim next time: there may be tasks that were not found."""
        self._look_at = 0.0

    def look_at_all(self) -> None:
        """Claim from all queues next time, and ask for notifications."""
        self.dry = True
        self.look_soon()

    def answered(self, now: float) -> None:
        """Record the answer to a notification; a stream of them is folded, into one an interval."""
        fold = self._settings.fold_interval
        self._vain = 0 if self._found else min(self._vain + 1, 10)
        if self._vain:
            # Other workers were quicker, and may be so again.
            self._answer_at = now + random.uniform(0, min(fold, 0.001 * 2**self._vain))
        else:
            self._answers_until = max(self._answers_until, now) + fold
            self._answer_at = self._answers_until - (_AT_ONCE - 1) * fold

    def claimed(
        self, room: int, rows: Sequence[Sequence[Any]], due: float | None, now: float
    ) -> list[Claim]:
        """Return the claims of these rows, and decide on the next ones.

        ``due`` is the number of seconds until another task is due, None if not known.
        """
        self._found = len(rows)
        was_dry, self.dry = self.dry, len(rows) < room
        if not rows:
            # A claim before the unnotified tasks were committed has missed them.
            pause = self._look_pause if due is None else min(self._look_pause, due)
            wait = was_dry or self._settings.until_empty
            self._look_at = now + pause if wait else 0.0
            if wait:
                self._look_pause = min(self._look_pause * 2, self._settings.poll_interval)
            return []
        self._look_at = 0.0
        self._look_pause = min(_FIRST_LOOK, self._settings.poll_interval)
        if not self.dry:
            if now - self._claimed_at < _QUICK:
                self._size = min(self._size * 2, self._settings.batch_size)
            elif now - self._claimed_at > _SLOW:
                self._size = self._size // 2
            self._size = max(self._size, self._settings.concurrency)
        self._claimed_at = now
        return [Claim(Task(*row[:-1]), row[1], row[-1], now + row[-1], now) for row in rows]

    def beware(self, suspect: Claim, *, alone: bool) -> None:
        """Claim few tasks, since this one may have ended a worker, unless it is alone."""
        if suspect.dangerous:
            self._dangerous = suspect
        if not alone:
            self._size = self._settings.concurrency
