"""Hypothesis looks for an interleaving of sessions that loses, doubles or changes an event.

A failure prints the steps as a Python program and a line ``@reproduce_failure``
that replays exactly this one. Each version of the server has interleavings of its own.
``PGQPY_PROPERTY=thorough`` searches for minutes, each time elsewhere.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from pgqpy.embedded import Server
from tests.property.machine import QueueMachine, Sessions

COMMON = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
PROFILES = {
    "ci": settings(COMMON, max_examples=50, stateful_step_count=50),
    "thorough": settings(COMMON, max_examples=3000, stateful_step_count=100),
}
#: With it each of five faults put into the SQL was found, three of them on both servers.
SEED = 8


@pytest.mark.slow
def test_no_interleaving_of_sessions_loses_doubles_or_changes_an_event(
    server: Server, dsn: str
) -> None:
    sessions = Sessions(dsn)
    profile = os.environ.get("PGQPY_PROPERTY", "ci")

    @seed(server.version + SEED if profile == "ci" else None)
    class Machine(QueueMachine):
        def __init__(self) -> None:
            super().__init__(sessions)

    try:
        run_state_machine_as_test(Machine, settings=PROFILES[profile])
    finally:
        sessions.close()
