"""Finding, replaying and purging dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from pgqpy._runtime.fetch_async import require_psycopg
from pgqpy._wire.statements import checked
from pgqpy.connection_async import AsyncConnection
from pgqpy.errors import translate_errors
from pgqpy.models import DeadLetterFilter, DeadLetterInfo

_WHERE = """
 where (%(ids)s::bigint[] is null or dl_id = any(%(ids)s::bigint[]))
   and (%(queue)s::text is null or dl_queue = %(queue)s)
   and (%(consumer)s::text is null or dl_consumer = %(consumer)s)
   and (%(event_type)s::text is null or ev_type = %(event_type)s)
   and (%(reason)s::text is null or position(lower(%(reason)s) in lower(dl_reason)) > 0)
   and (%(older_than)s::interval is null or dl_time < now() - %(older_than)s::interval)
"""
_COLUMNS = """
select dl_id, dl_time, dl_queue, dl_consumer, dl_batch, dl_attempts, dl_reason, dl_traceback,
       ev_id, ev_time, ev_txid, coalesce(ev_retry, 0) as ev_retry, ev_type, ev_data,
       ev_extra1, ev_extra2, ev_extra3, ev_extra4
  from pgq.dead_letter
"""

_COUNT = f"select count(*) as value from pgq.dead_letter {_WHERE}".encode()
_FIND = f"{_COLUMNS} {_WHERE} order by dl_id desc limit %(limit)s".encode()
_IDS = f"array(select dl_id from pgq.dead_letter {_WHERE})"
_REPLAY = f"select pgq.replay_dead_letters({_IDS}, %(data)s) as value".encode()
_PATCH = f"select pgq.replay_dead_letters_patched({_IDS}, %(patch)s::jsonb) as value".encode()
_PURGE = f"select pgq.purge_dead_letters({_IDS}) as value".encode()


class AsyncDeadLetters:
    """The dead letters of a database, on the caller's connection and in its transaction.

    `count` and `find` need the role pgq_reader, `replay` and `purge` pgq_admin.
    """

    def __init__(self, conn: AsyncConnection) -> None:
        require_psycopg(self, conn)
        self.conn = conn

    async def count(self, which: DeadLetterFilter) -> int:
        """Return their number."""
        return int((await self._rows(_COUNT, which))[0]["value"])

    async def find(
        self, which: DeadLetterFilter, *, limit: int | None = None
    ) -> list[DeadLetterInfo]:
        """Return dead letters, the newest first, at most ``limit``."""
        return [DeadLetterInfo.from_row(row) for row in await self._rows(_FIND, which, limit=limit)]

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
            return int((await self._rows(_PATCH, which, patch=change))[0]["value"])
        checked([data])
        return int((await self._rows(_REPLAY, which, data=data))[0]["value"])

    async def purge(self, which: DeadLetterFilter) -> int:
        """Delete them; return their number."""
        return int((await self._rows(_PURGE, which))[0]["value"])

    async def _rows(
        self, statement: bytes, which: DeadLetterFilter, **more: Any
    ) -> list[dict[str, Any]]:
        if not isinstance(which, DeadLetterFilter):
            raise TypeError(f"dead letters are chosen by a DeadLetterFilter, not {which!r:.80}")
        given = asdict(which)
        checked(given.values())
        ids = None if which.ids is None else list(which.ids)
        with translate_errors():
            async with self.conn.cursor(row_factory=dict_row) as cursor:
                await cursor.execute(statement, given | {"ids": ids} | more)
                return await cursor.fetchall()
