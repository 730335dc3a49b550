"""The suite's fixtures come from one plugin a concern; see tests/fixtures."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling, LoadScopeScheduling

pytest_plugins = [
    "tests.fixtures.fix_server",
    "tests.fixtures.fix_db",
    "tests.fixtures.fix_node",
    "tests.fixtures.fix_reference",
    "tests.fixtures.fix_client",
    "tests.fixtures.fix_standby",
    "tests.fixtures.forked",
    "tests.fixtures.fix_ticker",
    "tests.fixtures.fix_cli",
    "tests.fixtures.fix_spark",
    "tests.fixtures.fix_example",
    "tests.fixtures.fix_pool",
    "tests.fixtures.fix_connect",
    "tests.fixtures.fix_replicate",
    "tests.fixtures.fix_remote",
    "tests.fixtures.fix_cascade",
    "tests.fixtures.fix_chaos",
    "tests.fixtures.fix_task_worker",
    "tests.fixtures.fix_mail_table",
    "tests.fixtures.fix_console",
    "tests.fixtures.fix_telemetry",
    "tests.fixtures.fix_nodes",
    "tests.fixtures.fix_shards",
]


# The duration of an example only depends on the load of the machine.
settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")


def pytest_configure() -> None:
    # Settings of libpq and pgqpy in the developer's environment mean other servers.
    for name in list(os.environ):
        if name == "PGQPY_DSN" or (name.startswith("PG") and not name.startswith("PGQPY_")):
            del os.environ[name]
    # A process that a shell starts in the background ignores it, and so would its children.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_SPARK = "tests/integration/spark/test_spark_"
#: Tests with a Java of their own.
OWN_JAVA = (f"{_SPARK}connect", f"{_SPARK}secrets")
#: Tests that share a Spark session; one session for all of them would be what takes longest.
SESSIONS = {
    "first": (
        *(f"{_SPARK}{letter}" for letter in "abc"),
        "tests/acceptance/test_spark_page.py",
        "tests/acceptance/test_which_class_page.py::test_spark",
        "tests/integration/test_telemetry.py::test_a_spark_batch_",
    ),
    "second": (
        _SPARK,
        "tests/faults/test_spark_sink_killed.py::test_a_driver_killed_",
    ),
}


def session_of(nodeid: str) -> str | None:
    """The Spark session that a test shares with others."""
    if nodeid.startswith(OWN_JAVA):
        return None
    return next((name for name, tests in SESSIONS.items() if nodeid.startswith(tests)), None)


class ByFile(LoadFileScheduling):  # type: ignore[misc]
    """A file at a time, and those that share a Spark session to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return session_of(nodeid) or super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Without garbage collection: all that is made stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first, so that no process is left with the last of them."""
    for item in items:
        if item.path.parent.name == "unit":
            item.add_marker("unit")
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: (session_of(item.nodeid) is None, item.path not in slow))
