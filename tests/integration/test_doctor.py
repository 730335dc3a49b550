"""Each check of `pgqpy doctor` names a fault that was really made, and not when it is over."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import psycopg
import pytest

import pgqpy
from pgqpy.cli._doctor import EXIT_CODES
from pgqpy.doctor import CHECKS, Finding, Verdict, _look, _storage, examine
from pgqpy.doctor._look import Look
from pgqpy.doctor._samples import Samples, _Sample
from pgqpy.embedded import Server
from pgqpy.schema import migrate
from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_client import PATIENCE, wait_until
from tests.fixtures.fix_db import Connect, Connection, with_snapshot
from tests.fixtures.fix_pool import Pool
from tests.fixtures.fix_standby import standby_of
from tests.fixtures.fix_ticker import StartTicker, eventually

MINUTE = timedelta(minutes=1)
NOW = timedelta()


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks take as long as a busy machine needs, unless the test is about that."""
    if request.function is not test_a_server_that_does_not_answer_does_not_hang_it:
        for limit in ("ON_PAGE", "BUDGET", "STATEMENT"):
            monkeypatch.setattr(_look, limit, PATIENCE)


def findings(
    conn: Connection,
    name: str,
    patience: timedelta = MINUTE,
    samples: Samples | None = None,
) -> list[Finding]:
    """What one check finds."""
    [check] = [each for each in CHECKS if each.name == name]
    found = check.findings(Look(conn, patience, samples))
    assert {each.check for each in found} == {name}
    assert len([each for each in found if each.verdict is Verdict.OK]) in (0, len(found))
    assert all(each.remedy for each in found if each.verdict.rank > Verdict.NOTE.rank)
    return found


@dataclass(frozen=True)
class Place:
    """Where faults are made: a database that they share, and a queue of one of them."""

    conn: Connection
    connect: Connect
    server: Server
    queue: str

    def log_in(self, *roles: str) -> Connection:
        """A session of a role that has nothing but these."""
        name = "_".join(["doctor", *roles])
        self.conn.execute(
            f"do $$ begin if to_regrole('{name}') is null then create role {name} login;"
            " end if; end $$".encode()
        )
        for role in roles:
            self.conn.execute(f"grant {role} to {name}".encode())
        return self.connect(self.server.dsn_of(self.conn.info.dbname, user=name))


Fault = Callable[[Place], AbstractContextManager[str]]
FAULTS: list[tuple[str, Verdict, Fault]] = []


def fault(name: str, verdict: Verdict) -> Callable[[Callable[[Place], Iterator[str]]], Fault]:
    """Declare a way to make a fault; it yields words that name it."""

    def declare(make: Callable[[Place], Iterator[str]]) -> Fault:
        made = contextmanager(make)
        FAULTS.append((name, verdict, made))
        return made

    return declare


@fault("schema", Verdict.WARNING)
def newer_schema(place: Place) -> Iterator[str]:
    [(before,)] = place.conn.execute("select version_num from pgq.alembic_version")
    place.conn.execute("update pgq.alembic_version set version_num = '9999'")
    yield "revision 9999"
    place.conn.execute("update pgq.alembic_version set version_num = %s", [before])


@fault("rights", Verdict.WARNING)
def right_of_all(place: Place) -> Iterator[str]:
    place.conn.execute("grant execute on function pgq.create_queue(text) to public")
    yield "public may execute pgq.create_queue(text)"
    place.conn.execute("revoke execute on function pgq.create_queue(text) from public")


@fault("rights", Verdict.WARNING)
def right_that_is_missing(place: Place) -> Iterator[str]:
    place.conn.execute("revoke execute on function pgq.ticker() from pgq_admin")
    yield "pgq_admin may not execute pgq.ticker()"
    place.conn.execute("grant execute on function pgq.ticker() to pgq_admin")


@fault("rights", Verdict.WARNING)
def right_to_create(place: Place) -> Iterator[str]:
    place.conn.execute("grant create on schema pgq_coop to pgq_writer")
    yield "pgq_writer may create objects in schema pgq_coop"
    place.conn.execute("revoke create on schema pgq_coop from pgq_writer")


@fault("ticker", Verdict.WARNING)
def old_ticker(place: Place) -> Iterator[str]:
    with place.connect(application_name="pgqpy ticker 0.0.1") as session:
        session.execute("select pg_advisory_lock(1885827440, 1)")
        yield "version 0.0.1"


@fault("ticker", Verdict.PROBLEM)
def taken_lead(place: Place) -> Iterator[str]:
    with place.log_in() as session:
        session.execute("select pg_advisory_lock(1885827440, 1)")
        yield "has taken the lead's lock"


@fault("ticks", Verdict.PROBLEM)
def late_ticks(place: Place) -> Iterator[str]:
    ops.tick(place.conn, place.queue)
    place.conn.execute("update pgq.tick_0 set tick_time = tick_time - interval '1 hour'")
    yield "no ticker is running (last tick 1 h ago)"
    ops.tick(place.conn, place.queue)


@fault("ticks", Verdict.NOTE)
def paused_ticks(place: Place) -> Iterator[str]:
    place.conn.execute("select pgq.set_queue_config(%s, 'ticker_paused', 'true')", [place.queue])
    yield "ticks are paused"
    place.conn.execute("select pgq.set_queue_config(%s, 'ticker_paused', 'false')", [place.queue])


@fault("maintenance", Verdict.PROBLEM)
def failing_maintenance(place: Place) -> Iterator[str]:
    place.conn.execute("select pgq.note_failures('{vacuum}', '{t}', '{no space}')")
    yield "the ticker has failed in vacuum of t"
    place.conn.execute("select pgq.note_failures('{}', '{}', '{}')")


@fault("settings", Verdict.NOTE)
def timeout_of_a_role(place: Place) -> Iterator[str]:
    place.log_in("pgq_reader").close()
    place.conn.execute("alter role doctor_pgq_reader set statement_timeout = '5s'")
    yield "statement_timeout of role doctor_pgq_reader is 5s"
    place.conn.execute("alter role doctor_pgq_reader reset statement_timeout")


@fault("old transactions", Verdict.WARNING)
def open_transaction(place: Place) -> Iterator[str]:
    with place.connect(autocommit=False, application_name="shop") as writer:
        writer.execute("select txid_current()")
        yield f"session {writer.info.backend_pid} of postgres (shop, idle in transaction)"
        writer.rollback()


@fault("old transactions", Verdict.WARNING)
def prepared_transaction(place: Place) -> Iterator[str]:
    with place.conn.transaction():
        place.conn.execute("select txid_current()")
        place.conn.execute("prepare transaction 'it''s old'")
    yield "prepared transaction it's old of postgres"
    place.conn.execute("rollback prepared 'it''s old'")


@fault("foreign locks", Verdict.WARNING)
def foreign_lock(place: Place) -> Iterator[str]:
    with place.log_in() as stranger:
        stranger.execute("select pg_advisory_lock(1886875906, 1)")
        yield f"session {stranger.info.backend_pid} of doctor"


@fault("horizon", Verdict.WARNING)
def old_snapshot(place: Place) -> Iterator[str]:
    with with_snapshot(place.connect) as reader:
        yield f"session {reader.info.backend_pid} of postgres"
        reader.rollback()


@fault("replication slots", Verdict.WARNING)
def unused_slot(place: Place) -> Iterator[str]:
    place.conn.execute("select pg_create_physical_replication_slot('doctor', true)")
    yield "replication slot doctor is not in use, and keeps"
    place.conn.execute("select pg_drop_replication_slot('doctor')")


@fault("rotation", Verdict.WARNING)
def held_rotation(place: Place) -> Iterator[str]:
    with registered(place, "slow"):
        ops.rotate_whenever_asked(place.conn, place.queue)
        ops.rotate(place.conn, place.queue)
        ops.tick(place.conn, place.queue)
        yield "and waits for slow"
        place.conn.execute("update pgq.queue set queue_rotation_period = '1 h'")


@fault("failing consumers", Verdict.PROBLEM)
def failing_consumer(place: Place) -> Iterator[str]:
    with registered(place, "fails"):
        batch = ops.open_batch(place.conn, place.queue, "fails", "bad")
        place.conn.execute("select pgq.note_failure(%s, 'ValueError: bad')", [batch])
        yield "ValueError: bad"


@fault("stuck consumers", Verdict.PROBLEM)
def stuck_consumer(place: Place) -> Iterator[str]:
    with registered(place, "stuck"):
        batch = ops.open_batch(place.conn, place.queue, "stuck", "d")
        make_old(place.conn, "tick_time", "tick_0")
        make_old(place.conn, "pos_active", "position_0")
        ops.tick(place.conn, place.queue)
        yield f"stuck is stuck in batch {batch}, last seen 1 h ago"


@fault("backlogs", Verdict.WARNING)
def lagging_consumer(place: Place) -> Iterator[str]:
    with registered(place, "slow"):
        ops.tick(place.conn, place.queue)
        make_old(place.conn, "tick_time", "tick_0")
        ops.open_batch(place.conn, place.queue, "slow", "d")
        yield "slow is 1 h and "


@fault("paused consumers", Verdict.NOTE)
def paused_consumer(place: Place) -> Iterator[str]:
    with registered(place, "waits"):
        place.conn.execute("select pgq.pause_consumer(%s, 'waits')", [place.queue])
        yield "waits is paused, last seen"


@fault("parked keys", Verdict.WARNING)
def given_up_key(place: Place) -> Iterator[str]:
    class Fails(pgqpy.GroupConsumer):
        consumer = "group"
        partitions = 1
        retry_policy = pgqpy.FixedDelay(0, attempts=1)

        def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
            raise ValueError("bad")

    dsn = place.server.dsn_of(place.conn.info.dbname)
    Fails(dsn, queue=place.queue).register()
    pgqpy.Producer(place.queue).insert_events(place.conn, [("t", "d", "key")])
    ops.tick(place.conn, place.queue)
    Fails(dsn, queue=place.queue).run(until_empty=True)
    yield "1 key of group group failed too often"
    place.conn.execute("select pgq.drop_group(%s, 'group', true)", [place.queue])


@fault("dead letters", Verdict.NOTE)
def dead_letter(place: Place) -> Iterator[str]:
    with registered(place, "gives_up"):
        batch = ops.open_batch(place.conn, place.queue, "gives_up", "d")
        place.conn.execute(
            "select pgq.event_dead_letter(%(batch)s, ev_id, 'bad')"
            " from pgq.get_batch_events(%(batch)s)",
            {"batch": batch},
        )
        yield "1 event given up, most by gives_up"
        place.conn.execute("delete from pgq.dead_letter")


@fault("poison tasks", Verdict.WARNING)
def poison_task(place: Place) -> Iterator[str]:
    place.conn.execute("select pgq_task.create_queue('work')")
    number = task_ops.push(place.conn, "work")
    for _ in range(3):
        assert task_ops.claim(place.conn, "work", lease="1 ms")
        place.conn.execute("select pg_sleep(0.002)")
    yield f"the worker of task {number} was lost"
    task_ops.finish(place.conn, *task_ops.claim(place.conn, "work"))


@fault("dead rows", Verdict.WARNING)
def dead_rows(place: Place) -> Iterator[str]:
    place.conn.execute("insert into pgq.late_write select 0, 0, n from generate_series(1, 10001) n")
    place.conn.execute("delete from pgq.late_write")
    wait_until(lambda: findings(place.conn, "dead rows")[0].verdict is not Verdict.OK)
    yield "pgq.late_write has 10,001 dead rows"
    place.conn.execute("vacuum pgq.late_write")
    wait_until(lambda: findings(place.conn, "dead rows")[0].verdict is Verdict.OK)


@fault("sequences", Verdict.PROBLEM)
def used_sequence(place: Place) -> Iterator[str]:
    before = ops.value(place.conn, "select nextval('pgq.batch_id_seq')")
    place.conn.execute("select setval('pgq.batch_id_seq', 9100000000000000000)")
    yield "pgq.batch_id_seq has used 98.7% of its"
    place.conn.execute("select setval('pgq.batch_id_seq', %s)", [before])


@fault("staging tables", Verdict.WARNING)
def left_staging(place: Place) -> Iterator[str]:
    table = ops.value(place.conn, "select pgq.create_staging('job')")
    place.conn.execute(f"alter table {table} rename to job_1600000000_1".encode())
    yield "staging table job_1600000000_1"
    assert ops.value(place.conn, "select pgq.maint_staging()") == 1


@contextmanager
def registered(place: Place, consumer: str) -> Iterator[None]:
    ops.register(place.conn, place.queue, consumer)
    yield
    place.conn.execute("select pgq.unregister_consumer(%s, %s)", [place.queue, consumer])


def make_old(conn: Connection, column: str, table: str) -> None:
    """As if an hour had passed."""
    conn.execute(f"update pgq.{table} set {column} = {column} - interval '1 hour'".encode())


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("name", "verdict", "make"), FAULTS, ids=[make.__name__ for *_, make in FAULTS]
)
def test_a_fault_is_named_while_it_lasts(
    conn: Connection,
    connect: Connect,
    server: Server,
    name: str,
    verdict: Verdict,
    make: Fault,
) -> None:
    queue = f"of {make.__name__}"
    conn.execute("select pgq.create_queue(%s)", [queue])
    patience = NOW if name in ("old transactions", "horizon") else MINUTE

    def named(words: str) -> list[Verdict]:
        found = findings(conn, name, patience)
        return [each.verdict for each in found if words in each.message]

    with make(Place(conn, connect, server, queue)) as words:
        assert named(words) == [verdict], findings(conn, name, patience)
    wait_until(lambda: not named(words))
    conn.execute("select pgq.drop_queue(%s, true)", [queue])


def test_each_check_has_a_fault() -> None:
    elsewhere = {"pooler", "notifications", "clock", "disk", "temporary tables"}
    assert {name for name, *_ in FAULTS} | elsewhere == {each.name for each in CHECKS}


# --- faults that take more than this database


@pytest.mark.any_pg
def test_a_ticker_that_leads_is_named_and_missed_at_once_when_it_is_killed(
    dsn: str, conn: Connection, queue: str, start_ticker: StartTicker
) -> None:
    daemon = start_ticker(dsn)
    daemon.hear("leading")
    eventually(conn, "select last_tick_id > 1 from pgq.get_queue_info()")
    [leads] = findings(conn, "ticker")
    assert leads.verdict is Verdict.OK
    assert pgqpy.__version__ in leads.message
    daemon.kill()
    wait_until(lambda: findings(conn, "ticker")[0].verdict is not Verdict.OK)
    [missed] = findings(conn, "ticker")
    assert missed.message.startswith("no pgqpy ticker leads; the newest tick was made")


@pytest.mark.any_pg
def test_a_pooler_is_found_and_its_mode(pool: Pool, connect: Connect, conn: Connection) -> None:
    def is_told(conn: Connection, mode: str, expected: dict[str, tuple[Verdict, bool]]) -> bool:
        found = [each for each in examine(conn).findings if each.check in expected]
        return expected == {
            each.check: (each.verdict, f"in {mode} mode" in each.message) for each in found
        }

    assert findings(conn, "pooler")[0].message.startswith("none")
    for mode, size, verdict in (
        ("session", 5, Verdict.OK),
        ("transaction", 5, Verdict.NOTE),
        ("transaction", 1, Verdict.NOTE),
    ):
        behind = connect(pool(mode, size=size))
        expected = {"pooler": (verdict, True), "notifications": (verdict, False)}
        # A pooler has two seconds to answer, and on a busy machine may take longer.
        wait_until(partial(is_told, behind, mode, expected))
        behind.close()


def test_notifications_are_tried(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    [came] = findings(conn, "notifications")
    assert came.message.startswith("a notification came back in")
    assert conn.execute("select pg_listening_channels()").fetchall() == []
    monkeypatch.setattr(type(conn), "notifies", lambda *_, **__: iter(()))
    [lost] = findings(conn, "notifications")
    assert lost.verdict is Verdict.PROBLEM


def test_a_clock_that_differs_and_a_tick_in_the_future_are_named(
    conn: Connection, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert findings(conn, "clock")[0].verdict is Verdict.OK
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 90)
    [ahead] = findings(conn, "clock")
    assert re.search(r"clock is 1 min( \d+ s)? ahead of", ahead.message), ahead
    monkeypatch.setattr(time, "time", real)
    ops.tick(conn, queue)
    conn.execute("update pgq.tick_0 set tick_time = tick_time + interval '1 day'")
    [future] = findings(conn, "clock")
    assert "in the future" in future.message


def test_settings_of_the_server_are_named(dsn: str, connect: Connect) -> None:
    conn = connect(dsn, options="-c track_counts=off -c statement_timeout=70000")
    found = {each.message.split(":")[0]: each.verdict for each in findings(conn, "settings")}
    assert found["track_counts is off"] is Verdict.WARNING
    assert found["statement_timeout is 70000 ms"] is Verdict.NOTE


def test_the_server_is_not_blamed_for_checks_that_had_no_time(conn: Connection) -> None:
    [check] = [each for each in CHECKS if each.name == "disk"]
    [late] = check.findings(Look(conn, MINUTE, _began=-1e9))
    assert late.verdict is Verdict.WARNING
    assert late.message == "not looked at: the other checks took all of the time"


def test_the_role_that_may_see_hidden_sessions_is_named(
    conn: Connection, connect: Connect, server: Server
) -> None:
    conn.execute('create role "doctor Ann" login')
    with connect() as hidden, connect(server.dsn_of(conn.info.dbname, user="doctor Ann")) as ann:
        hidden.execute("begin isolation level repeatable read; select 1")
        [note] = [each for each in findings(ann, "horizon") if each.remedy]
        conn.execute(str(note.remedy).encode())
        assert [each.verdict for each in findings(ann, "horizon")] == [Verdict.OK]
    conn.execute('drop role "doctor Ann"')


def test_the_stuck_consumer_with_the_most_events_comes_first(conn: Connection) -> None:
    for name, events in {"a": 0, "b": 2, "c": 1}.items():
        pgqpy.Admin(conn).create_queue(name)
        pgqpy.Admin(conn).register_consumer(name, "stuck")
        for _ in range(events):
            pgqpy.Producer(name).insert_event(conn, "t", "d")
        ops.tick(conn, name)
    named = findings(conn, "stuck consumers", NOW)
    assert [each.message[0] for each in named] == ["b", "c", "a"]


def test_what_it_prints_mends_what_it_names(conn: Connection, cli: Cli) -> None:
    def remedy(name: str, words: str) -> str:
        [named] = [each for each in findings(conn, name) if words in each.message]
        return str(named.remedy)

    role, queue = "doctor_slow role", "my queue; echo 'x'"
    conn.execute(f'create role "{role}" in role pgq_reader'.encode())
    database = conn.info.dbname
    conn.execute(f'alter role "{role}" in database "{database}" set statement_timeout = 7'.encode())
    conn.execute(remedy("settings", role).encode())
    assert not any(role in each.message for each in findings(conn, "settings"))
    conn.execute(f'drop role "{role}"'.encode())

    pgqpy.Admin(conn).create_queue(queue)
    pgqpy.Admin(conn).register_consumer(queue, "c")
    batch = ops.open_batch(conn, queue, "c", "d")
    [(event,)] = conn.execute("select ev_id from pgq.get_batch_events(%s)", [batch])
    conn.execute("select pgq.event_dead_letter(%s, %s, 'bad')", [batch, event])
    listing = remedy("dead letters", queue).removesuffix("; then replay or purge")
    assert "bad" in cli.ok(*shlex.split(listing)[1:])

    conn.execute("select pgq_task.create_queue('work')")
    number = task_ops.push(conn, "work")
    for _ in range(3):
        assert task_ops.claim(conn, "work", lease="1 ms")
        conn.execute("select pg_sleep(0.002)")
    cli.ok(*shlex.split(remedy("poison tasks", f"task {number} ").rpartition(": pgqpy ")[2]))
    assert [each.verdict for each in findings(conn, "poison tasks")] == [Verdict.OK]


@pytest.mark.any_pg
@pytest.mark.slow
def test_a_standby_that_holds_back_the_horizon_is_named(
    mortal: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_storage, "OLD_TRANSACTIONS", 0)
    with standby_of(mortal) as standby:
        conn = connect(mortal.dsn)
        on_standby = connect(standby.dsn)
        on_standby.execute("alter system set hot_standby_feedback = on")
        on_standby.execute("alter system set wal_receiver_status_interval = '1s'")
        on_standby.execute("select pg_reload_conf()")
        reader = with_snapshot(lambda **options: connect(standby.dsn, **options))
        eventually(conn, "select bool_or(backend_xmin is not null) from pg_stat_replication")
        conn.execute("select txid_current()")
        [named] = findings(conn, "horizon")
        assert "by hot_standby_feedback" in named.message
        reader.close()
        on_standby.close()
        conn.close()


@pytest.mark.any_pg
@pytest.mark.slow
def test_temporary_tables_of_a_crashed_session_are_named(mortal: Server, connect: Connect) -> None:
    others = [connect(mortal.dsn) for _ in range(3)]
    others[-1].execute("create temp table left_over ()")
    os.kill(others[-1].info.backend_pid, signal.SIGKILL)

    def ended(conn: Connection) -> bool:
        try:
            conn.execute("select 1")
        except psycopg.OperationalError:
            return True
        return False

    def again() -> Connection | None:
        try:
            return connect(mortal.dsn)
        except psycopg.OperationalError:
            return None

    # The server ends all sessions, and starts again.
    wait_until(lambda: all(map(ended, others)))
    conn = wait_until(again)
    [named] = findings(conn, "temporary tables")
    if mortal.version < 16:
        assert "autovacuum removes those" in named.message
        return
    assert "left_over" in named.message
    assert named.remedy is not None
    conn.execute(named.remedy.partition(",")[0].encode())
    assert findings(conn, "temporary tables")[0].verdict is Verdict.OK
    conn.close()


# --- forecasts


@pytest.mark.parametrize("looks_twice", [True, False])
def test_it_forecasts_when_a_consumer_has_caught_up(
    conn: Connection, queue: str, looks_twice: bool
) -> None:
    """From two looks, or from the last minutes."""
    ops.register(conn, queue, "c")
    ops.tick(conn, queue)
    make_old(conn, "tick_time", "tick_0")
    for _ in range(3):
        ops.insert_ticked(conn, queue, *"abc")
    before = _Sample.take(conn)

    def forecast() -> str:
        samples = Samples(before, _Sample.take(conn)) if looks_twice else None
        [found] = findings(conn, "backlogs", samples=samples)
        return found.message.rpartition("; ")[2]

    def active(ago: int) -> None:
        conn.execute(
            "update pgq.position_0 set pos_active = clock_timestamp() - make_interval(secs => %s)",
            [ago],
        )

    if not looks_twice:
        active(-60)
        assert "--wait" in forecast(), "it was registered just now"
    active(30)
    assert forecast().startswith("finished no batch in")
    for _ in range(2):
        conn.execute("select pgq.finish_batch(pgq.next_batch(%s, 'c'))", [queue])
    make_old(conn, "tick_time", "tick_0")
    ops.insert_ticked(conn, queue)
    assert forecast().startswith("caught up in")
    ops.insert_ticked(conn, queue, *"abcdefghi" * 30)
    assert forecast() == "at this rate it never catches up"
    if not looks_twice:
        with conn.transaction(force_rollback=True):
            conn.execute("set local role pg_monitor")
            assert "--wait" in forecast(), "not a member of pgq_reader"


def test_it_forecasts_when_the_disk_is_full(
    conn: Connection, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 10**12
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free, total=10**12))
    assert findings(conn, "disk")[0].message == "1.0 TB of 1.0 TB are free"
    before = _Sample.take(conn)
    conn.execute(
        "insert into pgq_queue.test_queue (ev_type, ev_data)"
        " select 't', repeat(md5(n::text), 100) from generate_series(1, 1000) n"
    )
    samples = Samples(before, _Sample.take(conn))
    free = 10**6
    [full] = findings(conn, "disk", samples=samples)
    assert full.verdict is Verdict.PROBLEM
    assert full.message.startswith("disk full in ")
    # Without samples it is the rate of ticks, if something holds up rotation.
    free = 10**11
    ops.register(conn, queue, "slow")
    ops.tick(conn, queue)
    ops.rotate_whenever_asked(conn, queue)
    ops.rotate(conn, queue)
    conn.execute("update pgq.tick_0 set tick_time = now() - interval '5 s' where tick_id = 1")
    ops.insert_ticked(conn, queue, *"abc")
    wait_until(lambda: "cannot be rotated" in findings(conn, "disk")[0].message)
    monkeypatch.setattr(_storage, "_disk", lambda _: (None, None))
    [unknown] = findings(conn, "disk")
    assert unknown.verdict is Verdict.WARNING
    assert "how much is free is not known" in unknown.message


# --- the whole


def test_a_new_database_has_no_faults(dsn: str, conn: Connection, queue: str) -> None:
    migrate(dsn)
    conn.execute("create table t (id int primary key)")
    conn.execute("select pgq.capture_table('t', %s), pgq.create_staging('job')", [queue])
    conn.execute("select pgq_task.create_queue('work')")
    report = examine(conn)
    wrong = {each.check for each in report.findings if each.verdict.rank > Verdict.NOTE.rank}
    # The server of the tests lets transactions be prepared, and no ticker runs.
    assert wrong == {"ticker"}, report.findings
    assert {each.check for each in report.findings} == {each.name for each in CHECKS}
    conn.execute("alter function pgq.version() cost 2")
    assert "changed since" in findings(conn, "schema")[0].message


def test_a_role_without_rights_is_told_what_it_may_not_look_at(
    conn: Connection, connect: Connect, server: Server, queue: str
) -> None:
    writer = connect(autocommit=False)
    writer.execute("select txid_current()")
    report = examine(Place(conn, connect, server, queue).log_in())
    unseen = {each.check: each for each in report.findings if "may not look" in each.message}
    assert {"failing consumers", "maintenance", "poison tasks", "sequences"} <= set(unseen)
    [horizon] = [each for each in report.findings if each.check == "horizon"]
    assert "1 session of other roles" in horizon.message
    assert unseen["maintenance"].remedy == "grant pgq_reader to doctor"
    assert {each.verdict for each in unseen.values()} == {Verdict.NOTE}
    assert [each for each in report.findings if "could not look" in each.message] == []


def test_stuck_groups_are_told_once_to_a_role_that_may_not_see_them(
    conn: Connection, connect: Connect, server: Server, queue: str
) -> None:
    pgqpy.GroupAdmin(conn).create_group(queue, "copies", key="ev_extra1", partitions=3)
    ops.register(conn, queue, "c")
    make_old(conn, "tick_time", "tick_0")
    make_old(conn, "pos_active", "position_0")
    ops.insert_ticked(conn, queue, "d")
    stranger = Place(conn, connect, server, queue).log_in()
    single, grouped = findings(stranger, "stuck consumers")
    assert single.message.startswith(f"{queue}: c is stuck")
    told = f"3 partitions stuck in groups that your role may not see: copies of {queue}"
    assert grouped.message == told
    assert "as a member of pgq_reader" in str(grouped.remedy)
    seen = [each.message for each in findings(conn, "stuck consumers")]
    assert any("3 of 3 partitions of group copies are stuck" in each for each in seen)


def test_a_server_that_does_not_answer_does_not_hang_it(conn: Connection, connect: Connect) -> None:
    with connect(autocommit=False) as blocker:
        blocker.execute("lock table pgq.ticker_failure")
        report = examine(conn)
        blocker.rollback()
    assert report.seconds < PATIENCE
    late = [each for each in report.findings if "did not answer" in each.message]
    assert "ticks" in {each.check for each in late}
    assert {each.verdict for each in late} == {Verdict.WARNING}


def test_it_writes_nothing(conn: Connection) -> None:
    look = Look(conn, MINUTE)
    with look.transaction(), pytest.raises(Exception, match="read-only transaction"):
        conn.execute("create table t ()")


def test_a_database_without_the_schema(empty_cli: Cli) -> None:
    result = empty_cli("doctor", "--json")
    assert result.exit_code == 4
    assert '"remedy": "pgqpy migrate"' in result.stdout


def test_the_exit_code_is_that_of_the_worst_and_the_output_fits_80_columns(
    cli: Cli, conn: Connection, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops.tick(conn, queue)
    monkeypatch.setenv("COLUMNS", "80")
    warned = cli("doctor")
    assert warned.exit_code == EXIT_CODES[Verdict.WARNING] == 3
    assert "→ keep `pgqpy ticker` running" in warned.stdout
    for number in range(7):
        conn.execute("select pgq.create_queue(%s)", [f"q{number}"])
    make_old(conn, "tick_time", "tick_0")
    assert "and 3 more: pgqpy doctor --json" in cli("doctor").stdout
    found = cli("doctor", "--json")
    assert found.exit_code == EXIT_CODES[Verdict.PROBLEM] == 4
    cli.fails("doctor", "--dsn", "host=/nowhere")


def test_status_says_what_the_doctor_says(cli: Cli, conn: Connection, queue: str) -> None:
    ops.register(conn, queue, "slow")
    ops.tick(conn, queue)
    make_old(conn, "tick_time", "tick_0")
    make_old(conn, "pos_active", "position_0")
    alerts = cli.json("status")["alerts"]
    assert alerts
    found = [(each.check, each.message.partition(" ago")[0]) for each in examine(conn).findings]
    assert {(each["check"], each["message"].partition(" ago")[0]) for each in alerts} <= set(found)
