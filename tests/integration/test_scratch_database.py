"""`pgqpy.testing.ScratchDatabase` drains consumers of all kinds."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import pgqpy
from pgqpy.consumer.coop import CoopConsumer
from pgqpy.consumer.group import GroupConsumer
from pgqpy.consumer.remote import RemoteConsumer
from pgqpy.event import NewEvent
from pgqpy.retry import FixedDelay, RetryPolicy
from pgqpy.testing import ScratchDatabase

pytestmark = pytest.mark.any_pg

EVENTS = [NewEvent("t", str(number), f"key {number % 3}") for number in range(20)]


@pytest.fixture
def scratch(dsn: str) -> Iterator[ScratchDatabase]:
    database = ScratchDatabase(dsn)
    database.create_queue("q")
    yield database
    database.close()


class Seen:
    """Remembers events, for consumers of any kind."""

    queue = "q"
    consumer = "c"
    retry_policy: RetryPolicy | None = FixedDelay(0, attempts=3)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[int] = []

    def process_event(self, conn: Any, event: pgqpy.Event) -> None:
        if event.type == "broken":
            raise ZeroDivisionError
        self.seen.append(int(event.data or 0))


class Alone(Seen, pgqpy.Consumer):
    pass


class Shared(Seen, CoopConsumer):
    pass


class Grouped(Seen, GroupConsumer):
    partitions = 2


class Asynchronous(Seen, pgqpy.AsyncConsumer):
    async def process_event(self, conn: Any, event: pgqpy.Event) -> None:  # type: ignore[override]
        super().process_event(conn, event)


@pytest.mark.parametrize("kind", [Alone, Shared, Grouped, Asynchronous])
def test_a_consumer_of_any_kind_has_all_events_once(scratch: ScratchDatabase, kind: Any) -> None:
    consumer = kind(scratch.dsn)
    scratch.insert_events("q", EVENTS[:10])
    scratch.tick("q")
    scratch.insert_events("q", EVENTS[10:])
    scratch.drain(consumer)
    assert sorted(consumer.seen) == list(range(20))
    scratch.insert_event("q", "t", "20")
    scratch.drain(consumer)
    scratch.drain(consumer)
    assert sorted(consumer.seen) == list(range(21))


@pytest.mark.parametrize("kind", [Alone, Shared, Asynchronous])
def test_retries_without_delay_end_as_dead_letters(scratch: ScratchDatabase, kind: Any) -> None:
    consumer = kind(scratch.dsn)
    scratch.insert_event("q", "broken")
    scratch.insert_event("q", "t", "1")
    scratch.drain(consumer)
    assert consumer.seen == [1]
    assert scratch.conn.execute("select dl_attempts from pgq.dead_letter").fetchall() == [(3,)]


def test_delayed_events_come_when_they_are_due(scratch: ScratchDatabase) -> None:
    consumer = Alone(scratch.dsn)
    scratch.insert_event("q", "t", "1", delay=timedelta())
    scratch.insert_event("q", "t", "2", delay=timedelta(hours=1))
    scratch.drain(consumer)
    assert consumer.seen == [1]


def test_a_consumer_with_a_target(scratch: ScratchDatabase) -> None:
    class Copy(RemoteConsumer):
        queue = "q"
        consumer = "c"

        def process_remote_batch(
            self, conn: Any, batch: pgqpy.Batch, target: pgqpy.Connection
        ) -> None:
            for event in batch:
                target.execute("insert into copied values (%s)", [event.data])

    scratch.conn.execute("create table copied (data text)")
    scratch.insert_events("q", EVENTS)
    scratch.drain(Copy(scratch.dsn, target_dsn=scratch.dsn))
    assert scratch.conn.execute("select count(*) from copied").fetchall() == [(20,)]
