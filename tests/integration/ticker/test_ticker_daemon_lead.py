"""Several tickers for one database: exactly one ticks, and another does when it is gone.

Each test waits for what a daemon says in its log, or for what it did in the database.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from pgqpy.embedded import Server
from pgqpy_ticker.lead import LOCK
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import StartTicker, TickerProcess, eventually

HTTP = 'http = "127.0.0.1:0"'

HOLDERS = """
    select array_agg(pid) from pg_locks
    where locktype = 'advisory' and granted and classid = %s and objid = %s and objsubid = 2
      and database = (select oid from pg_database where datname = current_database())
"""


def metric(daemon: TickerProcess, name: str) -> float:
    [value] = [
        line.split()[-1]
        for line in daemon.get("/metrics")[1].splitlines()
        if line.startswith(f"{name}{{")
    ]
    return float(value)


def leads(daemon: TickerProcess) -> float:
    return metric(daemon, "pgqpy_ticker_leader")


def rounds_of(daemon: TickerProcess) -> float:
    """The number of rounds of ticks it has made."""
    return metric(daemon, "pgqpy_ticker_round_seconds_count")


def leader_pid(conn: Connection) -> int:
    """The server process of the session that holds the lead."""
    (pid,) = eventually(conn, HOLDERS, *LOCK)
    return int(pid)


def assert_ticks(conn: Connection, queue: str) -> None:
    """The daemons of this database tick: events inserted now get one."""
    before = ops.value(conn, "select last_tick_id from pgq.get_queue_info(%s)", queue) or 0
    ops.insert(conn, queue, "data")
    ticked = "select last_tick_id > %s and ev_new = 0 from pgq.get_queue_info(%s)"
    eventually(conn, ticked, before, queue)


def stop_while_it_leads(daemon: TickerProcess, conn: Connection) -> None:
    """A daemon may lose the lead, and win it again, if it gets no processor time for a while."""
    while True:
        eventually(conn, HOLDERS, *LOCK)
        if leads(daemon):
            daemon.send(signal.SIGSTOP)
            if conn.execute(HOLDERS.encode(), LOCK).fetchone() != (None,):
                return
            daemon.send(signal.SIGCONT)


def stop_session_that_leads(conn: Connection) -> int:
    """Stop the server's process; returns its id. It may be another one if it had hung."""
    while True:
        pid = leader_pid(conn)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            if conn.execute(HOLDERS.encode(), LOCK).fetchone() == ([pid],):
                return pid
            os.kill(pid, signal.SIGCONT)


Pair = tuple[TickerProcess, TickerProcess]


@pytest.fixture
def pair(start_ticker: StartTicker, dsn: str) -> Pair:
    """A leader and the one that stands by for it."""
    leader = start_ticker(dsn, standby_period=0.1)
    leader.hear("leading")
    standby = start_ticker(dsn, top=HTTP, standby_period=0.1)
    standby.hear("standing by")
    return leader, standby


@pytest.mark.smoke
def test_the_second_ticker_of_a_database_stands_by_and_ticks_when_the_leader_stops(
    pair: Pair, conn: Connection, queue: str
) -> None:
    leader, standby = pair
    assert standby.said("standing by")[0]["leader_pid"] == leader_pid(conn)
    assert standby.said("leading") == []
    standby.hear("ready")
    status, body = standby.get("/healthz")
    (report,) = json.loads(body)["databases"].values()
    assert (status, report["state"], leads(standby)) == (200, "standby", 0)
    assert leader.stop() == 0
    standby.hear("leading")
    assert_ticks(conn, queue)


def test_if_the_leader_is_killed_another_ticks(pair: Pair, conn: Connection, queue: str) -> None:
    leader, standby = pair
    leader.kill()
    standby.hear("leading")
    assert_ticks(conn, queue)


def test_a_leader_whose_session_is_ended_leads_no_more_until_it_wins_again(
    pair: Pair, conn: Connection, queue: str
) -> None:
    leader, _ = pair
    first = leader_pid(conn)
    conn.execute("select pg_terminate_backend(%s, 10000)", [first])
    # The server's reason, unless the end of the connection was noticed before it was read.
    leader.hear("", level="warning")
    assert leader_pid(conn) != first
    assert_ticks(conn, queue)


def test_a_leader_that_hangs_loses_the_lead_and_does_not_tick_when_it_comes_to(
    start_ticker: StartTicker, dsn: str, conn: Connection, queue: str
) -> None:
    leader = start_ticker(dsn, top=HTTP, leader_timeout=1.5, standby_period=0.1)
    leader.hear("leading")
    stop_while_it_leads(leader, conn)
    standby = start_ticker(dsn, standby_period=0.1)
    standby.hear("leading")
    assert_ticks(conn, queue)

    leader.send(signal.SIGCONT)
    line = leader.hear("standing by")
    assert line["leader_pid"] == standby.said("leading")[0]["server_pid"]
    assert leads(leader) == 0
    assert "pgqpy_queue_pending_events{" not in leader.get("/metrics")[1]
    assert_ticks(conn, queue)


@pytest.fixture
def hung_leader(start_ticker: StartTicker, dsn: str, conn: Connection) -> Iterator[int]:
    """The process id on the server of a leader's session, which is stopped."""
    start_ticker(dsn).hear("leading")
    pid = leader_pid(conn)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


QUICK = {"leader_timeout": 1.5, "standby_period": 0.05}


def test_a_leader_whose_server_process_hangs_is_ended_by_the_standby(
    start_ticker: StartTicker, dsn: str, conn: Connection, queue: str, hung_leader: int
) -> None:
    standby = start_ticker(dsn, top=HTTP, **QUICK)
    line = standby.hear("the leader's session hangs: ending it")
    assert line["leader_pid"] == hung_leader
    # A process that is stopped cannot react. That has to be told, too.
    line = standby.hear("the leader's session hangs, and cannot be ended")
    assert str(hung_leader) in line["hint"]

    def failing() -> Any:
        """What it reports with 503: again, if it gets a session of its own again meanwhile."""
        status, body = standby.get("/healthz")
        (report,) = json.loads(body)["databases"].values()
        return status == 503 and report.get("failing")

    (failure,) = wait_until(failing)
    assert failure["operation"] == "lead"
    assert f"kill -CONT {hung_leader}" in failure["error"]

    os.kill(hung_leader, signal.SIGCONT)
    standby.hear("leading")
    # Each is said once, by each session that looks.
    said = len(standby.said("the leader's session hangs"))
    assert 2 <= said <= 2 * len(standby.said("standing by"))
    assert_ticks(conn, queue)
    wait_until(lambda: standby.get("/healthz")[0] == 200)


def test_a_ticker_whose_own_server_process_hangs_says_so_and_gets_rid_of_it(
    start_ticker: StartTicker, dsn: str, conn: Connection, queue: str
) -> None:
    daemon = start_ticker(dsn, **QUICK)
    daemon.hear("leading")
    pid = stop_session_that_leads(conn)
    try:
        daemon.hear("the server has not answered for")
        daemon.hear("the leader's session hangs", leader_pid=pid)
    finally:
        os.kill(pid, signal.SIGCONT)
    daemon.hear("leading", times=2)
    assert_ticks(conn, queue)


def test_a_standby_that_may_not_end_a_leader_says_so(
    start_ticker: StartTicker, dsn: str, conn: Connection, hung_leader: int
) -> None:
    conn.execute("drop role if exists d_standby")
    conn.execute("create role d_standby login in role pgq_admin, pg_read_all_stats")
    try:
        standby = start_ticker(dsn.replace("postgres@", "d_standby@"), top=HTTP, **QUICK)
        standby.hear("the leader's session hangs, and cannot be ended", leader_pid=hung_leader)
        assert standby.get("/healthz")[0] == 503
        standby.stop()
    finally:
        conn.execute("drop role d_standby")


def test_a_leader_that_has_nothing_to_do_is_never_taken_to_hang(
    start_ticker: StartTicker, own_server: Server
) -> None:
    """The leader sleeps longer than the standby waits, since no transaction can be prepared."""
    leader = start_ticker(own_server.dsn, top=HTTP, sleep_at_most=0.9, leader_timeout=10)
    leader.hear("leading")
    standby = start_ticker(own_server.dsn, top=HTTP, standby_period=0.01, leader_timeout=3)
    standby.hear("standing by")
    # Longer than the limit, which is 4.5 s, by what the leader does and not by the clock.
    rounds = rounds_of(leader)
    while rounds_of(leader) < rounds + 6:
        time.sleep(0.01)
    assert standby.said("the leader's session hangs") == []
    assert leader.said("", level="warning") == []
    assert len(leader.said("leading")) == 1


def test_leads_of_two_databases_are_independent(
    start_ticker: StartTicker, dsn: str, empty_dsn: str, conn: Connection
) -> None:
    """The lock is the database's, and so is problem: one without the schema is no matter for the
    other."""
    daemon = start_ticker(dsn, empty_dsn, top=HTTP)
    led = daemon.hear("leading")["database"]
    away = daemon.hear("the schema pgq is missing")["database"]
    assert led != away
    status, body = daemon.get("/healthz")
    report = json.loads(body)["databases"]
    assert status == 503
    assert (report[led]["healthy"], report[away]["healthy"]) == (True, False)
