"""Watching the run until everything that was committed has been delivered."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import psycopg

from pgqpy.demo import batch_log
from pgqpy.demo.application import Application
from pgqpy.demo.errors import DemoError
from pgqpy.demo.processes import Process
from pgqpy.demo.progress import APPLICATION, Bars

INTERVAL = 0.2

# Machines may be slow; one without any progress for this long is stuck.
STALLED_AFTER = 120.0


def watch(
    conn: psycopg.Connection[Any],
    application: Application,
    consumers: Sequence[str],
    processes: Sequence[Process],
    bars: Bars,
) -> None:
    """Show the progress and return when each consumer has all committed events.

    Raises `DemoError` if a process ends early, a writer fails, or there is no progress any more.
    """
    before: dict[str, int] = {}
    moved = time.monotonic()
    while True:
        running = application.running
        if application.error is not None:
            raise DemoError(f"The application failed: {application.error}")
        for process in processes:
            process.check()

        committed = sum(commit.rows for commit in list(application.commits))
        delivered = batch_log.delivered(conn)
        now = {name: delivered.get(name, 0) for name in consumers} | {APPLICATION: committed}
        for name, events in now.items():
            bars.show(name, events)
        if not running:
            bars.set_total(committed)
            if all(now[name] == committed for name in consumers):
                return

        if now != before:
            before, moved = now, time.monotonic()
        elif time.monotonic() - moved > STALLED_AFTER:
            raise DemoError(f"Nothing happens any more: {_missing(now, consumers)}.")
        time.sleep(INTERVAL)


def _missing(events: dict[str, int], consumers: Sequence[str]) -> str:
    committed = events[APPLICATION]
    return ", ".join(
        f"{name} has got {events[name]:,} of {committed:,} events" for name in consumers
    )
