"""The daemon's jobs beside ticking: rotation, retries, vacuum, extra operations, warnings."""

from __future__ import annotations

import json
import signal
import time

import pytest

from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_ticker import (
    PATIENCE,
    StartTicker,
    TickerProcess,
    eventually,
    ticker_toml,
)

HTTP = 'http = "127.0.0.1:0"'
QUICK = {
    "maintenance_period": 0.1,
    "maintenance_lock_timeout": 0.1,
    "retry_period": 0.05,
    "observe_period": 0.05,
}


def metric(daemon: TickerProcess, name: str, **labels: str) -> float | None:
    """One value from /metrics, the first that has these labels."""
    for line in daemon.get("/metrics")[1].splitlines():
        if line.startswith(f"{name}{{") and all(
            f'{key}="{value}"' in line for key, value in labels.items()
        ):
            return float(line.rsplit(" ", 1)[1])
    return None


def wait_for_metric(daemon: TickerProcess, least: float, name: str, **labels: str) -> None:
    """Each request is answered by the daemon, so this asks and does not sleep."""
    end = time.monotonic() + PATIENCE
    while (value := metric(daemon, name, **labels)) is None or value < least:
        assert time.monotonic() < end, f"{name} {labels} never reached {least}: {value}"


@pytest.mark.smoke
def test_an_idle_queue_is_rotated_again_and_again(
    start_ticker: StartTicker, dsn: str, conn: Connection, queue: str
) -> None:
    conn.execute("select pgq.set_queue_config(%s, 'rotation_period', '1 millisecond')", [queue])
    daemon = start_ticker(dsn, top=HTTP, **QUICK)
    eventually(conn, "select queue_rotations > 3 from pgq.queue where queue_name = %s", queue)
    wait_for_metric(daemon, 3, "pgqpy_queue_rotations", queue=queue)
    assert daemon.said("", level="warning") == []


def test_rotation_waits_for_the_slowest_consumer(
    start_ticker: StartTicker, dsn: str, conn: Connection, queue: str
) -> None:
    daemon = start_ticker(dsn, **QUICK)
    eventually(conn, "select last_tick_id from pgq.get_queue_info(%s)", queue)
    conn.execute("select pgq.register_consumer(%s, 'slow')", [queue])
    conn.execute("select pgq.insert_event(%s, 'type', 'kept')", [queue])
    conn.execute("select pgq.set_queue_config(%s, 'rotation_period', '1 millisecond')", [queue])
    # A second queue shows that passes go on while this one must not lose its event.
    conn.execute("select pgq.create_queue('other')")
    conn.execute("select pgq.set_queue_config('other', 'rotation_period', '1 millisecond')")
    eventually(conn, "select queue_rotations > 5 from pgq.queue where queue_name = 'other'")
    batch = eventually(conn, "select pgq.next_batch(%s, 'slow')", queue)
    events = conn.execute("select ev_data from pgq.get_batch_events(%s)", [batch]).fetchall()
    assert events == [("kept",)]
    assert daemon.stop() == 0


def test_a_retried_event_comes_again_when_its_time_has_come(
    start_ticker: StartTicker, dsn: str, conn: Connection, queue: str
) -> None:
    daemon = start_ticker(dsn, top=HTTP, **QUICK)
    eventually(conn, "select last_tick_id from pgq.get_queue_info(%s)", queue)
    conn.execute("select pgq.register_consumer(%s, 'c')", [queue])
    conn.execute("select pgq.insert_event(%s, 'type', 'again')", [queue])
    deliveries: list[tuple[int, int]] = []
    while len(deliveries) < 2:
        batch = eventually(conn, "select pgq.next_batch(%s, 'c')", queue)
        for event_id, retry in conn.execute(
            "select ev_id, coalesce(ev_retry, 0) from pgq.get_batch_events(%s)", [batch]
        ).fetchall():
            deliveries.append((event_id, retry))
            if retry == 0:
                conn.execute("select pgq.event_retry(%s, %s, 0)", [batch, event_id])
        conn.execute("select pgq.finish_batch(%s)", [batch])
    (first, before), (second, after) = deliveries
    assert (first, before, after) == (second, 0, 1)
    wait_for_metric(daemon, 1, "pgqpy_due_events_total")
    assert metric(daemon, "pgqpy_due_events_total") == 1


def test_extra_maintenance_runs_and_one_that_fails_stops_no_other(
    start_ticker: StartTicker, dsn: str, conn: Connection, queue: str
) -> None:
    conn.execute('create schema "Odd.Schema"')
    conn.execute("create table done (queue text)")
    conn.execute(
        """create function "Odd.Schema"."works; so"(q text) returns int language sql as
           'insert into public.done values (q) returning 1'"""
    )
    conn.execute(
        "create function public.breaks(q text) returns int language plpgsql as "
        "$$ begin raise exception 'broken for %', q; end $$"
    )
    works = '"Odd.Schema"."works; so"'
    injection = f"{works}('injected'); --"
    conn.execute(
        "update pgq.queue set queue_extra_maint = %s where queue_name = %s",
        [[injection, "public.breaks", "public.missing", works], queue],
    )
    daemon = start_ticker(dsn, top=HTTP, **QUICK)
    eventually(conn, "select count(*) > 2 from done where queue = %s", queue)
    daemon.hear("maintenance failed", times=3)
    failed = {line["operation"]: line for line in daemon.said("maintenance failed")}
    assert failed.keys() == {injection, "public.breaks", "public.missing"}
    assert failed["public.breaks"]["argument"] == queue
    assert len(daemon.said("maintenance failed")) == 3
    assert conn.execute("select count(*) from done where queue = 'injected'").fetchone() == (0,)
    assert (metric(daemon, "pgqpy_ticker_errors_total", job="public.breaks") or 0) >= 2


def failing(daemon: TickerProcess) -> dict[str, dict[str, str]]:
    """The answer of /healthz about each failing operation."""
    daemon.hear("leading")
    status, body = daemon.get("/healthz")
    (report,) = json.loads(body)["databases"].values()
    told = {each["operation"]: each for each in report.get("failing", [])}
    assert (status, report["healthy"]) == ((503, False) if told else (200, True))
    return told


def wait_for_failing(daemon: TickerProcess, operations: set[str]) -> dict[str, dict[str, str]]:
    """Each request is answered by the daemon, so this asks and does not sleep."""
    end = time.monotonic() + PATIENCE
    while (told := failing(daemon)).keys() != operations:
        assert time.monotonic() < end, f"never {operations}, but {told}"
    return told


def test_maintenance_that_fails_is_seen_in_status_health_and_metrics_until_it_works_again(
    start_ticker: StartTicker, dsn: str, conn: Connection, queue: str, cli: Cli
) -> None:
    conn.execute("create table missing_once (i int)")
    conn.execute(
        "create function public.breaks(q text) returns int language plpgsql as $$ begin "
        "if exists (select from public.missing_once) then return 1; end if; "
        "raise exception 'broken for %', q; end $$"
    )
    conn.execute(
        "update pgq.queue set queue_extra_maint = '{public.breaks}' where queue_name = %s", [queue]
    )
    daemon = start_ticker(dsn, top=HTTP, **QUICK)
    daemon.hear("maintenance failed", operation="public.breaks")
    told = wait_for_failing(daemon, {"public.breaks"})
    assert told["public.breaks"]["argument"] == queue
    assert told["public.breaks"]["error"].startswith(f"broken for {queue}")
    assert metric(daemon, "pgqpy_ticker_failing", job="public.breaks") == 1
    age = metric(daemon, "pgqpy_maintenance_age_seconds")
    eventually(conn, "select count(*) = 1 from pgq.ticker_failure")
    status = cli.json("status")
    [failure] = status["failures"]
    assert (failure["operation"], failure["argument"]) == ("public.breaks", queue)
    [alert] = [each for each in status["alerts"] if "public.breaks" in each["message"]]
    assert f"broken for {queue}" in alert["message"]
    assert f"broken for {queue}" in "".join(cli("status").stdout.split("\n")).replace("  ", "")

    conn.execute("insert into missing_once values (1)")
    daemon.hear("maintenance works again", operation="public.breaks")
    wait_for_failing(daemon, set())
    assert metric(daemon, "pgqpy_ticker_failing", job="public.breaks") == 0
    assert age is not None
    assert (metric(daemon, "pgqpy_maintenance_age_seconds") or 0) < age
    eventually(conn, "select count(*) = 0 from pgq.ticker_failure")
    assert cli.json("status")["failures"] == []
    assert len(daemon.said("maintenance failed")) == 1


def test_maintenance_that_cannot_even_be_listed_is_seen_and_ticks_go_on(
    start_ticker: StartTicker, dsn: str, conn: Connection, queue: str, cli: Cli
) -> None:
    conn.execute("alter function pgq.maint_operations() rename to renamed")
    daemon = start_ticker(dsn, top=HTTP, **QUICK)
    wait_for_failing(daemon, {"maintenance"})
    eventually(conn, "select count(*) = 1 from pgq.ticker_failure")
    assert [each["operation"] for each in cli.json("status")["failures"]] == ["maintenance"]
    eventually(conn, "select last_tick_id from pgq.get_queue_info(%s)", queue)
    conn.execute("alter function pgq.renamed() rename to maint_operations")
    daemon.hear("maintenance works again")
    wait_for_failing(daemon, set())


def test_an_operation_that_ends_its_session_stops_no_other(
    start_ticker: StartTicker, dsn: str, conn: Connection, queue: str
) -> None:
    conn.execute("create table done (queue text)")
    conn.execute(
        "create function public.ends(q text) returns bool language sql as "
        "'select pg_terminate_backend(pg_backend_pid())'"
    )
    conn.execute(
        "create function public.after(q text) returns int language sql as "
        "'insert into public.done values (q) returning 1'"
    )
    conn.execute(
        "update pgq.queue set queue_extra_maint = '{public.ends,public.after}' "
        "where queue_name = %s",
        [queue],
    )
    daemon = start_ticker(dsn, top=HTTP, **QUICK)
    eventually(conn, "select count(*) > 2 from done")
    assert failing(daemon).keys() == {"public.ends"}
    assert len(daemon.said("maintenance failed")) == 1


def test_what_the_last_leader_could_not_do_is_forgotten_by_the_next(
    start_ticker: StartTicker, dsn: str, conn: Connection
) -> None:
    conn.execute("select pgq.note_failures('{x.gone}', '{}', '{broken}')")
    start_ticker(dsn, **QUICK)
    eventually(conn, "select count(*) = 0 from pgq.ticker_failure")


def test_an_operation_that_waits_for_a_lock_gives_up_and_lets_others_run(
    start_ticker: StartTicker, dsn: str, conn: Connection, connect: Connect, queue: str
) -> None:
    conn.execute("create table busy (i int)")
    conn.execute("create table done (queue text)")
    conn.execute(
        "create function public.wants(q text) returns int language sql as "
        "'insert into public.busy values (1) returning 1'"
    )
    conn.execute(
        "create function public.after(q text) returns int language sql as "
        "'insert into public.done values (q) returning 1'"
    )
    conn.execute(
        "update pgq.queue set queue_extra_maint = '{public.wants,public.after}' "
        "where queue_name = %s",
        [queue],
    )
    blocker = connect(dsn, autocommit=False)
    blocker.execute("lock table busy in access exclusive mode")
    daemon = start_ticker(dsn, **QUICK)
    assert "lock timeout" in daemon.hear("maintenance failed", operation="public.wants")["message"]
    eventually(conn, "select count(*) > 0 from done")


def test_a_chore_whose_session_is_ended_goes_on_and_the_lead_is_kept(
    start_ticker: StartTicker, dsn: str, conn: Connection
) -> None:
    daemon = start_ticker(dsn, **QUICK)
    eventually(
        conn,
        "select count(pg_terminate_backend(pid)) > 0 from pg_stat_activity "
        "where application_name = 'pgqpy ticker jobs' and datname = current_database()",
    )
    daemon.hear("", level="warning")
    daemon.hear("", level="info", job=daemon.said("", level="warning")[0]["job"])
    assert len(daemon.said("leading")) == 1


def test_an_old_prepared_transaction_is_reported_by_age_and_when_it_ends(
    start_ticker: StartTicker, dsn: str, conn: Connection, queue: str
) -> None:
    conn.execute("begin")
    conn.execute("select pgq.insert_event(%s, 'type', 'data')", [queue])
    conn.execute("prepare transaction 'forgotten'")
    daemon = start_ticker(dsn, top=HTTP, old_transaction=0.001, **QUICK)
    line = daemon.hear("an old transaction holds up rotation", holder="forgotten")
    assert (line["kind"], line["level"]) == ("prepared", "warning")
    age = metric(daemon, "pgqpy_oldest_transaction_seconds", kind="prepared")
    assert age is not None
    assert age > 0
    conn.execute("rollback prepared 'forgotten'")
    daemon.hear("an old transaction has ended", holder="forgotten")


def test_a_session_idle_in_transaction_is_reported_if_it_has_written(
    start_ticker: StartTicker, dsn: str, connect: Connect
) -> None:
    reader, writer = connect(dsn, autocommit=False), connect(dsn, autocommit=False)
    reader.execute("select 1")
    writer.execute("select txid_current()")
    daemon = start_ticker(dsn, old_transaction=0.001, **QUICK)
    line = daemon.hear("an old transaction holds up", holder=f"pid {writer.info.backend_pid}")
    assert line["kind"] == "idle"
    assert not daemon.said("an old transaction holds up", holder=f"pid {reader.info.backend_pid}")


@pytest.mark.smoke
def test_consumers_and_queues_are_measured(
    start_ticker: StartTicker, dsn: str, conn: Connection, queue: str
) -> None:
    daemon = start_ticker(dsn, top=HTTP, **QUICK)
    eventually(conn, "select last_tick_id from pgq.get_queue_info(%s)", queue)
    conn.execute("select pgq.register_consumer(%s, 'c')", [queue])
    conn.execute("select pgq.insert_event(%s, 't', 'd') from generate_series(1, 7)", [queue])
    wait_for_metric(daemon, 7, "pgqpy_consumer_pending_events", queue=queue, consumer="c")
    wait_for_metric(daemon, 0.01, "pgqpy_consumer_lag_seconds", queue=queue, consumer="c")
    wait_for_metric(daemon, 0, "pgqpy_queue_last_tick_age_seconds", queue=queue)
    wait_for_metric(daemon, 1, "pgqpy_ticks_total")


@pytest.fixture
def admin_dsn(dsn: str, conn: Connection) -> str:
    """The database as seen by a role that is pgq_admin and nothing more."""
    conn.execute("drop role if exists d_admin")
    conn.execute("create role d_admin login in role pgq_admin")
    return dsn.replace("postgres@", "d_admin@")


@pytest.mark.smoke
def test_pgq_admin_is_all_it_needs(
    start_ticker: StartTicker, admin_dsn: str, conn: Connection, queue: str
) -> None:
    try:
        conn.execute("select pgq.set_queue_config(%s, 'rotation_period', '1 millisecond')", [queue])
        daemon = start_ticker(admin_dsn, top=HTTP, **QUICK)
        eventually(conn, "select queue_rotations > 3 from pgq.queue where queue_name = %s", queue)
        wait_for_metric(daemon, 3, "pgqpy_queue_rotations", queue=queue)
        assert daemon.said("", level="warning") == []
        assert daemon.said("", level="error") == []
        daemon.stop()
    finally:
        conn.execute("drop role d_admin")


def test_a_role_that_sees_no_other_sessions_still_reports_that_something_is_open(
    start_ticker: StartTicker, admin_dsn: str, conn: Connection, connect: Connect, dsn: str
) -> None:
    try:
        writer = connect(dsn, autocommit=False)
        writer.execute("select txid_current()")
        daemon = start_ticker(admin_dsn, old_transaction=0.1, **QUICK)
        daemon.hear("an old transaction holds up rotation", kind="hidden")
        writer.commit()
        daemon.hear("an old transaction has ended", kind="hidden")
        daemon.stop()
    finally:
        conn.execute("drop role d_admin")


def test_periods_that_a_reload_changes_hold_from_the_next_pass(
    start_ticker: StartTicker, dsn: str, conn: Connection, queue: str
) -> None:
    conn.execute("select pgq.set_queue_config(%s, 'rotation_period', '1 millisecond')", [queue])
    daemon = start_ticker(dsn, maintenance_period=0.2)
    eventually(conn, "select queue_rotations > 0 from pgq.queue where queue_name = %s", queue)
    daemon.config.write_text(ticker_toml(dsn, maintenance_period=0.02))
    daemon.send(signal.SIGHUP)
    daemon.hear("reloaded")
    eventually(conn, "select queue_rotations > 5 from pgq.queue where queue_name = %s", queue)


def test_times_in_the_future_give_no_negative_ages(
    start_ticker: StartTicker, dsn: str, conn: Connection, queue: str
) -> None:
    """They were noted before the clock was set back."""
    conn.execute("select pgq.register_consumer(%s, 'c')", [queue])
    conn.execute("update pgq.subscription set sub_active = now() + interval '400 days'")
    daemon = start_ticker(dsn, top=HTTP, observe_period=0.05)
    wait_for_metric(daemon, 0, "pgqpy_consumer_last_seen_seconds", queue=queue)
    assert metric(daemon, "pgqpy_consumer_last_seen_seconds", queue=queue) == 0
