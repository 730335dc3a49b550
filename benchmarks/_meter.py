"""Processor time by party: programs, and the server's processes that work for them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from benchmarks._servers import Connection

SESSIONS = """
select pid, application_name from pg_stat_activity where backend_type = 'client backend'
"""


@dataclass(frozen=True, slots=True)
class Party:
    """Programs with one purpose, and the prefix of their sessions' application names."""

    programs: Sequence[psutil.Process]
    sessions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """Processor seconds of a party, or shares of one core."""

    program: float
    sessions: float

    @property
    def both(self) -> float:
        return self.program + self.sessions


class Meter:
    """Reads the clocks of all parties' processes, from when it is made."""

    def __init__(self, conn: Connection, parties: Mapping[str, Party]) -> None:
        self.conn = conn
        self.parties = parties
        self.began = time.monotonic()
        self.before = self._read()

    def shares(self) -> tuple[dict[str, Share], float]:
        """The shares of each party since the beginning, and of sessions that have ended.

        The latter cannot be assigned to a party, and include autovacuum's workers.
        """
        (before, ended_before), (now, ended) = self.before, self._read()
        took = time.monotonic() - self.began
        shares = {
            name: Share(
                (then.program - before[name].program) / took,
                (then.sessions - before[name].sessions) / took,
            )
            for name, then in now.items()
        }
        return shares, (ended - ended_before) / took

    def _read(self) -> tuple[dict[str, Share], float]:
        """The seconds of programs and open sessions, and of all sessions that have ended."""
        postmaster = psutil.Process(self.conn.info.backend_pid).parent()
        assert postmaster is not None
        sessions = dict.fromkeys(self.parties, 0.0)
        for pid, name in self.conn.execute(SESSIONS).fetchall():
            for party, told in self.parties.items():
                if name.startswith(told.sessions):
                    # One that is gone counts among those that have ended.
                    with suppress(psutil.NoSuchProcess):
                        sessions[party] += used(psutil.Process(pid))
        seconds = {
            name: Share(sum(map(used, party.programs)), sessions[name])
            for name, party in self.parties.items()
        }
        times = postmaster.cpu_times()
        return seconds, times.children_user + times.children_system


def used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
