"""Heartbeats: when they beat, and what follows a failure."""

from __future__ import annotations

import math
import threading
from time import monotonic
from typing import Any, cast

import psycopg

from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.heartbeat import Heartbeat
from pgqpy.connection import Connection
from pgqpy.errors import ConnectionFailed
from tests.fixtures.fix_client import PATIENCE, wait_until


class Conn:
    """A connection that only knows whether it is open."""

    closed = False

    def close(self) -> None:
        self.closed = True


class Beats:
    """A heartbeat with ``fails`` failures, of which each is followed by success."""

    def __init__(self, fails: int = 0, every: float = 0.005) -> None:
        self.fails = fails
        self.every = every
        self.at = 0.0
        self.seen: list[Conn] = []
        self.errors: list[Exception] = []
        self.enough = threading.Semaphore(0)
        self.heartbeat = Heartbeat(
            "test",
            self.connect,
            self.beat,
            lambda: self.at,
            self.failed,
            backoff=Backoff(0.005, 0.01),
        )

    def connect(self) -> Connection:
        return cast(Connection, Conn())

    def beat(self, conn: Any) -> None:
        self.seen.append(conn)
        self.at = monotonic() + self.every
        self.enough.release()
        if len(self.seen) <= self.fails:
            raise psycopg.OperationalError("gone")

    def failed(self, error: Exception, pause: float) -> None:
        assert 0 < pause <= 0.01
        self.errors.append(error)

    def wait(self, times: int) -> None:
        for _ in range(times):
            assert self.enough.acquire(timeout=PATIENCE)


def test_it_beats_whenever_it_is_due_on_one_connection() -> None:
    beats = Beats()
    with beats.heartbeat:
        beats.wait(3)
    assert len(set(map(id, beats.seen))) == 1
    assert beats.seen[0].closed
    count = len(beats.seen)
    assert not beats.enough.acquire(timeout=0.02) or len(beats.seen) == count


def test_after_a_failure_it_connects_anew() -> None:
    beats = Beats(fails=2)
    with beats.heartbeat:
        beats.wait(4)
    assert [type(error) for error in beats.errors] == [ConnectionFailed] * 2
    assert len(set(map(id, beats.seen))) == 3
    assert all(conn.closed for conn in beats.seen)


def test_it_can_be_woken_and_closes_a_connection_that_it_does_not_need_soon() -> None:
    beats = Beats(every=math.inf)
    with beats.heartbeat:
        beats.wait(1)
        wait_until(lambda: beats.seen[0].closed)
        beats.at = 0.0
        beats.heartbeat.wake()
        beats.wait(1)
    assert len(beats.seen) == 2
