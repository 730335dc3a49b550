"""A consumer that waits for ticks hears at once when its queue or its registration has changed.

All of them hear of ticks only: they would poll after hours.
"""

from __future__ import annotations

import queue as queues
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import pgqpy
from pgqpy import Admin, Producer, errors
from tests.fixtures.fix_client import PATIENCE
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import eventually

LISTENS = (
    "select count(*) > 0 from pg_stat_activity"
    " where datname = current_database() and application_name = 'pgqpy listen'"
    " and query like 'select pg_notify%%' and state = 'idle'"
)


class Seeing:
    """Tells what it sees, and how its run ended."""

    poll_interval: float = 3600

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        self.seen.put(event.data)

    def begin(self) -> None:
        self.seen: queues.Queue[str | None] = queues.Queue()
        self.ended: queues.Queue[BaseException | None] = queues.Queue()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self.run()  # type: ignore[attr-defined]
        except BaseException as raised:
            error = raised
        self.ended.put(error)


class Plain(Seeing, pgqpy.Consumer):
    consumer = "c"


class Coop(Seeing, pgqpy.CoopConsumer):
    consumer = "c"
    dead_after = timedelta(hours=100)


class Group(Seeing, pgqpy.GroupConsumer):
    consumer = "c"
    lease = timedelta(hours=1)


Start = Callable[..., Any]


@pytest.fixture
def start(dsn: str, conn: Connection, queue: str) -> Iterator[Start]:
    """``start(Plain)``: one that runs, has seen an event, and waits for the next."""
    started: list[Any] = []

    def start(kind: type[Any]) -> Any:
        consumer = kind(dsn, queue=queue)
        consumer.register()
        started.append(consumer)
        consumer.begin()
        send(conn, queue, "first")
        assert consumer.seen.get(timeout=PATIENCE) == "first"
        eventually(conn, LISTENS)
        return consumer

    yield start
    for consumer in started:
        consumer.stop()
        consumer.thread.join(PATIENCE)
        assert not consumer.thread.is_alive()


def send(conn: Connection, queue: str, data: str) -> None:
    """An event, and its tick."""
    Producer(queue).insert_event(conn, "type", data)
    Admin(conn).force_tick(queue)
    Admin(conn).ticker(queue)


@pytest.mark.parametrize("kind", [Plain, Coop, Group])
def test_a_consumer_of_a_queue_that_is_dropped_says_so_at_once(
    conn: Connection, queue: str, start: Start, kind: type[Any]
) -> None:
    consumer = start(kind)
    Admin(conn).drop_queue(queue, force=True)
    error = consumer.ended.get(timeout=PATIENCE)
    assert isinstance(error, errors.QueueNotFound | errors.GroupNotFound)
    assert queue in str(error)


@pytest.mark.parametrize("how", ["unregistered", "deleted as in PgQ"])
def test_a_consumer_that_is_unregistered_says_so_at_once(
    conn: Connection, queue: str, start: Start, how: str
) -> None:
    consumer = start(Plain)
    if how == "unregistered":
        Admin(conn).unregister_consumer(queue, "c")
    else:
        conn.execute("delete from pgq.subscription")
    assert isinstance(consumer.ended.get(timeout=PATIENCE), errors.ConsumerNotRegistered)


def test_a_consumer_that_is_moved_back_or_whose_queue_is_made_again_goes_on_at_once(
    conn: Connection, queue: str, start: Start
) -> None:
    consumer = start(Plain)
    Admin(conn).register_consumer_at(queue, "c", 1)
    assert consumer.seen.get(timeout=PATIENCE) == "first"
    # In one transaction, so that it cannot look between.
    with conn.transaction():
        Admin(conn).drop_queue(queue, force=True)
        Admin(conn).create_queue(queue)
        Admin(conn).register_consumer(queue, "c")
    for data in ("second", "third"):
        send(conn, queue, data)
        assert consumer.seen.get(timeout=PATIENCE) == data
