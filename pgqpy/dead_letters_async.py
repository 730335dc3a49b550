"""Finding, replaying and purging dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from pgqpy._runtime.fetch_async import require_psycopg
from pgqpy._wire import dead_letters as sql
from pgqpy.connection_async import AsyncConnection
from pgqpy.errors import translate_errors
from pgqpy.models import DeadLetterFilter, DeadLetterInfo


class AsyncDeadLetters:
    """The dead letters of a database, on the caller's connection and in its transaction.

    `count` and `find` need the role pgq_reader, `replay` and `purge` pgq_admin.
    """

    def __init__(self, conn: AsyncConnection) -> None:
        require_psycopg(self, conn)
        self.conn = conn

    async def count(self, which: DeadLetterFilter) -> int:
        """Return their number."""
        return int((await self._rows(sql.COUNT, which))[0]["value"])

    async def find(
        self, which: DeadLetterFilter, *, limit: int | None = None
    ) -> list[DeadLetterInfo]:
        """Return dead letters, the newest first, at most ``limit``."""
        return [
            DeadLetterInfo.from_row(row) for row in await self._rows(sql.FIND, which, limit=limit)
        ]

    async def replay(
        self,
        which: DeadLetterFilter,
        *,
        data: str | None = None,
        patch: Mapping[str, Any] | str | None = None,
    ) -> int:
        """Retry the events; return their number.

        Each goes only to the consumer that gave it up, with its old id and as if for the first
        time, like a retry that is due now; a single one with the payload ``data``, if that is
        given. With ``patch``, a JSON Merge Patch (RFC 7396; a text of JSON keeps all digits), each
        payload is changed: its members replace those of the payload, or are added; a None removes.

        Raises ConsumerNotRegistered if that consumer does not exist any more, and InvalidParameter
        for one payload for several, or a payload that is not JSON; then none is replayed.
        """
        if patch is not None:
            if data is not None:
                raise ValueError("give a payload, or a patch of it")
            change = patch if isinstance(patch, str) else Jsonb(patch)
            return int((await self._rows(sql.PATCH, which, patch=change))[0]["value"])
        return int((await self._rows(sql.REPLAY, which, data=data))[0]["value"])

    async def purge(self, which: DeadLetterFilter) -> int:
        """Delete them; return their number."""
        return int((await self._rows(sql.PURGE, which))[0]["value"])

    async def _rows(
        self, statement: bytes, which: DeadLetterFilter, **more: Any
    ) -> list[dict[str, Any]]:
        given = sql.parameters(which, **more)
        with translate_errors():
            async with self.conn.cursor(row_factory=dict_row) as cursor:
                await cursor.execute(statement, given)
                return await cursor.fetchall()
