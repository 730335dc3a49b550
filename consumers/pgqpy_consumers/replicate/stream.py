"""Applying a batch of the queue to the tables that are ready for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import LiteralString

import pgqpy
from pgqpy import Event
from pgqpy._runtime.log import logger
from pgqpy_consumers.apply import BadEvent, Change, change_of
from pgqpy_consumers.replicate.applier import Applier
from pgqpy_consumers.replicate.state import ADDED, Replica, State

#: The number of events held in memory; a transaction may have made any number.
CHUNK = 20_000

_ROOT: LiteralString = """
select n.nspname, c.relname
  from pg_catalog.pg_partition_root(
       pg_catalog.to_regclass(pg_catalog.format('%%I.%%I', %s::text, %s::text))) r
  join pg_catalog.pg_class c on c.oid = r
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
"""


class Stream:
    """Applies batches in the target's transactions."""

    def __init__(self, queue: str, consumer: str) -> None:
        self._names = (queue, consumer)
        self._applier = Applier()

    def process(
        self, source: pgqpy.Connection, events: Iterable[Event], target: pgqpy.Connection
    ) -> None:
        """Apply a batch, or keep changes for later. A failing table does not stop the others."""
        self._applier.prepare(target)
        state = State(target, *self._names)
        state.share()
        replicas = {each.source: each for each in state.tables()}
        for chunk in _chunks(events):
            self._process_chunk(source, chunk, state, replicas)

    def _process_chunk(
        self,
        source: pgqpy.Connection,
        events: list[Event],
        state: State,
        replicas: dict[tuple[str, str], Replica],
    ) -> None:
        waiting: list[tuple[Replica, Event]] = []
        direct: list[tuple[Replica, Event, Change]] = []
        bad: dict[int, Exception] = {}
        # By table and transaction: events of its partitions follow the table's own.
        truncated: set[tuple[int, int]] = set()
        for event in events:
            try:
                change = change_of(event)
            except BadEvent as error:
                replica = replicas.get(_names(event))
                if replica is not None and replica.state != ADDED:
                    bad.setdefault(replica.id, error)
                    waiting.append((replica, event))
                continue
            if change is None:
                continue
            replica = replicas.get(change.table)
            if replica is None:
                if change.operation == "TRUNCATE":
                    self._partition_truncated(source, change, state, replicas, truncated)
                continue
            if change.operation == "TRUNCATE":
                truncated.add((replica.id, change.txid))
            if replica.state == ADDED:
                continue
            if replica.waiting or replica.id in bad:
                waiting.append((replica, event))
            elif (snapshot := replica.snapshot) is None or not snapshot.sees(change.txid):
                direct.append((replica, event, change))

        wanted = {each.id for each in _counting(replicas)}
        failed = bad | self._applier.apply(
            state.conn,
            (
                (replica, change)
                for replica, _, change in direct
                if replica.id in wanted and replica.id not in bad
            ),
        )
        waiting += [(replica, event) for replica, event, _ in direct if replica.id in failed]
        kept = [each for each in waiting if each[0].id in wanted]
        if kept:
            kept.sort(key=lambda each: each[1].id)
            state.wait(kept)
        for replica in [*replicas.values()]:
            if replica.id in failed and not replica.waiting:
                reason = str(failed[replica.id]).partition("\n")[0]
                logger.error("table %s failed, its changes wait: %s", replica, reason)
                state.failed(replica, failed[replica.id])
                self._refresh(state, replicas, replica)

    def _partition_truncated(
        self,
        source: pgqpy.Connection,
        change: Change,
        state: State,
        replicas: dict[tuple[str, str], Replica],
        truncated: set[tuple[int, int]],
    ) -> None:
        """Copy the table again, because the target need not have the same partitions."""
        root = source.execute(_ROOT, change.table).fetchone()
        replica = None if root is None else replicas.get((root[0], root[1]))
        if replica is None or replica.state == ADDED or (replica.id, change.txid) in truncated:
            return
        if replica.snapshot is not None and replica.snapshot.sees(change.txid):
            return
        logger.warning(
            "partition %s of table %s was truncated: the table is copied again",
            ".".join(change.table),
            replica,
        )
        state.copy_again(replica)
        self._refresh(state, replicas, replica)

    @staticmethod
    def _refresh(state: State, replicas: dict[tuple[str, str], Replica], replica: Replica) -> None:
        now = state.now(replica)
        assert now is not None
        replicas[replica.source] = now


def _counting(replicas: dict[tuple[str, str], Replica]) -> list[Replica]:
    """The replicas whose changes are not ignored."""
    return [each for each in replicas.values() if each.state != ADDED]


def _names(event: Event) -> tuple[str, str]:
    schema, _, table = (event.extra1 or "").partition(".")
    return schema, table


def _chunks(events: Iterable[Event]) -> Iterator[list[Event]]:
    each = iter(events)
    while chunk := list(islice(each, CHUNK)):
        yield chunk
