"""One logical queue over three databases."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from pgqpy import Consumer, Event, Producer, ShardedConsumer
from pgqpy.connection import Connection
from pgqpy.errors import PgqError, StaleShardMap, WrongShard
from tests.fixtures.fix_client import running, wait_until
from tests.fixtures.fix_shards import QUEUE, Load, Shards
from tests.fixtures.fix_ticker import StartTicker


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
    assert shards.seen() == {key: [0] for key in keys}


@pytest.mark.slow
def test_shards_are_added_split_and_removed_under_load_and_each_key_stays_in_order(
    shards: Shards, start_ticker: StartTicker
) -> None:
    shards.apply("a", "b")
    start_ticker(*shards.dsns.values())
    consumer = ShardedConsumer(Seen, shards.file)
    consumer.reload_interval = 0.05
    load = Load(shards)
    with running(consumer):

        def progress() -> None:
            count = load.count
            wait_until(lambda: load.count > count + 100 or load.errors)

        progress()
        # c is new, and gets keys of b, which gets keys of a
        shards.apply("a", "b", "c")
        progress()
        # keys move back: first the consumer has to finish what was moved before
        named = ["key 0 0", "key 1 1"]
        shards.want("a", "b", "c", a=named)
        wait_until(lambda: shards.try_apply().exit_code == 0)
        progress()
        shards.want("a", "b", a=named)
        wait_until(lambda: shards.try_apply().exit_code == 0)
        progress()
        # c, without keys, is drained before it is removed
        wait_until(lambda: "drained, and removed" in shards.try_apply().stdout)
        progress()
        sent = load.stop()
        wait_until(lambda: sum(map(len, shards.seen().values())) >= sum(sent.values()))
    assert [*shards.map.shards] == ["a", "b"]
    assert load.stale > 0
    assert shards.seen() == {key: [*range(count)] for key, count in sent.items()}
