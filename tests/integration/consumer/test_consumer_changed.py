"""A consumer that waits for ticks hears at once when its queue or its registration has changed.

All of them hear of ticks only: they would poll after hours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import pytest

import pgqpy
from pgqpy import Admin, errors
from tests.fixtures.fix_client import PATIENCE, Send
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import eventually

LISTENS = (
    "select count(*) > 0 from pg_stat_activity"
    " where datname = current_database() and application_name = 'pgqpy listen'"
    " and query like 'select pg_notify%%' and state = 'idle'"
)
SETTINGS: dict[type[Any], dict[str, timedelta]] = {
    pgqpy.Consumer: {},
    pgqpy.CoopConsumer: {"dead_after": timedelta(hours=100)},
    pgqpy.GroupConsumer: {"lease": timedelta(hours=1)},
}

Start = Callable[[type[Any]], tuple[SimpleQueue[str | None], Future[None]]]


@pytest.fixture
def start(dsn: str, conn: Connection, queue: str, send: Send) -> Iterator[Start]:
    """``start(Consumer)``: one that runs, has seen an event, and waits for the next; what it sees,
    and how it ends."""
    started: list[pgqpy.Consumer] = []

    def start_now(kind: type[Any]) -> tuple[SimpleQueue[str | None], Future[None]]:
        seen = SimpleQueue[str | None]()
        names = {"queue": queue, "consumer": "c"}
        consumer = kind(dsn, **names, handler=lambda conn, event: seen.put(event.data))
        for name, value in {"poll_interval": 3600, **SETTINGS[kind]}.items():
            setattr(consumer, name, value)
        consumer.register()
        started.append(consumer)
        ended = pool.submit(consumer.run)
        send(["first"])
        assert seen.get(timeout=PATIENCE) == "first"
        eventually(conn, LISTENS)
        return seen, ended

    with ThreadPoolExecutor() as pool:
        yield start_now
        for consumer in started:
            consumer.stop()


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_consumer_of_a_queue_that_is_dropped_says_so_at_once(
    conn: Connection, queue: str, start: Start, kind: type[Any]
) -> None:
    _, ended = start(kind)
    Admin(conn).drop_queue(queue, force=True)
    error = ended.exception(PATIENCE)
    assert isinstance(error, errors.QueueNotFound | errors.GroupNotFound)
    assert queue in str(error)


@pytest.mark.parametrize("how", ["unregistered", "deleted as in PgQ"])
def test_a_consumer_that_is_unregistered_says_so_at_once(
    conn: Connection, queue: str, start: Start, how: str
) -> None:
    _, ended = start(pgqpy.Consumer)
    if how == "unregistered":
        Admin(conn).unregister_consumer(queue, "c")
    else:
        conn.execute("delete from pgq.subscription")
    assert isinstance(ended.exception(PATIENCE), errors.ConsumerNotRegistered)


def test_a_consumer_that_is_moved_back_or_whose_queue_is_made_again_goes_on_at_once(
    conn: Connection, queue: str, start: Start, send: Send
) -> None:
    seen, _ = start(pgqpy.Consumer)
    Admin(conn).register_consumer_at(queue, "c", 1)
    assert seen.get(timeout=PATIENCE) == "first"
    # In one transaction, so that it cannot look between.
    with conn.transaction():
        Admin(conn).drop_queue(queue, force=True)
        Admin(conn).create_queue(queue)
        Admin(conn).register_consumer(queue, "c")
    for data in ("second", "third"):
        send([data])
        assert seen.get(timeout=PATIENCE) == data
