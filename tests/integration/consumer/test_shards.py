"""One logical queue over three databases."""

from __future__ import annotations

import pytest

from pgqpy import Consumer, Event, Producer, ShardedConsumer
from pgqpy.connection import Connection
from tests.fixtures.fix_shards import QUEUE, Shards


class Seen(Consumer):
    queue = QUEUE
    consumer = "seen"
    start = "first"
    poll_interval = 0.05

    def process_event(self, conn: Connection, event: Event) -> None:
        conn.execute(
            "insert into seen (key, number) values (%s, %s)", [event.extra1, int(event.data or 0)]
        )


@pytest.mark.smoke
def test_a_producer_writes_keys_of_its_database_and_a_consumer_reads_all(shards: Shards) -> None:
    shards.apply("a", "b", "c")
    producer = Producer(QUEUE, shards=shards.file)
    keys = [f"k{number}" for number in range(30)]
    for name in "abc":
        own = [key for key in keys if shards.map.shard_for(key).name == name]
        with shards.connect(name, autocommit=False) as conn:
            producer.insert_event(conn, "t", "0", extra1=own[0], shard_key=own[0])
            events = [("t", "0", key) for key in own[1:]]
            producer.insert_events(conn, events, shard_key=lambda event: event[2])
    shards.tick()
    ShardedConsumer(Seen, shards.file).run(until_empty=True)
    assert shards.seen() == {key: [[0]] for key in keys}
