"""``run(ticker="auto")``: consumers make the ticks while no other ticker does, never two at once;
``select pgq.ticker()`` beside them does no harm."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import pgqpy
from pgqpy import errors
from pgqpy_ticker import ticking
from pgqpy_ticker.lead import LOCK
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_client import running, wait_until
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_example import Run
from tests.fixtures.fix_ticker import StartTicker, eventually

PAGE = Path(__file__).parents[3] / "docs" / "ticker.md"

LEADERS = """
    select application_name from pg_locks join pg_stat_activity using (pid)
    where locktype = 'advisory' and mode = 'ExclusiveLock' and granted
      and classid = %s and objid = %s and objsubid = 2
      and database = (select oid from pg_database where datname = current_database())
"""


class Noting(pgqpy.Consumer):
    queue = "test_queue"
    consumer = "noting"

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        conn.execute("insert into noted values (%s)", [event.data])


class CoopNoting(pgqpy.CoopConsumer):
    consumer = "coop"
    process_event = Noting.process_event


class AsyncNoting(pgqpy.AsyncConsumer):
    consumer = "async"

    async def process_event(self, conn: pgqpy.AsyncConnection, event: pgqpy.Event) -> None:
        await conn.execute("insert into noted values (%s)", [event.data])


class AsyncGroupNoting(pgqpy.AsyncGroupConsumer):
    consumer = "group"
    process_event = AsyncNoting.process_event


@pytest.fixture(autouse=True)
def noted(conn: Connection) -> None:
    conn.execute("create table if not exists noted (data text)")


def leader(conn: Connection) -> str | None:
    """The name of the session that leads."""
    return ops.value(conn, LEADERS, *LOCK)  # type: ignore[no-any-return]


def assert_no_ticker_is_left(conn: Connection) -> None:
    wait_until(lambda: "pgqpy ticker" not in [each.name for each in threading.enumerate()])
    # The server's process ends a moment after the connection.
    eventually(
        conn,
        "select count(*) = 0 from pg_stat_activity"
        " where datname = current_database() and starts_with(application_name, 'pgqpy ticker')",
    )


class Both:
    """A consumer, of asyncio or not, that is a ticker as well; for `running`."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, **options: Any) -> None:
        if isinstance(self._consumer, pgqpy.AsyncConsumer):
            asyncio.run(self._run(options))
        else:
            self._consumer.run(ticker="auto", **options)

    async def _run(self, options: Any) -> None:
        self._loop = asyncio.get_running_loop()
        await self._consumer.run(ticker="auto", **options)

    def stop(self) -> None:
        if self._loop is None:
            self._consumer.stop()
        else:
            self._loop.call_soon_threadsafe(self._consumer.stop)


@pytest.mark.one_database
@pytest.mark.parametrize("kind", [Noting, AsyncNoting, CoopNoting, AsyncGroupNoting])
def test_a_consumer_makes_the_ticks_until_it_ends(
    dsn: str, conn: Connection, kind: type[Any]
) -> None:
    queue = f"for {kind.__name__}"
    conn.execute("select pgq.create_queue(%s)", [queue])
    Both(kind(dsn, queue=queue)).run(until_empty=True)
    ops.insert(conn, queue, f"{queue}, before")
    # It looks for events after its first ticks.
    Both(kind(dsn, queue=queue)).run(until_empty=True)
    noted = "select count(*) = %s from noted where starts_with(data, %s)"
    assert ops.value(conn, noted, 1, queue)
    assert_no_ticker_is_left(conn)

    with running(Both(kind(dsn, queue=queue))):
        wait_until(lambda: leader(conn))
        ops.insert(conn, queue, f"{queue}, while it runs")
        eventually(conn, noted, 2, queue)
    assert_no_ticker_is_left(conn)


@pytest.mark.any_pg
def test_it_stands_by_while_a_daemon_leads_and_takes_over(
    dsn: str, conn: Connection, queue: str, start_ticker: StartTicker
) -> None:
    daemon = start_ticker(dsn)
    daemon.hear("leading")
    with running(Both(Noting(dsn, listen_dsn=f"{dsn}&application_name=beside"))):
        eventually(conn, "select true from pgq.subscription")
        ops.insert(conn, queue, "by the daemon")
        eventually(conn, "select count(*) = 1 from noted")
        assert leader(conn) == f"pgqpy ticker {pgqpy.__version__}"
        daemon.kill()
        ops.insert(conn, queue, "by itself")
        eventually(conn, "select count(*) = 2 from noted")
        assert leader(conn) == "beside"


CANDIDATE = """
import sys
from datetime import timedelta
import pgqpy

class Noting(pgqpy.CoopConsumer):
    queue = "test_queue"
    consumer = "noting"
    dead_after = timedelta(seconds=1)

    def process_event(self, conn, event):
        conn.execute("insert into noted values (%s)", [event.data])

Noting(sys.argv[1]).run(ticker="auto")
"""


@contextmanager
def again_and_again(connect: Connect, statement: str) -> Iterator[list[int]]:
    """Another session executes it with 1, 2, ... during the block; yields how often."""
    conn, done, end = connect(), [0], threading.Event()

    def repeat() -> None:
        while not end.wait(0.005):
            conn.execute(statement.encode(), [done[0] + 1] if "%s" in statement else None)
            done[0] += 1

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield done
    finally:
        end.set()
        thread.join()


def test_if_the_leading_process_is_killed_another_leads_and_each_event_counts_once(
    dsn: str, conn: Connection, connect: Connect, queue: str, run_python: Run
) -> None:
    """Beside a session that ticks as pg_cron would, as often as it can."""
    # Every new event makes a nominal tick due.
    conn.execute("select pgq.set_queue_config(%s, 'ticker_max_count', '1')", [queue])
    # It registers.
    CoopNoting(dsn, queue=queue, consumer="noting").run(until_empty=True)
    names = [f"candidate_{number}" for number in range(3)]
    left = {name: run_python(CANDIDATE, f"{dsn}&application_name={name}") for name in names}
    insert = "select pgq.insert_event('test_queue', 'test', %s::int::text)"
    with (
        again_and_again(connect, "select pgq.ticker()"),
        again_and_again(connect, insert) as inserted,
    ):
        for _ in range(2):
            first = wait_until(lambda: leader(conn))
            left.pop(first).kill()
            wait_until(lambda: leader(conn) in left)
            latest = inserted[0]
            eventually(conn, "select count(*) > 0 from noted where data::int > %s", latest)
    eventually(conn, "select count(*) >= %s from noted", inserted[0])
    rows = conn.execute("select data::int from noted order by 1").fetchall()
    assert [row[0] for row in rows] == [*range(1, inserted[0] + 1)]
    # A tick that sees less than the one before would give events twice.
    descending = """
        select count(*)
        from pgq.tick one join pgq.tick next on next.tick_id = one.tick_id + 1
        where txid_snapshot_xmin(next.tick_snapshot) < txid_snapshot_xmin(one.tick_snapshot)
           or txid_snapshot_xmax(next.tick_snapshot) < txid_snapshot_xmax(one.tick_snapshot)
    """
    assert ops.value(conn, descending) == 0
    (last,) = left.values()
    assert last.terminate() == 0, last.lines
    eventually(
        conn, "select count(*) = 0 from pg_stat_activity where application_name = any(%s)", names
    )


def test_a_tick_by_hand_ends_the_sleep_of_no_ticker_that_leads(
    conn: Connection, connect: Connect
) -> None:
    asleep = "select last_value = 2 from pgq.ticker_sleep_seq"
    conn.execute("select setval('pgq.ticker_sleep_seq', 2)")
    other = connect()
    other.execute("select pg_advisory_lock(%s, %s)", LOCK)
    conn.execute("select pgq.ticker()")
    assert ops.value(conn, asleep), "producers would not wake it any more"
    other.execute("select pg_advisory_unlock(%s, %s)", LOCK)
    conn.execute("select pgq.ticker()")
    assert not ops.value(conn, asleep)


def test_the_maintenance_that_the_page_schedules_rotates(conn: Connection, queue: str) -> None:
    [job] = re.findall(r"^do \$\$.*?^end \$\$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    conn.execute("update pgq.queue set queue_switch_time = now() - interval '1 day'")
    conn.execute(job)
    done = "select queue_switch_step2 is not null and queue_cur_table = 1 from pgq.queue"
    assert ops.value(conn, done)


@pytest.fixture
def app(conn: Connection) -> Iterator[str]:
    """A role with the rights of a consumer."""
    conn.execute("create role beside_app login in role pgq_reader, pgq_writer")
    yield "beside_app"
    conn.execute("drop role beside_app")


@pytest.mark.parametrize("led", [False, True])
def test_a_role_that_may_not_tick_is_told_what_to_grant_before_it_begins(
    dsn: str, conn: Connection, connect: Connect, queue: str, app: str, led: bool
) -> None:
    if led:
        connect().execute("select pg_advisory_lock(%s, %s)", LOCK)
    consumer = Noting(dsn.replace("postgres@", f"{app}@"))
    with pytest.raises(errors.PermissionDenied, match="beside_app is no member") as info:
        consumer.run(ticker="auto")
    assert info.value.hint == "grant pgq_admin to beside_app"
    assert_no_ticker_is_left(conn)
    assert ops.value(conn, "select count(*) = 0 from pgq.subscription")
    conn.execute("grant pgq_admin to beside_app")
    consumer.run(until_empty=True, ticker="auto")


def test_no_ticker_outlives_a_consumer_that_fails(dsn: str, conn: Connection, queue: str) -> None:
    for given in ("yes", "", True, False):
        with pytest.raises(errors.InvalidConsumer, match='it must be "auto", or None'):
            Noting(dsn).run(ticker=given)  # type: ignore[arg-type]
    conn.execute("drop table noted")
    Noting(dsn).register()
    ops.insert(conn, queue, "event")
    with pytest.raises(psycopg.errors.UndefinedTable):
        Noting(dsn).run(until_empty=True, ticker="auto")
    with pytest.raises(errors.QueueNotFound):
        Noting(dsn, queue="nowhere").run(ticker="auto")
    with pytest.raises(errors.ConnectionFailed):
        Noting(make_conninfo(dsn, dbname="nowhere")).run(ticker="auto")

    async def cancelled() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await AsyncNoting(dsn, queue=queue).run(ticker="auto")

    asyncio.run(cancelled())
    assert_no_ticker_is_left(conn)


@pytest.mark.any_pg
def test_the_command_run_makes_ticks_if_asked(
    cli: Cli, conn: Connection, queue: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(CANDIDATE.rpartition("\nNoting")[0])
    command = "run", f"{program}:Noting", "--until-empty"
    cli.ok(*command, "--with-ticker")
    ops.insert(conn, queue, "event")
    cli.ok(*command)
    assert ops.value(conn, "select count(*) from noted") == 0
    cli.ok(*command, "--with-ticker")
    assert ops.value(conn, "select count(*) from noted") == 1
    assert_no_ticker_is_left(conn)


def test_a_program_with_asyncio_ticks_beside_its_work(
    dsn: str, empty_dsn: str, conn: Connection, queue: str
) -> None:
    class Once(AsyncNoting):
        async def on_batch(self, stats: pgqpy.BatchStats) -> None:
            self.stop()

    async def work() -> None:
        async with ticking(dsn):
            assert leaders(conn)
            ops.insert(conn, queue, "data")
            await Once(dsn, queue=queue, start="first").run()
        # The server's process ends a moment after the connection.
        await asyncio.to_thread(wait_until, lambda: not leaders(conn))

    def leaders(conn: Connection) -> Any:
        return conn.execute(LEADERS, LOCK).fetchall()

    asyncio.run(work())

    async def fail() -> None:
        async with ticking(empty_dsn):
            pass

    with pytest.raises(errors.PgqError, match="the schema pgq is missing"):
        asyncio.run(fail())
