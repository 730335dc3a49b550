"""Every advisory lock is in one register, and one that a role without our rights takes is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import psycopg
import pytest

import examples.demo.database
import pgqpy.shards._share
import pgqpy_consumers.replicate._state
import pgqpy_consumers.spark._driver_session
import pgqpy_consumers.spark.archive
import pgqpy_ticker.foreign
import pgqpy_ticker.lead
from pgqpy.embedded import Server
from pgqpy.schema import SQL_DIR
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_ticker import StartTicker, TickerProcess

NAMED = re.compile(r"pgq\._lock_key\('([^']+)'\)")


LogIn = Callable[..., Connection]


@pytest.fixture
def log_in(server: Server, conn: Connection, connect: Connect) -> LogIn:
    """A session of a role that is a member of some others."""

    def log_in(name: str, *roles: str, **options: str) -> Connection:
        conn.execute(
            f"do $$ begin if to_regrole('{name}') is null then create role {name} login;"
            " end if; end $$".encode()
        )
        for role in roles:
            conn.execute(f"grant {role} to {name}".encode())
        return connect(server.dsn_of(conn.info.dbname, user=name), **options)

    return log_in


def single(number: int) -> tuple[int, int | None]:
    return number >> 32, number & 0xFFFFFFFF


def taken() -> dict[str, set[str]]:
    """The locks that functions take, by their keys in the register, each with its schemas."""
    found: dict[str, set[str]] = {}
    for path in SQL_DIR.rglob("*.sql"):
        for key in NAMED.findall(path.read_text()):
            found.setdefault(key, set()).add(path.relative_to(SQL_DIR).parts[0])
    return found


def test_functions_name_their_locks_by_the_register() -> None:
    """A number in the code may be another lock's. The oid of a catalog's row is not ours."""
    calls = [
        call
        for path in SQL_DIR.rglob("*.sql")
        for call in re.findall(
            r"advisory_(?:xact_)?(?:un)?lock(?:_shared)?\((.{12})", path.read_text()
        )
    ]
    assert len(calls) > 20
    assert {call for call in calls if call != "pgq._lock_ke"} == {"'pg_proc'::r"}


def test_every_lock_is_in_the_register(conn: Connection) -> None:
    rows = conn.execute(
        "select lock_key, lock_class, lock_object, lock_name from pgq._lock_keys()"
    ).fetchall()
    assert len({row[1:3] for row in rows}) == len(rows)
    assert {key for key, *_ in rows if key} == set(taken())
    for key in taken():
        conn.execute("select pgq._lock_key(%s)", [key])
    assert {row[1:3] for row in rows if row[0] is None} == {
        single(examples.demo.database.LOCK),
        single(int.from_bytes(b"pgqpy")),
        (pgqpy_consumers.replicate._state.LOCK, None),
        (pgqpy_consumers.spark.archive.LOCK, None),
        (pgqpy_consumers.spark._driver_session.LOCK, None),
        (pgqpy.shards._share.LOCK, None),
    }
    with pytest.raises(psycopg.errors.RaiseException, match="there is no lock nothing"):
        conn.execute("select pgq._lock_key('nothing')")


def test_no_two_parts_share_a_lock() -> None:
    """Sharing a number is waiting for something that has nothing to do with it."""
    assert {key: parts for key, parts in taken().items() if len(parts) > 1} == {}


def test_status_names_a_session_that_holds_a_lock_of_ours_and_has_no_role_of_ours(
    log_in: LogIn, queue: str, cli: Cli
) -> None:
    for lock, stops in {
        "1885827440, 1": "the ticker's lead",
        "1886875906, 1": "ticks",
        "1886875908, 1": "batches of consumers",
        "1886875907": "rotation",
    }.items():
        with log_in("locks_stranger", application_name="prankster") as stranger:
            stranger.execute(f"select pg_advisory_lock({lock})".encode())
            shown = cli.json("status")
            assert [each["username"] for each in shown["foreign_locks"]] == ["locks_stranger"]
            messages = [alert["message"] for alert in shown["alerts"]]
            pid = stranger.info.backend_pid
            assert any(f"session {pid} of locks_stranger (prankster)" in each for each in messages)
            assert any(stops in each for each in messages)
            # Its session ends a moment after it is closed.
            stranger.execute("select pg_advisory_unlock_all()")


HTTP = 'http = "127.0.0.1:0"'


def foreign_locks(daemon: TickerProcess) -> float:
    """The daemon's metric."""
    page = daemon.get("/metrics")[1]
    found = re.search(r"^pgqpy_ticker_foreign_locks\{.*\} (.*)$", page, re.MULTILINE)
    assert found is not None
    return float(found[1])


@pytest.mark.any_pg
def test_a_ticker_names_a_foreign_session_that_holds_its_lead(
    log_in: LogIn, start_ticker: StartTicker, dsn: str
) -> None:
    stranger = log_in("locks_stranger", application_name="prankster")
    stranger.execute("select pg_advisory_lock(1885827440, 1)")
    pid = stranger.info.backend_pid
    named = f"session {pid} of locks_stranger (prankster), which has no role of pgq, holds up"
    daemon = start_ticker(dsn, top=HTTP, standby_period=0.05)
    line = daemon.hear("a foreign lock", holder_pid=pid)
    assert line["message"] == f"a foreign lock: {named} the ticker's lead"
    assert line["hint"] == f"select pg_terminate_backend({pid})"
    daemon.hear("ready")
    status, body = daemon.get("/healthz")
    [report] = json.loads(body)["databases"].values()
    assert (status, report["state"]) == (503, "standby")
    [failing] = report["failing"]
    assert failing["operation"] == "lead"
    assert named in failing["error"]
    assert report["foreign_locks"] == [f"{named} the ticker's lead"]
    assert foreign_locks(daemon) == 1

    stranger.close()
    daemon.hear("leading")
    daemon.hear("a foreign lock is gone")
    assert len(daemon.said("a foreign lock", level="warning")) == 1
    status, body = daemon.get("/healthz")
    assert (status, foreign_locks(daemon)) == (200, 0)
    assert "prankster" not in body


@pytest.mark.any_pg
def test_a_prepared_transaction_that_holds_the_lead_is_named_with_its_remedy(
    conn: Connection, log_in: LogIn, start_ticker: StartTicker, dsn: str
) -> None:
    stranger = log_in("locks_stranger")
    stranger.execute("begin; select pg_advisory_xact_lock(1885827440, 1), txid_current()")
    stranger.execute("prepare transaction 'it''s held'")
    try:
        daemon = start_ticker(dsn, top=HTTP, standby_period=0.05)
        assert daemon.hear("a foreign lock")["hint"] == "rollback prepared 'it''s held'"
        assert daemon.get("/healthz")[0] == 503
    finally:
        conn.execute("rollback prepared 'it''s held'")
    daemon.hear("leading")


@pytest.mark.any_pg
def test_a_leader_names_a_foreign_session_that_holds_up_ticks_or_maintenance(
    conn: Connection, log_in: LogIn, start_ticker: StartTicker, dsn: str, queue: str
) -> None:
    """A foreign lock alone is not unhealthy; an operation that fails by it is."""
    daemon = start_ticker(dsn, top=HTTP, observe_period=0.05)
    daemon.hear("leading")
    stranger = log_in("locks_stranger", application_name="prankster")
    # many locks of one kind, one of another; and none that anything waits for
    stranger.execute("select pg_advisory_lock(1886875906, -n) from generate_series(1, 200) n")
    stranger.execute("select pg_advisory_lock(1886875908, -1)")
    daemon.hear("a foreign lock", times=2)
    status, body = daemon.get("/healthz")
    [report] = json.loads(body)["databases"].values()
    assert (status, report["state"], len(report["foreign_locks"])) == (200, "leading", 2)
    assert foreign_locks(daemon) == 2
    told = " ".join(str(line["message"]) for line in daemon.said("a foreign lock"))
    assert "holds up ticks" in told
    assert "holds up batches of consumers" in told
    stranger.close()
    daemon.hear("a foreign lock is gone", times=2)
    assert len(daemon.said("a foreign lock:")) == 2


def test_the_ticker_knows_its_lead_by_the_name_in_the_register(conn: Connection) -> None:
    rows = conn.execute(
        "select lock_name from pgq._lock_keys() where lock_class = %s and lock_object = %s",
        pgqpy_ticker.lead.LOCK,
    ).fetchall()
    assert rows == [(pgqpy_ticker.foreign.LEAD,)]


def test_prepared_transactions_are_named_as_well(conn: Connection, log_in: LogIn) -> None:
    stranger = log_in("locks_stranger")
    stranger.execute("begin; select pg_advisory_xact_lock(1886875906, 1), txid_current()")
    stranger.execute("prepare transaction 'held'")
    try:
        found = conn.execute(
            "select pid, holder, role_name from pgq.get_foreign_locks()"
        ).fetchall()
        assert found == [(None, "held", "locks_stranger")]
    finally:
        conn.execute("rollback prepared 'held'")


def test_our_own_roles_are_not_foreign(conn: Connection, log_in: LogIn, queue: str) -> None:
    ops.register(conn, queue, "c")
    for role in ("pgq_reader", "pgq_writer", "pgq_admin"):
        session = log_in(f"locks_{role}", role)
        session.execute("begin; select pg_advisory_xact_lock_shared(1886875906, 1)")
    assert conn.execute("select from pgq.get_foreign_locks()").fetchall() == []
