"""Starting, stopping, reloading, and databases that go away: one process through all of it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from pgqpy.embedded import Server
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_ticker import (
    PATIENCE,
    StartTicker,
    TickerProcess,
    eventually,
    ticker_toml,
    with_schema,
)

HTTP = 'http = "127.0.0.1:0"'


def reload(daemon: TickerProcess, text: str) -> None:
    daemon.config.write_text(text)
    daemon.send(signal.SIGHUP)


# Starting and stopping


NO_SESSION = (
    "select count(*) = 0 from pg_stat_activity"
    " where datname = current_database() and application_name like 'pgqpy ticker%%'"
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_cleanly_within_a_second_or_two(
    start_ticker: StartTicker, dsn: str, conn: Connection, number: signal.Signals
) -> None:
    daemon = start_ticker(dsn)
    daemon.hear("leading")
    conn.execute("select setval('pgq.ticker_sleep_seq', 2)")
    daemon.send(number)
    # Twenty seconds: it, and each of its sessions, may get no processor time for a while.
    for _ in range(2000):
        if daemon.process.poll() is not None:
            break
        time.sleep(0.01)
    assert daemon.process.poll() == 0
    daemon.hear("stopped")
    # Producers are not asked to call it, and no session is left behind.
    assert conn.execute("select last_value from pgq.ticker_sleep_seq").fetchone() == (1,)
    eventually(conn, NO_SESSION)


def test_a_queue_that_is_being_dropped_holds_up_no_round_and_is_no_failure(
    start_ticker: StartTicker, dsn: str, conn: Connection, connect: Connect, queue: str
) -> None:
    daemon = start_ticker(dsn)
    daemon.hear("leading")
    conn.execute("select pgq.create_queue('gone')")
    admin = connect(autocommit=False)
    admin.execute("select pgq.drop_queue('gone')")
    for _ in range(2):
        ops.insert(conn, queue, "x")
        eventually(conn, "select ev_new = 0 from pgq.get_queue_info(%s)", queue)
        admin.commit()
    assert daemon.stop() == 0
    daemon.hear("stopped")
    assert daemon.said("could not open relation") == []
    assert len(daemon.said("leading")) == 1


def test_a_mistake_in_the_configuration_or_a_port_that_is_taken_ends_it_with_a_line(
    tmp_path: Path,
) -> None:
    config = tmp_path / "ticker.toml"
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = f"127.0.0.1:{other.getsockname()[1]}"
        for text, said in (
            ("[[database]]\ndsn = 'dbname=x'\nretry_perod = 1", "did you mean retry_period?"),
            (ticker_toml("dbname=x", top=f'http = "{where}"'), f"cannot listen on http = {where}"),
        ):
            config.write_text(text)
            ended = subprocess.run(
                [sys.executable, "-m", "pgqpy_ticker", "--config", str(config)],
                capture_output=True,
                text=True,
                check=False,
                timeout=PATIENCE,
            )
            assert ended.returncode == 2
            assert said in ended.stderr
            assert "Traceback" not in ended.stderr


def test_systemd_is_told_of_readiness_reloads_and_the_end(
    start_ticker: StartTicker, dsn: str, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(PATIENCE)
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        daemon = start_ticker(dsn, environment=environment)
        assert systemd.recv(1000) == b"READY=1\nSTATUS=0 away, 0 standby, 1 leading"
        daemon.send(signal.SIGHUP)
        assert systemd.recv(1000).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
        assert systemd.recv(1000).startswith(b"READY=1\n")
        assert daemon.stop() == 0
        assert systemd.recv(1000).startswith(b"STOPPING=1\n")


def test_systemd_sees_signs_of_life_as_often_as_it_wants(
    start_ticker: StartTicker, dsn: str, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(PATIENCE)
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        start_ticker(dsn, environment=environment)
        signs = 0
        while signs < 3:
            signs += systemd.recv(1000) == b"WATCHDOG=1"


# Reloading


def test_sighup_adds_and_removes_a_database_and_does_not_disturb_the_others(
    start_ticker: StartTicker, dsn: str, empty_dsn: str, connect: Connect
) -> None:
    daemon = start_ticker(dsn, top=HTTP)
    first = daemon.hear("leading")
    reload(daemon, ticker_toml(dsn, with_schema(empty_dsn), top=HTTP))
    second = daemon.hear("leading", times=2)
    assert first["database"] != second["database"]
    reload(daemon, ticker_toml(dsn, top=HTTP))
    daemon.hear("reloaded", databases=1)
    eventually(connect(empty_dsn), NO_SESSION)
    removed = psycopg.conninfo.conninfo_to_dict(empty_dsn)["dbname"]
    assert f'"{removed}"' not in daemon.get("/metrics")[1]
    assert list(json.loads(daemon.get("/healthz")[1])["databases"]) != [removed]
    assert len(daemon.said("leading")) == 2


def test_sighup_changes_settings_without_giving_up_the_lead_and_a_broken_file_changes_nothing(
    start_ticker: StartTicker, dsn: str, conn: Connection, queue: str
) -> None:
    conn.execute("select pgq.set_queue_config(%s, 'rotation_period', '1 millisecond')", [queue])
    rotations = "select queue_rotations > %s from pgq.queue where queue_name = %s"
    daemon = start_ticker(dsn, top=HTTP, maintenance_period=0.2)
    eventually(conn, rotations, 0, queue)
    reload(daemon, "[[database")
    assert daemon.hear("not reloaded")["level"] == "error"
    assert daemon.get("/healthz")[0] == 200
    # Nothing is healthy within a microsecond: the setting has arrived.
    reload(daemon, ticker_toml(dsn, top=HTTP, healthy_within=0.000001, maintenance_period=0.02))
    daemon.hear("reloaded")
    assert daemon.get("/healthz")[0] == 503
    eventually(conn, rotations, 5, queue)
    reload(daemon, ticker_toml(dsn, top=HTTP + '\nlog_level = "warning"'))
    reload(daemon, "[[database")
    daemon.hear("not reloaded", times=2)
    assert len(daemon.said("leading")) == 1


# Databases that go away


def test_a_server_that_is_killed_and_comes_back_is_ticked_again(
    start_ticker: StartTicker, own_server: Server
) -> None:
    daemon = start_ticker(own_server.dsn, top=HTTP, reconnect_at_most=0.5)
    daemon.hear("leading")
    own_server.kill()
    # There are several connections, and each notices for itself.
    while daemon.get("/healthz")[0] != 503:
        time.sleep(0.01)
    own_server.restart()
    daemon.hear("back again")
    daemon.hear("leading", times=2)
    assert daemon.get("/healthz")[0] == 200
    with psycopg.connect(own_server.dsn, autocommit=True) as conn:
        conn.execute("select pgq.create_queue('q')")
        eventually(conn, "select last_tick_id from pgq.get_queue_info('q')")


def test_a_database_that_stays_away_is_complained_of_once(start_ticker: StartTicker) -> None:
    daemon = start_ticker("host=127.0.0.1 port=1 dbname=nowhere", top=HTTP, reconnect_at_most=0.01)
    daemon.hear("ready")
    tried = 0.0
    while tried < 20:
        (line,) = [
            line
            for line in daemon.get("/metrics")[1].splitlines()
            if line.startswith("pgqpy_ticker_errors_total{")
        ]
        tried = float(line.split()[-1])
    daemon.hear("", level="warning")
    assert len(daemon.said("", level="warning")) == 1
    assert daemon.stop() == 0


def errors_of(daemon: TickerProcess, job: str) -> float:
    """The number of failures by the metrics."""
    for line in daemon.get("/metrics")[1].splitlines():
        if line.startswith("pgqpy_ticker_errors_total{") and f'job="{job}"' in line:
            return float(line.split()[-1])
    return 0


def wait_for_errors(daemon: TickerProcess, more: int, job: str = "tick") -> None:
    """Each request is answered by the daemon, so this asks and does not sleep."""
    before, end = errors_of(daemon, job), time.monotonic() + PATIENCE
    while errors_of(daemon, job) < before + more:
        assert time.monotonic() < end


@pytest.fixture
def count_maintenance(conn: Connection, queue: str) -> str:
    """A query for the number of times that maintenance has come to this queue."""
    conn.execute("create sequence maintained")
    conn.execute(
        "create function public.count_me(q text) returns int8 language sql as "
        "$$ select nextval('public.maintained') $$"
    )
    conn.execute(
        "update pgq.queue set queue_extra_maint = '{public.count_me}' where queue_name = %s",
        [queue],
    )
    return "select last_value from public.maintained"


def test_rounds_that_fail_are_two_lines_and_maintenance_goes_on_meanwhile(
    start_ticker: StartTicker, dsn: str, conn: Connection, count_maintenance: str
) -> None:
    daemon = start_ticker(
        dsn, top=HTTP, reconnect_at_most=0.01, maintenance_period=0.01, retry_period=0.05
    )
    daemon.hear("leading")
    # As in a dump restored into a cluster with lower transaction ids.
    conn.execute("select setval('pgq.txid_high_seq', txid_current() + 1000000)")
    daemon.hear("the queues of this database come from a cluster")
    jobs = "select pid from pg_stat_activity where application_name = 'pgqpy ticker jobs'"
    wait_for_errors(daemon, 5)
    # Jobs are at work, and errors of earlier work have been logged by now.
    eventually(conn, "select last_value > 5 from public.maintained")
    lines = len(daemon.lines)
    before = conn.execute(count_maintenance.encode()).fetchone() or (0,)
    sessions = wait_until(lambda: set(conn.execute(jobs.encode()).fetchall()))
    wait_for_errors(daemon, 20)
    eventually(conn, f"select last_value > {before[0]} + 20 from public.maintained")
    assert sessions & set(conn.execute(jobs.encode()).fetchall())
    assert daemon.lines[lines:] == []
    assert daemon.get("/healthz")[0] == 503
    assert "adopt_restored" in daemon.said("the queues of this database come")[0]["hint"]

    conn.execute("select pgq.adopt_restored()")
    daemon.hear("back again")
    daemon.hear("leading", times=2)
    assert len(daemon.said("back again")) == 1


# A session with many temporary tables takes long to end: the next one must not wait for its lead.
LINGER = """
create function public.linger() returns event_trigger language plpgsql as $$ begin
    for number in 1..300 loop
        execute format('create temporary table t%s ()', number);
    end loop;
end $$;
create event trigger linger on login execute function public.linger()
"""


def test_rounds_that_fail_from_the_start_let_maintenance_run(
    start_ticker: StartTicker, dsn: str, conn: Connection, count_maintenance: str
) -> None:
    conn.execute("alter function pgq._make_ticks rename to renamed")
    conn.execute(
        "create function pgq._make_ticks(int4[], bool[], int8[], int8[], int4[] = '{}') "
        "returns int8[] language plpgsql as $$ begin "
        "raise disk_full using message = 'could not extend file'; end $$"
    )
    if conn.info.server_version >= 170000:
        conn.execute(LINGER)
    daemon = start_ticker(dsn, top=HTTP, reconnect_at_most=0.01, maintenance_period=0.01)
    daemon.hear("could not extend file")
    eventually(conn, "select last_value > 5 from public.maintained")
    wait_for_errors(daemon, 5)
    assert [line["message"] for line in daemon.said("", level="info")] == [
        "answering http",
        "ready",
    ]
    assert len(daemon.said("", level="warning")) == 1
    conn.execute("drop function pgq._make_ticks")
    conn.execute("alter function pgq.renamed rename to _make_ticks")
    daemon.hear("back again")
    daemon.hear("leading")


def test_two_tickers_whose_rounds_fail_say_so_once_each(
    start_ticker: StartTicker, dsn: str, conn: Connection, queue: str
) -> None:
    conn.execute("select setval('pgq.txid_high_seq', txid_current() + 1000000)")
    pair = [start_ticker(dsn, top=HTTP, reconnect_at_most=5, standby_period=0.01) for _ in range(2)]
    for daemon in pair:
        daemon.hear("the queues of this database come from a cluster")
    for daemon in pair:
        wait_for_errors(daemon, 2)
    for daemon in pair:
        assert len(daemon.said("the queues of this database come from a cluster")) == 1
        assert daemon.said("back again") == []
    conn.execute("select pgq.adopt_restored()")
    eventually(conn, "select last_tick_id from pgq.get_queue_info(%s)", queue)


def test_a_database_without_the_schema_is_told_to_migrate_and_served_when_it_has(
    start_ticker: StartTicker, empty_dsn: str, connect: Connect
) -> None:
    daemon = start_ticker(empty_dsn, schema_retry=0.1)
    line = daemon.hear("the schema pgq is missing")
    assert line["hint"].startswith("run: pgqpy migrate")
    with_schema(empty_dsn)
    daemon.hear("leading")
    conn = connect(empty_dsn)
    while True:
        try:
            conn.execute("drop schema pgq, pgq_ext, pgq_coop, pgq_task cascade")
            break
        except psycopg.errors.DeadlockDetected:
            pass  # the daemon's look at the queues takes its locks in another order
    daemon.hear("the schema pgq is missing", times=2)
    with_schema(empty_dsn)
    daemon.hear("leading", times=2)


def test_a_role_without_rights_is_told_which_one_to_have(
    start_ticker: StartTicker, dsn: str, conn: Connection
) -> None:
    conn.execute("drop role if exists d_nobody")
    conn.execute("create role d_nobody login")
    try:
        daemon = start_ticker(f"{dsn}&options=-crole%3Dd_nobody", schema_retry=0.1)
        assert "pgq_admin" in daemon.hear("not allowed")["hint"]
        conn.execute("grant pgq_admin to d_nobody")
        daemon.hear("leading")
        daemon.stop()
    finally:
        conn.execute("drop role d_nobody")
