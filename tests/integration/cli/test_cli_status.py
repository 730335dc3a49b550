"""`pgqpy status` on a real server: what it reads, and what it looks like."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from pgqpy.consumer.progress import BatchProgress
from pgqpy_ticker.lead import LOCK
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli, Spawn
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_ticker import eventually
from tests.integration.test_security import SHADOWS

KEYS = {
    "status": "server queues old_transactions foreign_locks failures alerts",
    "server": "database server_version time ticker_pid standby_lag",
    "queue": "queue state last_tick tick_age events_per_second unticked_events retry_events"
    " delayed_events next_due_in dead_letters rotated rotation_due_in rotation_held_by consumers",
    "consumer": "consumer state lag last_seen pending_events last_tick current_batch dead_letters"
    " progress failing paused",
}


@pytest.mark.smoke
def test_the_keys_of_the_json_are_the_documented_ones(cli: Cli, queue: str) -> None:
    cli.ok("consumer", "register", queue, "counter")
    status = cli.json("status")
    [shown] = status["queues"]
    for name, found in (
        ("status", status),
        ("server", status["server"]),
        ("queue", shown),
        ("consumer", shown["consumers"][0]),
    ):
        assert " ".join(found) == KEYS[name]


def test_backlogs_and_positions_are_those_of_the_queue(
    cli: Cli, conn: Connection, queue: str
) -> None:
    cli.ok("consumer", "register", queue, "counter")
    for _ in range(5):
        ops.insert(conn, queue, "d")
    ops.tick(conn, queue)
    for _ in range(2):
        ops.insert(conn, queue, "d")
    cli.ok("queue", "create", "other")
    assert [each["queue"] for each in cli.json("status")["queues"]] == ["other", queue]
    [shown] = cli.json("status", queue)["queues"]
    assert shown["unticked_events"] == 2
    [consumer] = shown["consumers"]
    assert consumer["pending_events"] >= 5
    assert consumer["last_tick"] < shown["last_tick"]


def make_rotation_due(conn: Connection, queue: str) -> None:
    """It happens as far as consumers allow."""
    ops.rotate_whenever_asked(conn, queue)
    ops.rotate(conn, queue)


@pytest.mark.smoke
def test_the_transaction_that_holds_up_rotation_is_named(
    cli: Cli, conn: Connection, connect: Connect, queue: str
) -> None:
    ops.tick(conn, queue)
    cli.ok("consumer", "register", queue, "counter")
    writer = connect(autocommit=False)
    writer.execute("select txid_current()")
    make_rotation_due(conn, queue)
    ops.tick(conn, queue)
    cli.ok("consumer", "seek", queue, "counter", "--end")
    status = cli.json("status", "--stuck-after", "0")
    assert status["queues"][0]["rotation_held_by"] == ["an open transaction"]
    [old] = status["old_transactions"]
    assert old["kind"] == "session"
    assert old["name"] == str(writer.info.backend_pid)
    writer.rollback()
    assert cli.json("status", "--stuck-after", "0")["old_transactions"] == []


def test_a_prepared_transaction_is_named(cli: Cli, conn: Connection, queue: str) -> None:
    with conn.transaction():
        ops.insert(conn, queue, "d")
        conn.execute("prepare transaction 'it''s old'")
    [old] = cli.json("status", "--stuck-after", "0")["old_transactions"]
    assert (old["kind"], old["name"]) == ("prepared", "it's old")
    assert "rollback prepared 'it''s old'" in cli.ok("status", "--stuck-after", "0")


def test_retries_are_counted_and_dead_letters_also_of_a_consumer_that_has_left(
    cli: Cli, conn: Connection, queue: str
) -> None:
    for name in ("counter", "gone", "later"):
        cli.ok("consumer", "register", queue, name)
    ops.insert(conn, queue, "d")
    ops.tick(conn, queue)
    for name in ("counter", "gone"):
        batch = ops.next_batch(conn, queue, name)
        conn.execute("select pgq.event_dead_letter(%s, 1, 'bad')", [batch])
    batch = ops.next_batch(conn, queue, "later")
    conn.execute("select pgq.batch_retry(%s, 3600)", [batch])
    cli.ok("consumer", "unregister", queue, "gone")
    [status] = cli.json("status")["queues"]
    assert (status["dead_letters"], status["retry_events"]) == (2, 1)
    assert [each["dead_letters"] for each in status["consumers"]] == [1, 0]
    assert "1 to retry" in cli.ok("status")
    assert ", 2 dead letters" in cli.ok("status")
    assert ", 1 dead letter\n" in cli.ok("status")


def test_a_batch_that_a_session_tells_of_is_shown_until_the_session_ends(
    cli: Cli, conn: Connection, connect: Connect, queue: str
) -> None:
    cli.ok("consumer", "register", queue, "spark_report")
    ops.insert(conn, queue, "d")
    ops.tick(conn, queue)
    batch = ops.next_batch(conn, queue, "spark_report")
    names = [
        BatchProgress(batch, timedelta(minutes=12), 345, 1200).session_name("spark_report"),
        BatchProgress(batch + 1, timedelta(minutes=13)).session_name("another's"),
        "pgqpy batch of cookies",
    ]
    sessions = [connect(application_name=name) for name in names]
    [counter] = cli.json("status")["queues"][0]["consumers"]
    told = {"batch_id": batch, "running": 720.0, "tasks_done": 345, "tasks": 1200}
    assert counter["progress"] == told
    shown = cli.ok("status")
    assert f"ok, batch {batch} for 12 min: 345/1200 tasks" in shown
    assert "13 min" not in shown
    for session in sessions:
        session.close()
    eventually(
        conn,
        "select not exists (select from pg_stat_activity where application_name = %s)",
        names[0],
    )
    assert cli.json("status")["queues"][0]["consumers"][0]["progress"] is None


def test_watching_shows_one_status_after_the_other(cli: Cli, queue: str, spawn: Spawn) -> None:
    watch = spawn("status", "--watch", "--every", "0.1", "--json")
    assert watch.stdout is not None
    times = [json.loads(watch.stdout.readline())["server"]["time"] for _ in range(3)]
    assert times == sorted(set(times))


def test_a_status_that_nothing_is_wrong_with_fits_80_columns(cli: Cli) -> None:
    assert "pgqpy queue create" in cli.ok("status")
    for name in ("flights", "orders of the day"):
        cli.ok("queue", "create", name)
        cli.ok("consumer", "register", name, "delay_counter")
        cli.ok("consumer", "register", name, "spark_report")
    assert all(len(line) <= 80 for line in cli.ok("status").splitlines())


def test_a_rotation_in_the_future_was_before_the_clock_was_set_back(
    conn: Connection, queue: str, cli: Cli
) -> None:
    conn.execute("update pgq.queue set queue_switch_time = now() + interval '400 days'")
    [status] = cli.json("status")["queues"]
    assert abs(status["rotated"]) < 60
    assert abs(status["rotation_due_in"]) < 60


COMMANDS = [
    *("status", "queue list", "queue show orders", "queue config orders", "consumer list orders"),
    *("group list orders", "event delayed orders", "dead-letter list", "task queues"),
    *("task list mails", "task stats mails", "task limits"),
]


def test_no_operator_on_the_search_path_is_called(
    cli: Cli, conn: Connection, connect: Connect
) -> None:
    conn.execute("select pgq.create_queue('orders')")
    conn.execute("select pgq.register_consumer('orders', 'reader')")
    conn.execute("select pgq_task.create_queue('mails')")
    conn.execute("select pgq_task.push('mails', '1')")
    waiting = connect(autocommit=False)
    waiting.execute("select pg_catalog.pg_advisory_xact_lock(%s, %s)", LOCK)
    connect().execute(SHADOWS)
    for command in COMMANDS:
        cli(*command.split())
        assert conn.execute("select distinct what from public.hit").fetchall() == [], command
