"""What is wrong with a database and its queues, why, and what mends it: ``pgqpy doctor``.

`examine` runs all `CHECKS`. Each looks at one thing, read-only and for a limited time, and has an
entry in docs/troubleshooting.md under its name.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta

from psycopg.pq import TransactionStatus

from pgqpy.connection import Connection
from pgqpy.doctor import _queues, _server, _storage
from pgqpy.doctor._finding import Finding, Verdict
from pgqpy.doctor._look import Check, Look
from pgqpy.doctor._samples import Samples

#: In the order in which they run.
CHECKS: tuple[Check, ...] = (
    _server.schema,
    _server.rights,
    _server.ticker,
    _queues.ticks,
    _queues.maintenance,
    _server.pooler,
    _server.notifications,
    _server.clock,
    _server.settings,
    _queues.transactions,
    _queues.foreign_locks,
    _storage.horizon,
    _storage.slots,
    _queues.rotation,
    _storage.disk,
    _queues.failing_consumers,
    _queues.stuck_consumers,
    _storage.backlogs,
    _queues.paused_consumers,
    _queues.parked_keys,
    _storage.dead_letters,
    _storage.poison_tasks,
    _storage.dead_rows,
    _storage.sequences,
    _storage.staging_tables,
    _storage.temporary_tables,
)


@dataclass(frozen=True, slots=True)
class Report:
    """What all checks found, the worst first."""

    database: str
    server_version: str
    seconds: float
    findings: list[Finding]

    @property
    def worst(self) -> Verdict:
        """The worst verdict."""
        return max((each.verdict for each in self.findings), key=lambda each: each.rank)


def examine(
    conn: Connection, *, stuck_after: timedelta = timedelta(minutes=5), wait: float = 0
) -> Report:
    """Run all checks on a connection.

    If it is in a transaction, which must be read-only, checks that take one of their own say so.
    A consumer may be ``stuck_after`` behind, and a transaction as old, before it is reported. With
    ``wait`` it looks twice, ``wait`` seconds apart, and forecasts when disks are full and consumers
    have caught up. Without, it takes 10 s at most, and 3 s in a transaction.

    Raises psycopg.OperationalError if the connection breaks. What the role may not look at is a
    finding.
    """
    began = time.monotonic()
    # A pooler may lend a session in which a statement is not prepared.
    threshold, conn.prepare_threshold = conn.prepare_threshold, None
    within = conn.info.transaction_status is not TransactionStatus.IDLE
    limit = "0"
    if within:
        [(limit,)] = conn.execute("select current_setting('statement_timeout')")
    try:
        look = Look(conn, stuck_after, within=within)
        findings = CHECKS[0].findings(look)
        if findings[0].verdict is not Verdict.PROBLEM:
            if wait:
                look = Look(conn, stuck_after, Samples.take(conn, wait), within=within)
            findings += [each for check in CHECKS[1:] for each in check.findings(look)]
    finally:
        conn.prepare_threshold = threshold
    [(database, version, _)] = conn.execute(
        """
        select current_database(), current_setting('server_version'),
               set_config('statement_timeout', %s, true)
        """,
        [limit],
    )
    findings.sort(key=lambda each: -each.verdict.rank)
    return Report(database, version, time.monotonic() - began, findings)


__all__ = ["CHECKS", "Check", "Finding", "Report", "Verdict", "examine"]
