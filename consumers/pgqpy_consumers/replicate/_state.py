"""The state of each replicated table; kept in the target, in ``pgq_ext``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import LiteralString, Self

from psycopg.rows import class_row

import pgqpy
from pgqpy import Event
from pgqpy.errors import PgqError

LOCK = 0x70677172
"""In pg_locks: classid 1885827442 (the letters pgqr), objsubid 2; objid is a hash of the names."""

ADDED, COPYING, CATCHING_UP = "added", "copying", "catching_up"
IN_STEP, FAILED = "in_step", "failed"


class ReplicaError(PgqError):
    """A table cannot be replicated, or is not replicated."""


class NotComparable(PgqError):
    """Both sides have no point in time at which they could be compared."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A ``txid_snapshot``: all below ``xmin`` and none from ``xmax`` on are visible."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Self:
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(map(int, filter(None, running.split(",")))))

    def sees(self, txid: int) -> bool:
        """Whether the transaction's changes are visible."""
        return txid < self.xmin or (txid < self.xmax and txid not in self.running)

    def covers(self, earlier: Snapshot) -> bool:
        """Whether it sees all that the other one sees."""
        return self.xmax >= earlier.xmax and not any(map(earlier.sees, self.running))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A table and its copy.

    ``state``: ``added`` (its changes are still ignored), ``copying`` (they wait),
    ``catching_up`` (they wait to be applied, or the queue has not yet passed the copy),
    ``in_step`` (they are applied as they come), ``failed`` (they wait until ``error`` is mended).
    """

    id: int
    source_schema: str
    source_table: str
    target_schema: str
    target_table: str
    columns: list[str] | None
    state: str
    waiting: bool
    snapshot_text: str | None
    copied: bool
    applied: int
    error: str | None
    since: datetime

    @property
    def source(self) -> tuple[str, str]:
        return self.source_schema, self.source_table

    @property
    def target(self) -> tuple[str, str]:
        return self.target_schema, self.target_table

    @property
    def snapshot(self) -> Snapshot | None:
        """The copy's snapshot; None if no change to come is in the copy."""
        return None if self.snapshot_text is None else _snapshot(self.snapshot_text)

    def __str__(self) -> str:
        return f"{self.source_schema}.{self.source_table}"


#: Needed for each event.
_snapshot = lru_cache(maxsize=256)(Snapshot.parse)

#: Seconds between checks whether a session has ended.
_POLL = 0.05


def _claim(replica: Replica) -> str:
    return f"pgqpy replicate table {replica.id}"


_COLUMNS: LiteralString = """
select rpt_id as id, rpt_source_schema as source_schema, rpt_source_table as source_table,
       rpt_target_schema as target_schema, rpt_target_table as target_table,
       rpt_columns as columns, rpt_state as state, rpt_waiting as waiting,
       rpt_snapshot::text as snapshot_text, rpt_copied as copied, rpt_applied as applied,
       rpt_error as error, rpt_since as since
  from pgq_ext.replica_table
"""


class State:
    """The state of one replication, on a connection to the target."""

    def __init__(self, conn: pgqpy.Connection, queue: str, consumer: str) -> None:
        self.conn = conn
        self.names = (queue, consumer)

    def share(self) -> None:
        """Block changes of states until the transaction ends. For sessions that apply a batch."""
        self._lock("pg_advisory_xact_lock_shared")

    def own(self) -> None:
        """Block batches and other changes of states until the transaction ends."""
        self._lock("pg_advisory_xact_lock")

    def _lock(self, function: LiteralString) -> None:
        self.conn.execute(
            f"select pg_catalog.{function}(%s, pg_catalog.hashtext(%s))",
            [LOCK, f"pgqpy replicate {self.names!r}"],
        )

    def tables(self) -> list[Replica]:
        """The tables, by name."""
        return self._find("rpt_queue = %s and rpt_consumer = %s order by 2, 3", *self.names)

    def table(self, source: tuple[str, str]) -> Replica:
        """One table. Raises ReplicaError."""
        for each in self.tables():
            if each.source == source:
                return each
        raise ReplicaError(
            f"table {'.'.join(source)} is not replicated",
            hint="`pgqpy replicate list` shows those that are.",
        )

    def now(self, replica: Replica) -> Replica | None:
        """Its current state; None if it is removed."""
        found = self._find("rpt_id = %s", replica.id)
        return found[0] if found else None

    def _find(self, condition: LiteralString, *values: object) -> list[Replica]:
        with self.conn.cursor(row_factory=class_row(Replica)) as cursor:
            return cursor.execute(f"{_COLUMNS} where {condition}", values).fetchall()

    def add(
        self,
        source: tuple[str, str],
        target: tuple[str, str],
        columns: Sequence[str] | None,
        *,
        state: str = ADDED,
    ) -> int | None:
        """Add a table, to be copied unless it is in step; returns its id, or None if it is there
        already."""
        row = self.conn.execute(
            "insert into pgq_ext.replica_table (rpt_queue, rpt_consumer, rpt_source_schema,"
            " rpt_source_table, rpt_target_schema, rpt_target_table, rpt_columns, rpt_state,"
            " rpt_copied) values (%s, %s, %s, %s, %s, %s, %s, %s, %s) on conflict do nothing"
            " returning rpt_id",
            [*self.names, *source, *target, columns, state, state == IN_STEP],
        ).fetchone()
        return None if row is None else row[0]

    def progress(self) -> int | None:
        """The tick that has been applied."""
        row = self.conn.execute(
            "select prg_tick from pgq_ext.progress where subconsumer_id = %s and consumer_id = %s",
            self.names,
        ).fetchone()
        return None if row is None else row[0]

    def remove(self, replica: Replica) -> None:
        self.forget_events(replica)
        self.conn.execute("delete from pgq_ext.replica_table where rpt_id = %s", [replica.id])

    # --- claims on tables to copy

    def claim(self, replica: Replica) -> bool:
        """Claim a table to copy, until the session ends; False if it is claimed already."""
        [(claimed,)] = self.conn.execute(
            "select pg_catalog.pg_try_advisory_lock(%s, pg_catalog.hashtext(%s))",
            [LOCK, _claim(replica)],
        )
        return bool(claimed)

    def interrupt_copy(self, replica: Replica) -> None:
        """Cancel the query of the session that claimed the table, and wait until it has ended."""
        while not self.claim(replica):
            self.conn.execute(
                "select pg_catalog.pg_cancel_backend(l.pid) from pg_catalog.pg_locks l"
                " where l.locktype = 'advisory' and l.objsubid = 2 and l.granted"
                " and l.database = (select d.oid from pg_catalog.pg_database d"
                "                    where d.datname = pg_catalog.current_database())"
                " and l.classid = %s and l.objid::int8::bit(32)::int4 = pg_catalog.hashtext(%s)",
                [LOCK, _claim(replica)],
            )
            time.sleep(_POLL)
        self.conn.execute(
            "select pg_catalog.pg_advisory_unlock(%s, pg_catalog.hashtext(%s))",
            [LOCK, _claim(replica)],
        )

    # --- transitions between states

    def begin_copy(self, replica: Replica) -> None:
        """Set the state copying: from now on changes wait. `own` the state first."""
        self.forget_events(replica)
        self._set(
            replica,
            "rpt_state = 'copying', rpt_waiting = true, rpt_snapshot = null, rpt_copied = false,"
            " rpt_applied = 0, rpt_error = null",
        )

    def end_copy(self, replica: Replica, snapshot: str) -> bool:
        """Set the state catching_up, with the copy's snapshot; False if the copy was called off."""
        return self._set(
            replica,
            "rpt_state = 'catching_up', rpt_snapshot = %s, rpt_copied = true",
            snapshot,
            only_if=COPYING,
        )

    def applied(self, replica: Replica, nr: int) -> None:
        """Record that waiting changes have been applied up to this one."""
        self._set(replica, "rpt_applied = %s", nr)

    def caught_up(self, replica: Replica) -> None:
        """Record that no changes wait any more. `own` the state first."""
        self.forget_events(replica)
        self._set(
            replica,
            "rpt_state = case when rpt_snapshot is null then 'in_step' else 'catching_up' end,"
            " rpt_waiting = false, rpt_applied = 0, rpt_error = null",
        )

    def in_step(self, replica: Replica) -> None:
        """Set the state in_step: the queue has passed the copy."""
        self._set(
            replica,
            "rpt_state = 'in_step', rpt_snapshot = null, rpt_error = null",
            only_if=CATCHING_UP,
        )

    def failed(self, replica: Replica, error: Exception) -> None:
        """Set the state failed: its changes wait from now on."""
        self._set(replica, "rpt_state = 'failed', rpt_waiting = true, rpt_error = %s", str(error))

    def copy_again(self, replica: Replica) -> None:
        """Copy the table anew. `own` the state first."""
        self.forget_events(replica)
        self._set(
            replica,
            "rpt_state = 'added', rpt_waiting = false, rpt_snapshot = null, rpt_copied = false,"
            " rpt_applied = 0, rpt_error = null",
        )

    def _set(
        self,
        replica: Replica,
        assignments: LiteralString,
        *values: object,
        only_if: str | None = None,
    ) -> bool:
        done = self.conn.execute(
            f"update pgq_ext.replica_table set {assignments}, rpt_since = now()"
            " where rpt_id = %s and (%s::text is null or rpt_state = %s)",
            [*values, replica.id, only_if, only_if],
        )
        return done.rowcount == 1

    # --- changes that wait

    def wait(self, events: Iterable[tuple[Replica, Event]]) -> None:
        """Keep changes for later, behind those that are kept already."""
        with (
            self.conn.cursor() as cursor,
            cursor.copy(
                "copy pgq_ext.replica_event"
                " (rpe_table, ev_id, ev_txid, ev_type, ev_data, ev_extra1) from stdin"
            ) as copy,
        ):
            for replica, event in events:
                copy.write_row(
                    (replica.id, event.id, event.txid, event.type, event.data, event.extra1)
                )

    def waiting(
        self, replica: Replica, after: int, limit: int
    ) -> list[tuple[int, int, int, str, str | None, str]]:
        """(number, ev_id, ev_txid, ev_type, ev_data, ev_extra1) of changes that wait."""
        return self.conn.execute(
            "select rpe_nr, ev_id, ev_txid, ev_type, ev_data, ev_extra1 from pgq_ext.replica_event"
            " where rpe_table = %s and rpe_nr > %s order by rpe_nr limit %s",
            [replica.id, after, limit],
        ).fetchall()

    def forget_events(self, replica: Replica) -> None:
        self.conn.execute("delete from pgq_ext.replica_event where rpe_table = %s", [replica.id])
