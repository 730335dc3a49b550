"""Applying the changes of replicated tables to the target: a batch, or those that have waited."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import LiteralString

import pgqpy
from pgqpy import Event
from pgqpy_consumers._shared import pieces
from pgqpy_consumers.apply import (
    ApplyError,
    BadEvent,
    Change,
    Latest,
    Table,
    apply_all,
    change_of,
    describe,
    rounds,
)
from pgqpy_consumers.replicate._state import ADDED, Replica, State

logger = logging.getLogger("pgqpy")

# --- sessions: both sides write and read values alike

#: Settings of the transaction: those that the texts of values depend on, no timeout for COPY, and
#: no functions or operators of other roles. So values of reg* columns are written with schemas.
_ALIKE: LiteralString = """
set local datestyle = 'ISO, YMD';
set local intervalstyle = 'postgres';
set local timezone = 'UTC';
set local extra_float_digits = 1;
set local bytea_output = 'hex';
set local xmloption = 'content';
set local lc_monetary = 'C';
set local row_security = off;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local search_path = pg_catalog, pg_temp;
"""


def alike(conn: pgqpy.Connection) -> None:
    """Prepare a transaction that has begun in the source."""
    conn.execute(_ALIKE, prepare=False)


def silent(conn: pgqpy.Connection, allowed: bool) -> None:
    """Prepare a transaction that writes to the target: no triggers fire, no foreign keys check.
    Only if ``allowed``: see `may_silence`."""
    conn.execute(
        _ALIKE + ("set local session_replication_role = replica" if allowed else ""), prepare=False
    )


def may_silence(conn: pgqpy.Connection) -> bool:
    """Whether the role may set session_replication_role: superusers, and roles with that grant."""
    superuser = "select rolsuper from pg_catalog.pg_roles where rolname = current_user"
    granted = "select has_parameter_privilege('session_replication_role', 'set')"
    row = conn.execute(granted if conn.info.server_version >= 150000 else superuser).fetchone()
    return bool(row and row[0])


# --- changes


class Applier:
    """Applies changes, and caches descriptions of the target's tables. One for each thread."""

    def __init__(self) -> None:
        self._tables: dict[int, Table] = {}
        self._may_silence: bool | None = None

    def prepare(self, target: pgqpy.Connection) -> None:
        """Prepare a transaction that has begun: formats of values, and no triggers if allowed."""
        if self._may_silence is None:
            self._may_silence = may_silence(target)
        silent(target, self._may_silence)

    def table(self, target: pgqpy.Connection, replica: Replica) -> Table:
        """The cached description of the target's table. Raises TableMissing."""
        found = self._tables.get(replica.id)
        if found is None:
            found = self._tables[replica.id] = describe(target, *replica.target)
        return found

    def forget(self, replica: Replica) -> None:
        """Remove the table from the cache."""
        self._tables.pop(replica.id, None)

    def apply(
        self, target: pgqpy.Connection, changes: Iterable[tuple[Replica, Change]]
    ) -> dict[int, Exception]:
        """Apply the changes of each table; returns the errors of tables that failed, by their ids.
        A table gets all of its changes or none. Errors unrelated to a table are raised."""
        replicas: dict[int, Replica] = {}

        def wanted() -> Iterator[tuple[int, Change]]:
            for replica, change in changes:
                replicas[replica.id] = replica
                yield replica.id, _only(replica, change)

        work = rounds(wanted())
        failed: dict[int, Exception] = {}
        looked_again: set[int] = set()
        while True:
            try:
                with target.transaction():
                    for each in work:
                        found = [(replicas[id_], each[id_]) for id_ in each if id_ not in failed]
                        self._apply_round(target, found)
            except _Failure as failure:
                replica = failure.replica
                # The table may have been altered since it was cached.
                self.forget(replica)
                if replica.id in looked_again:
                    failed[replica.id] = failure.error
                looked_again.add(replica.id)
            else:
                return failed

    def _apply_round(self, target: pgqpy.Connection, work: list[tuple[Replica, Latest]]) -> None:
        found: list[tuple[Table, Latest]] = []
        replicas: dict[int, Replica] = {}
        for replica, latest in work:
            try:
                table = self.table(target, replica)
            except pgqpy.PgqError as error:
                raise _Failure(replica, error) from error
            replicas[table.oid] = replica
            found.append((table, latest))
        try:
            apply_all(target, found, foreign_keys=not self._may_silence)
        except ApplyError as error:
            raise _Failure(replicas[error.table.oid], error) from error


class _Failure(Exception):
    def __init__(self, replica: Replica, error: Exception) -> None:
        super().__init__(replica, error)
        self.replica = replica
        self.error = error


def _only(replica: Replica, change: Change) -> Change:
    """The change, with the columns that are replicated."""
    if replica.columns is None or not change.values:
        return change
    wanted = {*replica.columns, *change.key_columns}
    values = {name: value for name, value in change.values.items() if name in wanted}
    return change._replace(values=values)


# --- a batch of the queue

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
        self._source, self._state = source, State(target, *self._names)
        self._state.share()
        self._replicas = {each.source: each for each in self._state.tables()}
        for chunk in pieces(events, CHUNK):
            self._process_chunk(chunk)

    def _process_chunk(self, events: list[Event]) -> None:
        state, replicas = self._state, self._replicas
        waiting: list[tuple[Replica, Event]] = []
        direct: list[tuple[Replica, Event, Change]] = []
        bad: dict[int, Exception] = {}
        # By table and transaction: events of its partitions follow the table's own.
        truncated: set[tuple[int, int]] = set()
        for event in events:
            try:
                change = change_of(event)
            except BadEvent as error:
                schema, _, table = (event.extra1 or "").partition(".")
                replica = replicas.get((schema, table))
                if replica is not None and replica.state != ADDED:
                    bad.setdefault(replica.id, error)
                    waiting.append((replica, event))
                continue
            if change is None:
                continue
            replica = replicas.get(change.table)
            if replica is None:
                if change.operation == "TRUNCATE":
                    self._partition_truncated(change, truncated)
                continue
            if change.operation == "TRUNCATE":
                truncated.add((replica.id, change.txid))
            if replica.state == ADDED:
                continue
            if replica.waiting or replica.id in bad:
                waiting.append((replica, event))
            elif (snapshot := replica.snapshot) is None or not snapshot.sees(change.txid):
                direct.append((replica, event, change))

        wanted = {each.id for each in replicas.values() if each.state != ADDED}
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
                self._refresh(replica)

    def _partition_truncated(self, change: Change, truncated: set[tuple[int, int]]) -> None:
        """Copy the table again, because the target need not have the same partitions."""
        root = self._source.execute(_ROOT, change.table).fetchone()
        replica = None if root is None else self._replicas.get((root[0], root[1]))
        if replica is None or replica.state == ADDED or (replica.id, change.txid) in truncated:
            return
        if replica.snapshot is not None and replica.snapshot.sees(change.txid):
            return
        logger.warning(
            "partition %s of table %s was truncated: the table is copied again",
            ".".join(change.table),
            replica,
        )
        self._state.copy_again(replica)
        self._refresh(replica)

    def _refresh(self, replica: Replica) -> None:
        now = self._state.now(replica)
        assert now is not None
        self._replicas[replica.source] = now
