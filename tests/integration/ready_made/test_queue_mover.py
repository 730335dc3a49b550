"""queue_mover: a queue's events in another database's queue, once, as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pgqpy
from pgqpy import Event, NewEvent, Producer, errors
from pgqpy_consumers.queue_mover import QueueMover
from pgqpy_consumers.settings import build
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_client import Tick
from tests.fixtures.fix_db import Connection

FIELDS = "ev_time, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
EVENTS: list[tuple[str | None, ...]] = [
    ("plain", "data"),
    ("all", "of", "the", "fields", "are", "there"),
    (None, None),
    ("", "", "", "", "", ""),
    ("\N{SNOWMAN}", "tab\t, line\n, \\., \\N, \"'", None, "x" * 100_000),
]


@pytest.fixture
def target_queue(target: Connection) -> str:
    target.execute("select pgq.create_queue('copied')")
    target.execute("select pgq.register_consumer('copied', 'reader')")
    return "copied"


def make(dsn: str, target_dsn: str, queue: str, **settings: Any) -> QueueMover:
    config = {"dsn": dsn, "queue": queue, "target_dsn": target_dsn, "target_queue": "copied"}
    mover = QueueMover.from_config(build(QueueMover.Config, config | settings))
    mover.run(until_empty=True)
    return mover


def written(conn: Connection) -> list[tuple[Any, ...]]:
    return conn.execute(f"select {FIELDS} from pgq.event order by ev_id".encode()).fetchall()


@pytest.mark.smoke
@pytest.mark.parametrize("copies", [1, 60], ids=["small batch", "large batch"])
@pytest.mark.parametrize("looks", [False, True], ids=["copied", "converted"])
def test_events_keep_all_their_fields_their_times_and_their_order(
    dsn: str,
    target_dsn: str,
    queue: str,
    conn: Connection,
    target: Connection,
    target_queue: str,
    tick: Tick,
    copies: int,
    looks: bool,
) -> None:
    class Converts(QueueMover):
        def convert(self, event: Event) -> NewEvent | None:
            return super().convert(event)

    kind = Converts if looks else QueueMover
    mover = kind(dsn, target_dsn=target_dsn, queue=queue, consumer="mover")
    mover.target_queue = target_queue
    mover.run(until_empty=True)
    for _ in range(copies):
        Producer(queue).insert_events(conn, EVENTS)
    tick()
    mover.run(until_empty=True)
    assert written(target) == written(conn)
    assert len(written(target)) == copies * len(EVENTS)
    # They are events there, like any others.
    ops.tick(target, target_queue)
    batch = ops.next_batch(target, target_queue, "reader")
    assert len(ops.events(target, batch)) == copies * len(EVENTS)


def test_a_batch_that_came_twice_is_written_once(
    dsn: str,
    target_dsn: str,
    queue: str,
    conn: Connection,
    target: Connection,
    target_queue: str,
    tick: Tick,
) -> None:
    class Crash(BaseException):
        pass

    class Dies(QueueMover):
        def process_batch(self, conn: pgqpy.Connection, batch: pgqpy.Batch) -> None:
            super().process_batch(conn, batch)
            raise Crash

    make(dsn, target_dsn, queue)
    Producer(queue).insert_events(conn, [("t", str(number)) for number in range(500)])
    tick()
    dies = Dies(dsn, target_dsn=target_dsn, queue=queue, consumer="queue_mover")
    dies.target_queue = target_queue
    with pytest.raises(Crash):
        dies.run_once()
    make(dsn, target_dsn, queue)
    assert written(target) == written(conn)


def test_a_copy_that_fails_on_the_way_leaves_nothing_and_is_done_again(
    dsn: str,
    target_dsn: str,
    queue: str,
    conn: Connection,
    target: Connection,
    target_queue: str,
    tick: Tick,
) -> None:
    mover = make(dsn, target_dsn, queue)
    Producer(queue).insert_events(
        conn, [("t", "x" * 1000 + str(number)) for number in range(20_000)]
    )
    tick()
    target.execute(
        "create function fail() returns trigger language plpgsql as"
        " $$ begin if new.ev_data like '%15000' then raise 'no'; end if; return new; end $$"
    )
    table = ops.value(target, "select pgq.current_event_table('copied')")
    target.execute(
        f"create trigger fail before insert on {table} for each row"
        " execute function fail()".encode()
    )
    with pytest.raises(pgqpy.PgqError, match="no"):
        mover.run_once()
    assert written(target) == []
    target.execute(f"drop trigger fail on {table}".encode())
    mover.run(until_empty=True)
    assert written(target) == written(conn)


def test_only_the_types_that_are_wanted(
    dsn: str,
    target_dsn: str,
    queue: str,
    conn: Connection,
    target: Connection,
    target_queue: str,
    tick: Tick,
) -> None:
    mover = make(dsn, target_dsn, queue, event_types=["a"])
    Producer(queue).insert_events(conn, [("a", "1"), ("b", "2"), (None, "3"), ("a", "4")] * 50)
    tick()
    mover.run(until_empty=True)
    assert [row[2] for row in written(target)] == ["1", "4"] * 50


def test_a_subclass_changes_and_leaves_out(
    dsn: str,
    target_dsn: str,
    queue: str,
    conn: Connection,
    target: Connection,
    target_queue: str,
    tick: Tick,
) -> None:
    class Upper(QueueMover):
        def convert(self, event: Event) -> NewEvent | None:
            return None if event.data == "b" else NewEvent("upper", str(event.data).upper())

    mover = Upper(dsn, target_dsn=target_dsn, queue=queue, consumer="mover")
    mover.target_queue = target_queue
    mover.run(until_empty=True)
    Producer(queue).insert_events(conn, [("t", data) for data in "abc"])
    tick()
    mover.run(until_empty=True)
    assert [row[1:3] for row in written(target)] == [("upper", "A"), ("upper", "C")]


def test_a_queue_that_is_missing_is_named_before_anything_happens(
    dsn: str, target_dsn: str, queue: str
) -> None:
    with pytest.raises(errors.QueueNotFound, match="copied"):
        make(dsn, target_dsn, queue)


def test_or_created(
    dsn: str, target_dsn: str, queue: str, conn: Connection, target: Connection, tick: Tick
) -> None:
    mover = make(dsn, target_dsn, queue, create_queue=True)
    Producer(queue).insert_event(conn, "t", "a")
    tick()
    mover.run(until_empty=True)
    assert written(target) == written(conn)
    make(dsn, target_dsn, queue, create_queue=True)


def test_to_another_queue_of_the_same_database(
    dsn: str, queue: str, conn: Connection, tick: Tick
) -> None:
    mover = make(dsn, dsn, queue, create_queue=True)
    Producer(queue).insert_events(conn, [("t", str(number)) for number in range(200)])
    tick()
    mover.run(until_empty=True)
    mover.run(until_empty=True)
    assert len(written(conn)) == 400


def test_a_queue_is_not_moved_into_itself(
    dsn: str, queue: str, conn: Connection, tick: Tick
) -> None:
    mover = QueueMover(dsn, target_dsn=f"{dsn}&application_name=x", queue=queue)
    mover.target_queue = queue
    Producer(queue).insert_event(conn, "t", "a")
    tick()
    with pytest.raises(errors.InvalidParameter, match="into itself"):
        mover.run(until_empty=True)


def test_it_runs_by_its_name(
    cli: Cli,
    dsn: str,
    target_dsn: str,
    queue: str,
    conn: Connection,
    target: Connection,
    target_queue: str,
    tick: Tick,
    tmp_path: Path,
) -> None:
    settings = {"queue": queue, "target_dsn": target_dsn, "target_queue": target_queue}
    config = tmp_path / "mover.toml"
    config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
    cli.ok("run", "queue_mover", str(config), "--until-empty")
    Producer(queue).insert_events(conn, EVENTS)
    tick()
    cli.ok("run", "queue_mover", str(config), "--until-empty")
    assert written(target) == written(conn)
