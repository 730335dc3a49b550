"""The interface is PgQ's, so the client works on PgQ's own schema as well."""

from __future__ import annotations

import pytest

import pgqpy
from pgqpy import Admin, Consumer, Event, Producer
from tests.fixtures.fix_db import Connect


@pytest.mark.reference
def test_a_consumer_reads_a_queue_of_the_original(pgq_reference_dsn: str, connect: Connect) -> None:
    events: list[tuple[str | None, int]] = []

    class Reader(Consumer):
        queue = "q"
        consumer = "c"
        batch_size = None  # next_batch_upto is not PgQ's

        def process_event(self, conn: pgqpy.Connection, event: Event) -> None:
            events.append((event.data, event.retry))

    conn = connect(pgq_reference_dsn)
    admin = Admin(conn)
    admin.create_queue("q")
    consumer = Reader(pgq_reference_dsn)
    assert consumer.register()
    for data in "ab":
        Producer("q").insert_event(conn, "t", data)
    admin.force_tick("q")
    admin.ticker("q")
    consumer.run(until_empty=True)
    assert events == [("a", 0), ("b", 0)]
    (info,) = admin.get_consumer_info("q", "c")
    assert info.current_batch is None
    assert [queue.queue_name for queue in admin.get_queue_info()] == ["q"]
