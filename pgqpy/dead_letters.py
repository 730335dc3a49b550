# WARNING: generated from pgqpy/dead_letters_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Finding, replaying and purging dead letters."""

from __future__ import annotations

from typing import Any

from psycopg.rows import dict_row

from pgqpy._dead_letter import COUNT, FIND, PURGE, REPLAY, DeadLetterFilter, DeadLetterInfo
from pgqpy.connection import Connection
from pgqpy.errors import translate_errors


class DeadLetters:
    """The dead letters of a database, on the caller's connection and in its transaction.

    `count` and `find` need the role pgq_reader, `replay` and `purge` pgq_admin.
    """

    def __init__(self, conn: Connection) -> None:
        self.conn = conn

    def count(self, which: DeadLetterFilter) -> int:
        """Return their number."""
        return int((self._rows(COUNT, which))[0]["value"])

    def find(self, which: DeadLetterFilter, *, limit: int | None = None) -> list[DeadLetterInfo]:
        """Return dead letters, the newest first, at most ``limit``."""
        return [DeadLetterInfo.from_row(row) for row in self._rows(FIND, which, limit=limit)]

    def replay(self, which: DeadLetterFilter) -> int:
        """Retry the events; return their number.

        Each goes only to the consumer that gave it up, with its old id and as if for the first
        time, like a retry that is due now. Raises ConsumerNotRegistered if that consumer does not
        exist any more; then none is replayed.
        """
        return int((self._rows(REPLAY, which))[0]["value"])

    def purge(self, which: DeadLetterFilter) -> int:
        """Delete them; return their number."""
        return int((self._rows(PURGE, which))[0]["value"])

    def _rows(self, statement: bytes, which: DeadLetterFilter, **more: Any) -> list[dict[str, Any]]:
        with translate_errors(), self.conn.cursor(row_factory=dict_row) as cursor:
            cursor.execute(statement, which.parameters() | more)
            return cursor.fetchall()
