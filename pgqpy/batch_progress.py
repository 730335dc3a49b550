"""How far a consumer is with a batch, told by the name of its session.

``pg_stat_activity`` shows that name to everybody, it is gone when the session is, and no row of
any table is written for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

_NAME = re.compile(r"pgqpy batch (\d+), (\d+) s(?:, (\d+)/(\d+) tasks)?:")


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """A batch that is being processed."""

    batch_id: int
    running: timedelta
    """In whole seconds."""
    tasks_done: int | None = None
    tasks: int | None = None
    """Of what is computed now; None if nobody knows."""

    def session_name(self, consumer: str) -> str:
        """The progress as an ``application_name``; what is too long for one is cut at the end."""
        tasks = "" if self.tasks is None else f", {self.tasks_done}/{self.tasks} tasks"
        seconds = self.running // timedelta(seconds=1)
        return f"pgqpy batch {self.batch_id}, {seconds} s{tasks}: {consumer}"[:63]

    @classmethod
    def from_session_name(cls, name: str) -> Self | None:
        """The progress that a session's name tells; None if it tells none."""
        match = _NAME.match(name)
        if match is None:
            return None
        batch_id, seconds, done, tasks = (None if n is None else int(n) for n in match.groups())
        assert batch_id is not None
        assert seconds is not None
        return cls(batch_id, timedelta(seconds=seconds), done, tasks)
