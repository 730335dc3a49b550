"""Roles and databases may have settings of their own: nothing of ours depends on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.conninfo import make_conninfo

import pgqpy
import pgqpy.sqlalchemy
from pgqpy import Admin, Producer, errors
from pgqpy.embedded import Server
from pgqpy.retry import FixedDelay
from pgqpy.session_settings import SETTINGS
from pgqpy.tasks import Tasks, TaskWorker
from pgqpy.testing import _scratch as databases
from pgqpy_consumers.table_loader import TableLoader
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_client import Tick
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_task_worker import run_until_empty
from tests.fixtures.fix_ticker import StartTicker, eventually

pytestmark = pytest.mark.any_pg

ODD = {
    "array_nulls": "off",
    "bytea_output": "escape",
    "DateStyle": "German",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "-10",
    "quote_all_identifiers": "on",
    "transform_null_equals": "on",
    "jit": "on",
}


@pytest.fixture
def odd(conn: Connection) -> None:
    """New sessions in this database have odd settings."""
    ((database,),) = conn.execute("select current_database()").fetchall()
    for name, value in ODD.items():
        conn.execute(f"alter database {database} set {name} = '{value}'".encode())


@pytest.fixture
def odd_conn(odd: None, dsn: str, connect: Connect) -> Connection:
    """A connection that a user opened, where nothing is pinned."""
    conn = connect(dsn)
    assert conn.execute("show array_nulls").fetchone() == ("off",)
    return conn


def test_each_session_of_ours_has_what_it_relies_on(odd: None, dsn: str) -> None:
    wanted = {name: value for name, value in SETTINGS.items() if name != "DateStyle"}
    query = b"select name, setting from pg_settings where name = any(%s)"
    with pgqpy.connect(dsn) as conn:
        assert dict(conn.execute(query, [list(wanted)])) == wanted
        assert conn.execute("show DateStyle").fetchone() == ("ISO, DMY",)
        assert conn.info.encoding == "utf-8"
        assert not conn.autocommit

    async def asynchronous() -> dict[str, str]:
        async with await pgqpy.async_connect(dsn) as conn:
            cursor = await conn.execute(query, [list(wanted)])
            return dict(await cursor.fetchall())

    assert asyncio.run(asynchronous()) == wanted


class Failing(pgqpy.Consumer):
    """Retries one event, and gives up another."""

    consumer = "c"
    retry_policy = FixedDelay(0.0)

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        if event.data == "retry" and not event.retry_count:
            raise ValueError("not yet")
        if event.data == "bury":
            event.dead_letter("no good")


@pytest.mark.usefixtures("odd")
def test_a_consumer_with_a_retry_policy_gets_on_whatever_a_role_has_set(
    dsn: str, conn: Connection, queue: str, tick: Tick
) -> None:
    consumer = Failing(dsn, queue=queue)
    consumer.register()
    Producer(queue).insert_events(conn, [("t", "retry"), ("t", "bury"), ("t", "fine")])
    tick()
    assert consumer.run_once()
    assert conn.execute("select count(*) from pgq.retry_queue").fetchone() == (1,)
    assert conn.execute("select dl_reason from pgq.dead_letter").fetchall() == [("no good",)]


def test_what_is_null_stays_null_on_a_connection_that_is_the_users(
    odd_conn: Connection, dsn: str, queue: str
) -> None:
    producer = Producer(queue)
    odd_conn.execute("select pgq.set_queue_config(%s, 'key_window', '1 day')", [queue])
    events = [("t", None, "x"), ("t", "NULL", None), ("t", None, None)]
    producer.insert_events_returning(odd_conn, events)
    later = datetime.now(UTC) + timedelta(hours=1)
    producer.insert_events_returning(odd_conn, events, at=later, key=lambda event: event[2])
    engine = sa.create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        pgqpy.sqlalchemy.Producer(queue).insert_events(connection, events)
    engine.dispose()
    stored = odd_conn.execute("select ev_data, ev_extra1 from pgq.event order by ev_id").fetchall()
    given = [(data, extra) for _, data, extra in events]
    assert stored == given + given
    waiting = odd_conn.execute(
        "select ev_data, ev_extra1 from pgq.waiting_event order by ev_id"
    ).fetchall()
    assert waiting == given


TEXT = "é Ã© 日本"


def produce(conn: Connection, queue: str, text: str) -> list[Callable[[], object]]:
    """All ways to insert an event."""
    producer = Producer(queue)
    return [
        lambda: producer.insert_event(conn, "t", text),
        lambda: producer.insert_events(conn, [("t", text)]),
        lambda: producer.insert_events_returning(conn, [("t", text)]),
    ]


def test_a_text_that_a_users_connection_cannot_send_is_refused(dsn: str, queue: str) -> None:
    with psycopg.connect(dsn, autocommit=True, client_encoding="LATIN1") as theirs:
        for call in produce(theirs, queue, TEXT):
            with pytest.raises(errors.InvalidPayload, match="client_encoding lacks characters"):
                call()
        for call in produce(theirs, queue, "é Ã©"):
            call()
        theirs.execute("set client_encoding to 'UTF8'")
        for call in produce(theirs, queue, TEXT):
            call()
        events = theirs.execute("select ev_data from pgq.event order by ev_id").fetchall()
    assert events == [("é Ã©",)] * 3 + [(TEXT,)] * 3


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_users_connection_that_would_change_texts_is_refused(
    dsn: str, queue: str, encoding: str
) -> None:
    with psycopg.connect(dsn, autocommit=True, client_encoding=encoding) as theirs:
        tasks = Tasks(theirs)
        calls: list[Callable[[], object]] = [
            lambda: tasks.create_queue("work"),
            lambda: tasks.push("work", TEXT),
            lambda: tasks.list("work"),
        ]
        if encoding == "SQL_ASCII":
            calls += produce(theirs, queue, TEXT)
        for call in calls:
            with pytest.raises(errors.InvalidParameter, match=f"client_encoding is {encoding}"):
                call()
        theirs.execute("set client_encoding to 'UTF8'")
        for call in calls:
            call()
        assert [task.payload for task in tasks.list("work")] == [TEXT]


def test_sessions_of_ours_are_in_utf8_whatever_the_user_has_set(
    dsn: str, conn: Connection, queue: str, tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    Tasks(conn).create_queue("work")
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    dsn = make_conninfo(dsn, client_encoding="LATIN1")
    consumer = Seeing(dsn)
    consumer.queue = queue
    consumer.register()
    with pgqpy.connect(dsn, autocommit=True, client_encoding="LATIN1") as ours:
        Producer(queue).insert_event(ours, "t", TEXT)
        Tasks(ours).push("work", TEXT)
    tick()
    consumer.run(until_empty=True)
    payloads: list[object] = []
    run_until_empty(TaskWorker(dsn, "work", lambda task: payloads.append(task.payload)))
    assert consumer.seen == payloads == [TEXT]


# SQL_ASCII: the server takes any bytes for text


@pytest.fixture
def ascii_dsn(server: Server) -> Iterator[str]:
    """A database with no encoding, and nothing in it."""
    name = "test_sql_ascii"
    databases.drop_database(server.dsn, name)
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute(
            f"create database {name} template template0 encoding 'SQL_ASCII' locale 'C'".encode()
        )
    yield server.dsn_of(name)
    databases.drop_database(server.dsn, name)


@pytest.fixture
def ascii_conn(ascii_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    """Migrated as a user does it."""
    monkeypatch.setenv("PGQPY_DSN", ascii_dsn)
    Cli(ascii_dsn).ok("migrate")
    with pgqpy.connect(ascii_dsn, autocommit=True) as conn:
        yield conn


def test_a_database_without_encoding_is_migrated_and_ticked(
    ascii_conn: Connection, ascii_dsn: str, start_ticker: StartTicker
) -> None:
    Admin(ascii_conn).create_queue("schön")
    start_ticker(ascii_dsn).hear("leading")
    eventually(ascii_conn, "select last_tick_id from pgq.get_queue_info('schön')")
    assert Cli(ascii_dsn).json("status")["queues"][0]["queue"] == "schön"
    assert Cli(ascii_dsn).ok("migrate")


class Seeing(pgqpy.Consumer):
    queue = "q"
    consumer = "c"

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.seen: list[str | None] = []

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        self.seen.append(event.data)


class Burying(Seeing):
    retry_policy = FixedDelay(0.0, attempts=1)


def test_an_event_gets_into_a_database_without_encoding_as_utf8_only(
    ascii_conn: Connection, ascii_dsn: str
) -> None:
    Admin(ascii_conn).create_queue("q")
    for encoding in ("LATIN1", "SQL_ASCII"):
        with psycopg.connect(ascii_dsn, autocommit=True, client_encoding=encoding) as theirs:
            for call in produce(theirs, "q", "é"):
                with pytest.raises(errors.InvalidParameter, match=f"is {encoding}"):
                    call()
    for call in produce(ascii_conn, "q", TEXT):
        call()
    assert ascii_conn.execute("select ev_data from pgq.event").fetchall() == [(TEXT,)] * 3


def test_tasks_are_changed_in_a_database_without_encoding(ascii_conn: Connection) -> None:
    tasks = Tasks(ascii_conn)
    tasks.create_queue("work")
    tasks.modify(inserts=[{"queue": "work", "payload": TEXT}])
    assert [task.payload for task in tasks.list("work", {"payload": TEXT})] == [TEXT]


@pytest.fixture
def unreadable(ascii_conn: Connection, request: pytest.FixtureRequest) -> int:
    """The id of an event that is not UTF-8, in a batch with good ones; ``param`` of them."""
    admin = Admin(ascii_conn)
    admin.create_queue("q")
    admin.ticker("q")
    admin.register_consumer("q", "c")
    Producer("q").insert_events(ascii_conn, [("t", f"before {n}") for n in range(request.param)])
    ((event_id,),) = ascii_conn.execute(
        r"select pgq.insert_event('q', 't', E'caf\xe9', E'\xff', null, null, null)"
    ).fetchall()
    Producer("q").insert_event(ascii_conn, "t", "after")
    admin.force_tick("q")
    admin.ticker("q")
    return int(event_id)


@pytest.mark.parametrize("unreadable", [1, 200], indirect=True)
def test_an_event_that_cannot_be_decoded_is_a_bad_event_like_others(
    ascii_conn: Connection, ascii_dsn: str, unreadable: int
) -> None:
    consumer = Burying(ascii_dsn)
    assert consumer.run_once()
    assert (consumer.seen[0], consumer.seen[-1]) == ("before 0", "after")
    [(event_id, reason)] = ascii_conn.execute(
        "select ev_id, dl_reason from pgq.dead_letter"
    ).fetchall()
    assert event_id == unreadable
    assert f"data of event {unreadable} is not valid UTF-8" in reason
    assert not consumer.run_once()


class Group(Seeing, pgqpy.GroupConsumer):
    partitions = 1
    retry_policy = FixedDelay(0.0, attempts=3)


def test_in_a_group_its_key_is_parked(ascii_conn: Connection, ascii_dsn: str) -> None:
    admin = Admin(ascii_conn)
    admin.create_queue("q")
    admin.ticker("q")
    consumer = Group(ascii_dsn)
    consumer.register()
    ((event_id,),) = ascii_conn.execute(
        r"select pgq.insert_event('q', 't', E'\xff', 'bad', null, null, null)"
    ).fetchall()
    Producer("q").insert_event(ascii_conn, "t", "after", extra1="good")
    admin.force_tick("q")
    admin.ticker("q")
    consumer.run(until_empty=True)
    assert consumer.seen == ["after"]
    [(attempts, error)] = ascii_conn.execute(
        "select parked_attempts, parked_error from pgq.parked_key"
    ).fetchall()
    assert attempts == 3
    assert f"event {event_id} is not valid UTF-8" in error


@pytest.mark.parametrize("unreadable", [1], indirect=True)
def test_without_a_policy_the_event_is_named(ascii_dsn: str, unreadable: int) -> None:
    with pytest.raises(errors.InvalidPayload, match=f"event {unreadable} is not valid UTF-8"):
        Seeing(ascii_dsn).run_once()


def test_a_table_is_loaded_without_rows_that_are_not_utf_8(
    ascii_conn: Connection, ascii_dsn: str
) -> None:
    admin = Admin(ascii_conn)
    admin.create_queue("q")
    admin.ticker("q")
    ascii_conn.execute("create table item (id int primary key, name text)")
    loader = TableLoader(ascii_dsn, target_dsn=ascii_dsn, queue="q")
    loader.bad_rows = "dead_letter"
    loader.register()
    for row_id, name in enumerate((r"caf\xe9", "after"), 1):
        ascii_conn.execute(
            f"""select pgq.insert_event('q', 'I:id', E'{{"id":{row_id},"name":"{name}"}}',
                    'public.item', null, null, null)""".encode()
        )
    admin.force_tick("q")
    admin.ticker("q")
    loader.run(until_empty=True)
    assert ascii_conn.execute("select * from item").fetchall() == [(2, "after")]
    ((reason,),) = ascii_conn.execute("select dl_reason from pgq.dead_letter").fetchall()
    assert "is not valid UTF-8" in reason


@pytest.mark.parametrize("unreadable", [1], indirect=True)
def test_a_consumer_that_does_not_read_it_does_not_mind(ascii_dsn: str, unreadable: int) -> None:
    class Counting(Seeing):
        def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
            self.seen.append(f"{event.type} {event.id}")
            assert str(event.id) in repr(event)

    consumer = Counting(ascii_dsn)
    assert consumer.run_once()
    assert f"t {unreadable}" in consumer.seen
    assert len(consumer.seen) == 3


def test_commands_run_in_read_committed(conn: Connection, cli: Cli) -> None:
    ((database,),) = conn.execute("select current_database()").fetchall()
    conn.execute(
        f"alter database {database} set default_transaction_isolation = serializable".encode()
    )
    cli.ok("queue", "create", "orders")
    cli.ok("group", "create", "orders", "billing", "--key", "ev_type")
    cli.ok("group", "resize", "orders", "billing", "4")
    cli.ok("task", "create", "mails")
    cli.ok("task", "drop", "mails")
