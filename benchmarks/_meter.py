"""Processor time by party: programs, and the server's processes that work for them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
class Reading:
    """Processor seconds up to a moment."""

    moment: float
    programs: Mapping[str, float]
    sessions: Mapping[str, float]
    """Seconds of open sessions."""
    ended: float
    """Seconds of all server processes that have ended."""


@dataclass(frozen=True, slots=True)
class Share:
    """Shares of one core."""

    program: float
    sessions: float

    @property
    def both(self) -> float:
        return self.program + self.sessions


@dataclass(slots=True)
class Meter:
    """Reads the clocks of all parties' processes."""

    conn: Connection
    parties: Mapping[str, Party]
    began: Reading = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.read()

    def read(self) -> Reading:
        [(own,)] = self.conn.execute("select pg_backend_pid()").fetchall()
        postmaster = psutil.Process(own).parent()
        assert postmaster is not None
        sessions = dict.fromkeys(self.parties, 0.0)
        for pid, name in self.conn.execute(SESSIONS).fetchall():
            for party, told in self.parties.items():
                if name.startswith(told.sessions):
                    try:
                        sessions[party] += used(psutil.Process(pid))
                    except psutil.NoSuchProcess:
                        continue  # it counts among those that have ended
        times = postmaster.cpu_times()
        return Reading(
            time.monotonic(),
            {
                name: sum(used(program) for program in party.programs)
                for name, party in self.parties.items()
            },
            sessions,
            times.children_user + times.children_system,
        )

    def shares(self) -> tuple[dict[str, Share], float]:
        """The shares of each party since the beginning, and of sessions that have ended.

        The latter cannot be assigned to a party, and include autovacuum's workers.
        """
        now, then = self.read(), self.began
        took = now.moment - then.moment
        return {
            name: Share(
                (now.programs[name] - then.programs[name]) / took,
                (now.sessions[name] - then.sessions[name]) / took,
            )
            for name in self.parties
        }, (now.ended - then.ended) / took


def used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def peak_memory(process: int | str = "self") -> int:
    """The peak memory of a process in kB. getrusage() would include the parent's."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])
