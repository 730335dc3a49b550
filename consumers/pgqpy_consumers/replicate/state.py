"""Which tables are replicated and how far each is; kept in the target, in ``pgq_ext``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import LiteralString

from psycopg.rows import class_row

import pgqpy
from pgqpy import Event
from pgqpy_consumers.replicate.errors import ReplicaError
from pgqpy_consumers.replicate.snapshot import Snapshot

LOCK = 0x70677172
"""In pg_locks: classid 1885827442 (the letters pgqr), objsubid 2; objid is a hash of the names."""

ADDED, COPYING, CATCHING_UP, IN_STEP, FAILED = (
    "added",
    "copying",
    "catching_up",
    "in_step",
    "failed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A table and its copy.

    ``state``: ``added`` (nothing is done with its changes yet), ``copying`` (they wait),
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
        """What the copy has seen; None when all that is to come was not in it."""
        return None if self.snapshot_text is None else _snapshot(self.snapshot_text)

    def __str__(self) -> str:
        return f"{self.source_schema}.{self.source_table}"


#: It is asked for with each event.
_snapshot = lru_cache(maxsize=256)(Snapshot.parse)

#: Seconds between looks whether somebody has ended.
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
        """Until the transaction ends no table changes hands. For whoever applies a batch."""
        self._lock("pg_advisory_xact_lock_shared")

    def own(self) -> None:
        """Until the transaction ends no batch is applied, and nobody else changes states."""
        self._lock("pg_advisory_xact_lock")

    def _lock(self, function: LiteralString) -> None:
        self.conn.execute(
            f"select pg_catalog.{function}(%s, pg_catalog.hashtext(%s))",
            [LOCK, f"pgqpy replicate {self.names!r}"],
        )

    def tables(self) -> list[Replica]:
        """All, by name."""
        with self.conn.cursor(row_factory=class_row(Replica)) as cursor:
            return cursor.execute(
                _COLUMNS + "where rpt_queue = %s and rpt_consumer = %s order by 2, 3", self.names
            ).fetchall()

    def table(self, source: tuple[str, str]) -> Replica:
        """One. Raises ReplicaError."""
        for each in self.tables():
            if each.source == source:
                return each
        raise ReplicaError(
            f"table {'.'.join(source)} is not replicated",
            hint="`pgqpy replicate list` shows those that are.",
        )

    def now(self, replica: Replica) -> Replica | None:
        """It as it is now; None if it is removed."""
        with self.conn.cursor(row_factory=class_row(Replica)) as cursor:
            return cursor.execute(_COLUMNS + "where rpt_id = %s", [replica.id]).fetchone()

    def add(
        self, source: tuple[str, str], target: tuple[str, str], columns: Sequence[str] | None
    ) -> int:
        """One more, to be copied. Raises ReplicaError."""
        row = self.conn.execute(
            "insert into pgq_ext.replica_table (rpt_queue, rpt_consumer, rpt_source_schema,"
            " rpt_source_table, rpt_target_schema, rpt_target_table, rpt_columns)"
            " values (%s, %s, %s, %s, %s, %s, %s) on conflict do nothing returning rpt_id",
            [*self.names, *source, *target, columns],
        ).fetchone()
        if row is None:
            raise ReplicaError(
                f"table {'.'.join(source)} is replicated already",
                hint="`pgqpy replicate list` shows how; remove it first to change that.",
            )
        return int(row[0])

    def remove(self, replica: Replica) -> None:
        self.forget_events(replica)
        self.conn.execute("delete from pgq_ext.replica_table where rpt_id = %s", [replica.id])

    # --- who copies

    def claim(self, replica: Replica) -> bool:
        """Take a table to copy it, for as long as the session lives; False if somebody has it."""
        row = self.conn.execute(
            "select pg_catalog.pg_try_advisory_lock(%s, pg_catalog.hashtext(%s))",
            [LOCK, _claim(replica)],
        ).fetchone()
        return row is not None and bool(row[0])

    def interrupt_copy(self, replica: Replica) -> None:
        """Cancel what the session does that has claimed the table, and wait until it has ended."""
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

    # --- from one state to the next

    def begin_copy(self, replica: Replica) -> None:
        """From now on changes wait. `own` the state."""
        self.forget_events(replica)
        self._set(
            replica,
            "rpt_state = 'copying', rpt_waiting = true, rpt_snapshot = null, rpt_copied = false,"
            " rpt_applied = 0, rpt_error = null",
        )

    def end_copy(self, replica: Replica, snapshot: str) -> bool:
        """The copy is there, as of the snapshot; false if nobody wants it any more."""
        return self._set(
            replica,
            "rpt_state = 'catching_up', rpt_snapshot = %s, rpt_copied = true",
            snapshot,
            only_if=COPYING,
        )

    def applied(self, replica: Replica, nr: int) -> None:
        """Waiting changes have been applied up to this one."""
        self._set(replica, "rpt_applied = %s", nr)

    def caught_up(self, replica: Replica) -> None:
        """Nothing waits any more. `own` the state."""
        self.forget_events(replica)
        self._set(
            replica,
            "rpt_state = case when rpt_snapshot is null then 'in_step' else 'catching_up' end,"
            " rpt_waiting = false, rpt_applied = 0, rpt_error = null",
        )

    def in_step(self, replica: Replica) -> None:
        """The queue has passed the copy."""
        self._set(
            replica,
            "rpt_state = 'in_step', rpt_snapshot = null, rpt_error = null",
            only_if=CATCHING_UP,
        )

    def failed(self, replica: Replica, error: Exception) -> None:
        """Its changes wait from now on."""
        self._set(replica, "rpt_state = 'failed', rpt_waiting = true, rpt_error = %s", str(error))

    def copy_again(self, replica: Replica) -> None:
        """`own` the state."""
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
