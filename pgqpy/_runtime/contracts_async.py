"""The contracts of a queue, read from the database when they change."""

from __future__ import annotations

from typing import Any

from pgqpy._runtime.fetch_async import async_fetch
from pgqpy._wire.contract import Validators
from pgqpy.connection_async import AsyncConnection

_VERSIONS = b"select ev_type, version, added from pgq.get_contract_info(%s) where not captured"
_CONTRACTS = b"""
select i.ev_type, c.version, c.schema::text
  from pgq.get_contract_info(%s) i
 cross join pgq.get_contract(i.queue_name, i.ev_type) c
 where not i.captured
"""


class AsyncContracts:
    """The contracts of one queue, compiled once for each set of versions."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        #: With shards, each database may have its own.
        self._known: dict[tuple[Any, ...], Validators] = {}

    async def read(self, conn: AsyncConnection) -> Validators:
        """Return the contracts in force. Raises InvalidContract, ImportError."""
        versions = tuple(await async_fetch(conn, _VERSIONS, [self._queue]))
        if versions not in self._known:
            contracts = await async_fetch(conn, _CONTRACTS, [self._queue])
            self._known[versions] = Validators(self._queue, contracts)
        return self._known[versions]
