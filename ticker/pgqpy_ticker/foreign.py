"""Advisory locks of ours that sessions hold which have no role of ours.

Every role that may connect to the database can take them. What waits for one fails only later, or
stands by, so the holder is named: in the log, by /healthz and in the metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import LiteralString

from pgqpy_ticker.connect import Connection, fetch
from pgqpy_ticker.served import Served

LEAD = "the ticker's lead"
"""The name in pgq._lock_keys() of the lock by which a ticker leads."""

# One session can take any number.
_LOCKS: LiteralString = """
    select distinct pid, holder, role_name, lock_name
    from pgq.get_foreign_locks()
    order by 1, 4
    limit 100
"""


@dataclass(frozen=True, slots=True)
class ForeignLock:
    """A lock with its holder: a session, or a prepared transaction (``pid`` is None)."""

    pid: int | None
    holder: str
    role: str
    lock: str

    def __str__(self) -> str:
        holder = (
            f"prepared transaction {self.holder!r} of {self.role}"
            if self.pid is None
            else f"session {self.pid} of {self.role} ({self.holder or 'no name'})"
        )
        return f"{holder}, which has no role of pgq, holds up {self.lock}"

    @property
    def remedy(self) -> str:
        if self.pid is None:
            gid = "'" + self.holder.replace("'", "''") + "'"
            return f"rollback prepared {gid}"
        return f"select pg_terminate_backend({self.pid})"


class ForeignLocks:
    """Observes foreign locks; logs each once when it appears and once when it is gone."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._log = served.log()
        self._said: set[ForeignLock] = set()

    async def look(self, connection: Connection) -> list[ForeignLock]:
        """Return the locks that are held now."""
        held = [ForeignLock(*row) for row in await fetch(connection, _LOCKS)]
        self._served.foreign_locks = [str(lock) for lock in held]
        for lock in held:
            if lock not in self._said:
                self._log.warning(
                    "a foreign lock: %s",
                    lock,
                    extra={"holder_pid": lock.pid, "role": lock.role, "hint": lock.remedy},
                )
        for lock in self._said.difference(held):
            self._log.info("a foreign lock is gone: %s", lock, extra={"holder_pid": lock.pid})
        self._said = set(held)
        return held
