"""The daemon's jobs beside ticking: rotation, retries, vacuum, extra operations, warnings."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_ticker import PATIENCE, StartTicker, TickerProcess, eventually

HTTP = 'http = "127.0.0.1:0"'
QUICK = {
    "maintenance_period": 0.1,
    # A pass that waits for a session that gets no processor time has not failed.
    "maintenance_lock_timeout": 60,
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


def next_with_events(conn: Connection, queue: str, consumer: str) -> int:
    """The next batch that has some: a tick without events may come at any time."""
    while True:
        batch: int = eventually(conn, "select pgq.next_batch(%s, %s)", queue, consumer)
        if ops.events(conn, batch):
            return batch
        ops.finish(conn, batch)


def test_rotation_waits_for_the_slowest_consumer(
    start_ticker: StartTicker, dsn: str, conn: Connection, queue: str
) -> None:
    daemon = start_ticker(dsn, **QUICK)
    eventually(conn, "select last_tick_id from pgq.get_queue_info(%s)", queue)
    ops.register(conn, queue, "slow")
    ops.insert(conn, queue, "kept")
    conn.execute("select pgq.set_queue_config(%s, 'rotation_period', '1 millisecond')", [queue])
    # A second queue shows that passes go on while this one must not lose its event.
    conn.execute("select pgq.create_queue('other')")
    conn.execute("select pgq.set_queue_config('other', 'rotation_period', '1 millisecond')")
    eventually(conn, "select queue_rotations > 5 from pgq.queue where queue_name = 'other'")
    batch = next_with_events(conn, queue, "slow")
    assert ops.payloads(conn, batch) == ["kept"]
    assert daemon.stop() == 0


def test_the_leader_measures_tasks_retries_dead_letters_and_failures(
    start_ticker: StartTicker, dsn: str, conn: Connection, queue: str
) -> None:
    ops.register(conn, queue, "c")
    daemon = start_ticker(dsn, top=HTTP, **QUICK)
    with conn.transaction():
        ops.insert(conn, queue, "lost")
        ops.insert(conn, queue, "retried")
    batch = next_with_events(conn, queue, "c")
    ask = "select ev_id from pgq.get_batch_events(%s) order by ev_id"
    lost, retried = (ev_id for (ev_id,) in conn.execute(ask, [batch]))
    conn.execute("select pgq.note_failure(%s, 'no', null)", [batch])
    wait_for_metric(daemon, 1, "pgqpy_consumer_failures", consumer="c")
    conn.execute("select pgq.event_dead_letter(%s, %s, 'bad')", [batch, lost])
    conn.execute("select pgq.event_retry(%s, %s, 1000)", [batch, retried])
    conn.execute("select pgq.finish_batch(%s)", [batch])
    wait_for_metric(daemon, 1, "pgqpy_consumer_dead_letters", queue=queue, consumer="c")
    wait_for_metric(daemon, 1, "pgqpy_queue_retry_events", queue=queue)
    assert metric(daemon, "pgqpy_consumer_failures", consumer="c") == 0
    conn.execute("select pgq_task.create_queue('mails')")
    conn.execute("select pgq_task.set_queue_config('mails', 'keep_tenants', '1 hour')")
    conn.execute("select pgq_task.push('mails/a', '1'), pgq_task.push('mails/b', '2')")
    wait_for_metric(daemon, 2, "pgqpy_task_queue_tasks", queue="mails", status="available")
    wait_for_metric(daemon, 2, "pgqpy_task_operations_total", queue="mails", operation="pushed")
    assert daemon.stop() == 0


def create_job(conn: Connection, name: str, does: str) -> None:
    """A function for maintenance; ``q`` is the queue's name."""
    conn.execute(f"create function {name}(q text) returns int language plpgsql as $$ {does} $$")


def name_jobs(conn: Connection, queue: str, *names: str) -> None:
    conn.execute(
        "update pgq.queue set queue_extra_maint = %s where queue_name = %s", [list(names), queue]
    )


def test_extra_maintenance_runs_and_none_that_fails_or_waits_or_ends_its_session_stops_another(
    start_ticker: StartTicker, dsn: str, conn: Connection, connect: Connect, queue: str
) -> None:
    conn.execute('create schema "Odd.Schema"')
    conn.execute("create table done (queue text); create table busy (i int)")
    works = '"Odd.Schema"."works; so"'
    injection = f"{works}('injected'); --"
    create_job(conn, works, "begin insert into public.done values (q); return 1; end")
    create_job(conn, "public.breaks", "begin raise exception 'broken for %', q; end")
    create_job(conn, "public.ends", "begin perform pg_terminate_backend(pg_backend_pid()); end")
    create_job(conn, "public.wants", "begin insert into public.busy values (1); return 1; end")
    bad = [injection, "public.breaks", "public.missing", "public.ends", "public.wants"]
    name_jobs(conn, queue, *bad, works)
    blocker = connect(autocommit=False)
    blocker.execute("lock table busy in access exclusive mode")
    daemon = start_ticker(dsn, top=HTTP, **QUICK | {"maintenance_lock_timeout": 0.5})
    eventually(conn, "select count(*) > 1 from done where queue = %s", queue)
    daemon.hear("maintenance failed", times=5)
    failed = {line["operation"]: line for line in daemon.said("maintenance failed")}
    assert failed.keys() == set(bad)
    assert failed["public.breaks"]["argument"] == queue
    assert "lock timeout" in failed["public.wants"]["message"]
    assert failing(daemon).keys() == set(bad)
    assert len(daemon.said("maintenance failed")) == 5
    assert conn.execute("select count(*) from done where queue = 'injected'").fetchone() == (0,)
    wait_for_metric(daemon, 2, "pgqpy_ticker_errors_total", job="public.breaks")


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
    create_job(
        conn,
        "public.breaks",
        "begin if exists (select from public.missing_once) then return 1; end if;"
        " raise exception 'broken for %', q; end",
    )
    name_jobs(conn, queue, "public.breaks")
    # Of the last leader: it is forgotten.
    conn.execute("select pgq.note_failures('{x.gone}', '{}', '{broken}')")
    daemon = start_ticker(dsn, top=HTTP, **QUICK)
    daemon.hear("maintenance failed", operation="public.breaks")
    told = wait_for_failing(daemon, {"public.breaks"})
    assert told["public.breaks"]["argument"] == queue
    assert told["public.breaks"]["error"].startswith(f"broken for {queue}")
    assert metric(daemon, "pgqpy_ticker_failing", job="public.breaks") == 1
    eventually(conn, "select array_agg(tf_operation) = '{public.breaks}' from pgq.ticker_failure")
    status = cli.json("status")
    [failure] = status["failures"]
    assert (failure["operation"], failure["argument"]) == ("public.breaks", queue)
    [alert] = [each for each in status["alerts"] if "public.breaks" in each["message"]]
    assert f"broken for {queue}" in alert["message"]
    assert f"broken for {queue}" in "".join(cli("status").stdout.split("\n")).replace("  ", "")

    wait_for_metric(daemon, 0.5, "pgqpy_maintenance_age_seconds")
    conn.execute("insert into missing_once values (1)")
    daemon.hear("maintenance works again", operation="public.breaks")
    wait_for_failing(daemon, set())
    assert metric(daemon, "pgqpy_ticker_failing", job="public.breaks") == 0
    end = time.monotonic() + PATIENCE
    while (metric(daemon, "pgqpy_maintenance_age_seconds") or 0) >= 0.5:
        assert time.monotonic() < end
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


def test_old_transactions_are_reported_by_age_and_when_they_end(
    start_ticker: StartTicker, dsn: str, conn: Connection, connect: Connect, queue: str
) -> None:
    """Prepared ones, and sessions that are idle in one and have written."""
    conn.execute("begin")
    ops.insert(conn, queue, "data")
    conn.execute("prepare transaction 'forgotten'")
    reader, writer = connect(autocommit=False), connect(autocommit=False)
    reader.execute("select 1")
    writer.execute("select txid_current()")
    daemon = start_ticker(dsn, top=HTTP, old_transaction=0.001, **QUICK)
    line = daemon.hear("an old transaction holds up rotation", holder="forgotten")
    assert (line["kind"], line["level"]) == ("prepared", "warning")
    line = daemon.hear("an old transaction holds up", holder=f"pid {writer.info.backend_pid}")
    assert line["kind"] == "idle"
    assert not daemon.said("an old transaction holds up", holder=f"pid {reader.info.backend_pid}")
    assert (metric(daemon, "pgqpy_oldest_transaction_seconds", kind="prepared") or 0) > 0
    conn.execute("rollback prepared 'forgotten'")
    daemon.hear("an old transaction has ended", holder="forgotten")


@pytest.mark.smoke
def test_queues_are_rotated_again_and_again_and_all_is_measured(
    start_ticker: StartTicker, admin_dsn: str, conn: Connection, queue: str
) -> None:
    """As pgq_admin, which is all it needs."""
    conn.execute("select pgq.set_queue_config(%s, 'rotation_period', '1 millisecond')", [queue])
    daemon = start_ticker(admin_dsn, top=HTTP, **QUICK)
    eventually(conn, "select queue_rotations > 3 from pgq.queue where queue_name = %s", queue)
    wait_for_metric(daemon, 3, "pgqpy_queue_rotations", queue=queue)
    ops.register(conn, queue, "c")
    conn.execute("select pgq.insert_event(%s, 't', 'd') from generate_series(1, 7)", [queue])
    conn.execute("select pgq.insert_event_at(%s, now(), 't', 'd')", [queue])
    wait_for_metric(daemon, 8, "pgqpy_consumer_pending_events", queue=queue, consumer="c")
    wait_for_metric(daemon, 0.01, "pgqpy_consumer_lag_seconds", queue=queue, consumer="c")
    wait_for_metric(daemon, 0, "pgqpy_queue_last_tick_age_seconds", queue=queue)
    wait_for_metric(daemon, 1, "pgqpy_ticks_total")
    wait_for_metric(daemon, 1, "pgqpy_due_events_total")
    assert metric(daemon, "pgqpy_due_events_total") == 1
    # A time in the future was noted before the clock was set back: no negative age.
    conn.execute("update pgq.subscription set sub_active = now() - interval '1 hour'")
    wait_for_metric(daemon, 3600, "pgqpy_consumer_last_seen_seconds", queue=queue)
    conn.execute("update pgq.subscription set sub_active = now() + interval '400 days'")
    end = time.monotonic() + PATIENCE
    while metric(daemon, "pgqpy_consumer_last_seen_seconds", queue=queue) != 0:
        assert time.monotonic() < end
    assert daemon.said("", level="warning") + daemon.said("", level="error") == []


@pytest.fixture
def admin_dsn(dsn: str, conn: Connection) -> Iterator[str]:
    """The database as seen by a role that is pgq_admin and nothing more."""
    conn.execute("drop role if exists d_admin")
    conn.execute("create role d_admin login in role pgq_admin")
    yield dsn.replace("postgres@", "d_admin@")
    conn.execute(
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity where usename = 'd_admin'"
    )
    conn.execute("drop role d_admin")


def test_a_role_that_sees_no_other_sessions_still_reports_that_something_is_open(
    start_ticker: StartTicker, admin_dsn: str, connect: Connect
) -> None:
    writer = connect(autocommit=False)
    writer.execute("select txid_current()")
    daemon = start_ticker(admin_dsn, old_transaction=0.1, **QUICK)
    daemon.hear("an old transaction holds up rotation", kind="hidden")
    writer.commit()
    daemon.hear("an old transaction has ended", kind="hidden")
