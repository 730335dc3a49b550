"""Progress of a consumer within a batch, published as the name of its session.

``pg_stat_activity`` shows that name to all users, it disappears with the session, and it needs no
write to any table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from pgqpy._runtime.version import __version__

# Any session can give itself any name: numbers that are too long are none of ours.
_NAME = re.compile(
    r"pgqpy batch ([0-9]{1,19}), ([0-9]{1,9}) s(?:, ([0-9]{1,9})/([0-9]{1,9}) tasks)?:"
)


def session_name(consumer: str) -> str:
    """Return the name of a consumer's sessions, with the version of pgqpy if there is room."""
    name = f"pgqpy {consumer}"
    versioned = f"{name} {__version__}"
    return versioned if len(versioned.encode()) <= 63 else name[:63]


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """A batch that is being processed."""

    batch_id: int
    running: timedelta
    """The time since the batch was opened, in whole seconds."""
    tasks_done: int | None = None
    tasks: int | None = None
    """The number of tasks of the current computation; None if unknown."""

    def session_name(self, consumer: str) -> str:
        """Return the progress as an ``application_name``, cut to its maximal length."""
        tasks = "" if self.tasks is None else f", {self.tasks_done}/{self.tasks} tasks"
        seconds = self.running // timedelta(seconds=1)
        return f"pgqpy batch {self.batch_id}, {seconds} s{tasks}: {consumer}"[:63]

    @classmethod
    def from_session_name(cls, name: str) -> Self | None:
        """Parse a session's name; None if it holds no progress."""
        match = _NAME.match(name)
        if match is None:
            return None
        batch_id, seconds, done, tasks = (None if n is None else int(n) for n in match.groups())
        assert batch_id is not None
        assert seconds is not None
        return cls(batch_id, timedelta(seconds=seconds), done, tasks)
