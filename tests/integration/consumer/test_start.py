"""Where a consumer's events begin when it is registered for the first time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import pgqpy
from pgqpy import Admin, Event
from pgqpy.errors import InvalidConsumer, InvalidParameter, TickNotFound
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import Send
from tests.fixtures.fix_db import Connection

KINDS = [
    pgqpy.Consumer,
    pgqpy.CoopConsumer,
    pgqpy.GroupConsumer,
    pgqpy.TrackedConsumer,
    pgqpy.RemoteConsumer,
    pgqpy.AsyncConsumer,
]


def run(kind: type[Any], dsn: str, queue: str, **options: Any) -> list[str]:
    """Return what it gets, in order."""
    seen = []

    async def later(conn: object, event: Event) -> None:
        seen.append(event.data or "")

    if issubclass(kind, pgqpy.AsyncConsumer):
        options["handler"] = later
    if issubclass(kind, pgqpy.RemoteConsumer):
        options["target_dsn"] = dsn
    now = {"consumer": "c", "handler": lambda conn, event: seen.append(event.data)}
    ran = kind(dsn, queue=queue, **now | options).run(until_empty=True)
    if ran is not None:
        asyncio.run(ran)
    return sorted(seen)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_consumer_begins_where_it_says_and_goes_on_from_there(
    dsn: str, queue: str, send: Send, kind: type[Any]
) -> None:
    send("ab")
    assert run(kind, dsn, queue) == []
    send("c")
    # Only the first time.
    assert run(kind, dsn, queue, start="first") == ["c"]
    kind = type("First", (kind,), {"start": "first"})
    assert run(kind, dsn, queue, consumer="first") == ["a", "b", "c"]
    send("d")
    assert run(kind, dsn, queue, consumer="first") == ["d"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_time_gets_all_events_since_then(
    dsn: str, conn: Connection, queue: str, send: Send, kind: type[Any]
) -> None:
    for data in "abc":
        send(data)
    time = ops.value(conn, "select clock_timestamp()")
    send("de")
    seen = run(kind, dsn, queue, start=time.astimezone(UTC))
    assert seen[-2:] == ["d", "e"]
    assert "a" not in seen
    conn.execute("update pgq.queue set queue_horizon_tick = 4")
    # Registered, so that it does not matter that these events are gone.
    assert run(kind, dsn, queue, start=datetime(2001, 1, 1, tzinfo=UTC)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_start_that_cannot_be_is_refused_and_nothing_registered(
    dsn: str, conn: Connection, queue: str, send: Send, kind: type[Any]
) -> None:
    for _ in range(3):
        send("a")
    conn.execute("update pgq.queue set queue_horizon_tick = 3")
    now = datetime.now(UTC)
    for start, error in (
        (now + timedelta(hours=1), InvalidParameter),
        (now - timedelta(hours=1), TickNotFound),
        (now.replace(tzinfo=None), InvalidConsumer),
        ("frist", InvalidConsumer),
    ):
        with pytest.raises(error):
            run(kind, dsn, queue, start=start)
    assert Admin(conn).get_consumer_info(queue) == []


def test_admin_takes_the_same_places_and_the_number_of_an_event(
    conn: Connection, queue: str, send: Send
) -> None:
    admin = Admin(conn)
    for data in "abcd":
        send(data)
    event = ops.value(conn, "select ev_id from pgq.event where ev_data = 'd'")
    assert admin.find_tick(queue, "first") == 1
    assert admin.find_tick(queue, "now") == 5
    assert admin.find_tick(queue, event) == 3
    with pytest.raises(InvalidParameter, match="no time zone"):
        admin.find_tick(queue, datetime(2026, 11, 21))  # noqa: DTZ001
    with pytest.raises(InvalidParameter):
        admin.register_consumer(queue, "c", event + 10_000)
    assert admin.register_consumer(queue, "c", event)
    assert not admin.register_consumer(queue, "c", "first")
    assert ops.drain(conn, queue, "c") == ["c", "d"]
