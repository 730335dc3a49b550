"""How processes share the shards of a consumer: each claims some, and gives up some of too many.

A process that waits for a shard says in the name of its session how many it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any
from zlib import crc32

from pgqpy.errors import ConnectionFailed
from pgqpy.shards._map import Shard

LOCK = 0x70677174
"""In pg_locks: classid 1885827444, objsubid 2; objid is a hash of the queue and the consumer."""

#: Seconds between two claims of a process, so that several processes get some each.
_TURN = 0.05
#: Seconds between looks of a process whether it has too many.
_SHARE = 2.0

CLAIM = b"select pg_catalog.pg_try_advisory_lock(%s, pg_catalog.hashtext(%s))"
NAME = b"select pg_catalog.set_config('application_name', %s, false)"
#: Every role may choose such a name; only those of readers count.
FEWEST = b"""
select pg_catalog.min(pg_catalog.substring(application_name, %s)::int4)
  from pg_catalog.pg_stat_activity
 where datname = pg_catalog.current_database()
   and pg_catalog.pg_has_role(usesysid, 'pgq_reader', 'member')
"""


def waits(consumer: str) -> str:
    """Return how the name of a session begins that waits for a shard of the consumer."""
    return f"pgqpy waits {crc32(consumer.encode())}"


class Share:
    """The readers of a process."""

    def __init__(self, stale: Callable[[], None]) -> None:
        #: Called if the map is too old.
        self.stale = stale
        #: The names of the shards that no other process reads.
        self.claimed: set[str] = set()
        self._turn_at = self._look_at = 0.0

    def turn(self) -> float:
        """Return the seconds until a reader may try to claim its shard."""
        now = monotonic()
        turn, self._turn_at = max(now, self._turn_at), max(now, self._turn_at) + _TURN
        return turn - now

    def may_look(self) -> bool:
        """Whether it is time to look whether other processes have fewer shards."""
        if monotonic() < self._look_at:
            return False
        self._look_at = monotonic() + _SHARE
        return True


class Told:
    """What a reader of a shard is told, from any thread, and what it tells."""

    def __init__(self, shard: Shard, waker: Any, *, once: bool) -> None:
        self.shard = shard
        self.ended = False
        #: Why it has ended.
        self.error: Exception | None = None
        self._waker = waker
        self._once = once
        #: Whether it ends when nothing is left.
        self._draining = once
        self._stopping = False
        #: Whether the consumer was stopped, to begin again or to end.
        self._interrupted = False
        self._consumer: Any = None

    def stop(self) -> None:
        """End after the current batch."""
        self._stopping = True
        self._interrupt()

    def change(self, shard: Shard) -> None:
        """Go on as the new map has it."""
        self.shard = shard
        self._draining = self._once
        self._interrupt()

    def drain(self) -> None:
        """Read what is there, then end."""
        if not self._draining:
            self._draining = True
            self._interrupt()

    def _interrupt(self) -> None:
        self._interrupted = True
        if self._consumer is not None:
            self._consumer.stop()
        self._waker.wake()


def raise_failures(readers: Mapping[str, Told]) -> None:
    """Raise the error of a reader; if all lost their databases, one error for all."""
    failed = {name: each.error for name, each in readers.items() if each.error is not None}
    for name, error in failed.items():
        if not isinstance(error, ConnectionFailed):
            error.add_note(f"shard {name}")
            raise error
    if failed:
        names = ", ".join(sorted(failed))
        told = "; ".join(f"{name}: {error}".partition("\n")[0] for name, error in failed.items())
        raise ConnectionFailed(f"shards whose databases were down: {names}", detail=told)
