"""queue_splitter: each event in the queue that a field of it names, once."""

from __future__ import annotations

from typing import Any

import pytest

import pgqpy
from pgqpy import Event, NewEvent, Producer, errors
from pgqpy_consumers.queue_splitter import QueueSplitter
from pgqpy_consumers.settings import ConfigError, build
from tests.fixtures.fix_client import Tick
from tests.fixtures.fix_db import Connection

FIELDS = "ev_time, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"


def make(dsn: str, target_dsn: str, queue: str, **settings: Any) -> QueueSplitter:
    config = {"dsn": dsn, "queue": queue, "target_dsn": target_dsn}
    splitter = QueueSplitter.from_config(build(QueueSplitter.Config, config | settings))
    splitter.backoff_first = 0.01
    splitter.run(until_empty=True)
    return splitter


def create(target: Connection, *queues: str) -> None:
    for queue in queues:
        target.execute("select pgq.create_queue(%s)", [queue])


def send(conn: Connection, queue: str, tick: Tick, *events: NewEvent) -> None:
    Producer(queue).insert_events(conn, events)
    tick()


def event(data: str, extra1: str | None, **more: str) -> NewEvent:
    return NewEvent("t", data, extra1, **more)


def data(conn: Connection) -> dict[str, list[str]]:
    """The events of each queue, in order."""
    rows = conn.execute(
        "select queue_name, array_agg(ev_data order by ev_id)"
        " from pgq.queue q join pgq.event e"
        "   on ev_slot >= queue_slot0 and ev_slot < queue_slot0 + queue_ntables"
        " group by 1"
    ).fetchall()
    return dict(rows)


@pytest.mark.parametrize("copies", [1, 60], ids=["small batch", "large batch"])
def test_events_go_where_extra1_says_as_they_are(
    dsn: str,
    target_dsn: str,
    queue: str,
    conn: Connection,
    target: Connection,
    tick: Tick,
    copies: int,
) -> None:
    create(target, "a", "b")
    splitter = make(dsn, target_dsn, queue)
    events = [event("1", "a", extra4="x"), event("2", "b"), event("3", "a"), event("", "b")]
    send(conn, queue, tick, *events * copies)
    splitter.run(until_empty=True)
    splitter.run(until_empty=True)
    assert data(target) == {"a": ["1", "3"] * copies, "b": ["2", ""] * copies}
    rows = f"select {FIELDS} from pgq.event order by 1, 2, 3, 4".encode()
    assert target.execute(rows).fetchall() == conn.execute(rows).fetchall()


def test_by_another_field_with_names_for_its_values(
    dsn: str, target_dsn: str, queue: str, conn: Connection, target: Connection, tick: Tick
) -> None:
    create(target, "orders", "plain")
    splitter = make(dsn, target_dsn, queue, field="type", queues={"o": "orders"})
    send(conn, queue, tick, NewEvent("o", "1"), NewEvent("plain", "2"))
    splitter.run(until_empty=True)
    assert data(target) == {"orders": ["1"], "plain": ["2"]}


def test_into_other_queues_of_the_same_database(
    dsn: str, queue: str, conn: Connection, tick: Tick
) -> None:
    create(conn, "a")
    splitter = make(dsn, dsn, queue)
    send(conn, queue, tick, event("1", "a"))
    splitter.run(until_empty=True)
    assert data(conn) == {queue: ["1"], "a": ["1"]}


def test_an_event_for_an_unknown_queue_is_an_error_until_the_queue_is_there(
    dsn: str, target_dsn: str, queue: str, conn: Connection, target: Connection, tick: Tick
) -> None:
    create(target, "a")
    splitter = make(dsn, target_dsn, queue)
    send(conn, queue, tick, event("1", "a"), event("2", "missing"))
    with pytest.raises(errors.QueueNotFound) as refused:
        splitter.run(until_empty=True)
    assert "there is no queue missing; event 2 has it as extra1" in str(refused.value)
    assert "pgqpy queue create missing" in str(refused.value)
    assert data(target) == {}
    create(target, "missing")
    splitter.run(until_empty=True)
    assert data(target) == {"a": ["1"], "missing": ["2"]}


def test_events_for_no_queue_are_errors_or_go_to_the_default(
    dsn: str, target_dsn: str, queue: str, conn: Connection, target: Connection, tick: Tick
) -> None:
    create(target, "a", "rest")
    splitter = make(dsn, target_dsn, queue)
    send(conn, queue, tick, event("1", "a"), event("2", None), event("3", "?"), event("4", ""))
    with pytest.raises(pgqpy.PgqError, match="event 2 has no extra1"):
        splitter.run(until_empty=True)
    make(dsn, target_dsn, queue, default_queue="rest")
    assert data(target) == {"a": ["1"], "rest": ["2", "3", "4"]}


def test_queues_are_created_if_that_is_wanted(
    dsn: str, target_dsn: str, queue: str, conn: Connection, target: Connection, tick: Tick
) -> None:
    splitter = make(dsn, target_dsn, queue, create_queues=True, default_queue="rest")
    assert target.execute("select queue_name from pgq.queue").fetchall() == [("rest",)]
    send(conn, queue, tick, event("1", "new"), event("2", None), event("3", "new"))
    splitter.run(until_empty=True)
    assert data(target) == {"new": ["1", "3"], "rest": ["2"]}


def test_a_queue_that_the_settings_name_must_be_there_before_anything_happens(
    dsn: str, target_dsn: str, queue: str
) -> None:
    with pytest.raises(errors.QueueNotFound, match="no queue orders; the settings name it"):
        make(dsn, target_dsn, queue, queues={"o": "orders"})


@pytest.mark.parametrize("create_queues", [False, True])
def test_nothing_goes_into_the_queue_that_is_read(
    dsn: str, queue: str, conn: Connection, tick: Tick, create_queues: bool
) -> None:
    splitter = make(dsn, dsn, queue, create_queues=create_queues)
    send(conn, queue, tick, event("1", queue))
    with pytest.raises(errors.InvalidParameter, match="into itself"):
        splitter.run(until_empty=True)
    with pytest.raises(errors.InvalidParameter, match="into itself"):
        make(dsn, dsn, queue, default_queue=queue)


def test_but_one_of_its_name_elsewhere_is_another_queue(
    dsn: str, target_dsn: str, queue: str, conn: Connection, target: Connection, tick: Tick
) -> None:
    create(target, queue)
    splitter = make(dsn, target_dsn, queue)
    send(conn, queue, tick, event("1", queue))
    splitter.run(until_empty=True)
    assert data(target) == {queue: ["1"]}


def test_large_batches_are_written_in_pieces(
    dsn: str,
    target_dsn: str,
    queue: str,
    conn: Connection,
    target: Connection,
    tick: Tick,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pgqpy_consumers.queue_splitter._PIECE", 7)
    create(target, "a", "b")
    splitter = make(dsn, target_dsn, queue)
    events = [event(str(number), "ab"[number % 2]) for number in range(100)]
    send(conn, queue, tick, *events)
    splitter.run(until_empty=True)
    assert data(target) == {
        "a": [str(number) for number in range(0, 100, 2)],
        "b": [str(number) for number in range(1, 100, 2)],
    }


def test_a_subclass_chooses_otherwise(
    dsn: str, target_dsn: str, queue: str, conn: Connection, target: Connection, tick: Tick
) -> None:
    class ByLength(QueueSplitter):
        def choose(self, event: Event) -> str | None:
            return "long" if len(event.data or "") > 3 else "short"

    create(target, "long", "short")
    splitter = ByLength(dsn, target_dsn=target_dsn, queue=queue)
    splitter.run(until_empty=True)
    send(conn, queue, tick, event("ab", None), event("abcd", None))
    splitter.run(until_empty=True)
    assert data(target) == {"short": ["ab"], "long": ["abcd"]}


def test_settings_that_make_no_sense_are_refused() -> None:
    usual = {"queue": "q", "target_dsn": "postgresql:///x"}
    with pytest.raises(ConfigError, match=r"field .* must be one of type, extra1"):
        build(QueueSplitter.Config, usual | {"field": "data"})
    with pytest.raises(ConfigError, match="batch_size must be at least 1"):
        build(QueueSplitter.Config, usual | {"batch_size": 0})
