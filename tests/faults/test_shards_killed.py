"""Shards on servers of their own, one of which is killed: the others go on, and it is caught up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pgqpy import ShardedConsumer
from pgqpy.embedded import Server
from pgqpy.errors import ConnectionFailed
from tests.fixtures.fix_client import running, wait_until
from tests.fixtures.fix_shards import Load, Seen, Shards
from tests.fixtures.fix_ticker import StartTicker

pytestmark = pytest.mark.slow


def goes_on(shards: Shards, name: str) -> None:
    """More events are read in a shard."""
    count = shards.count(name)
    wait_until(lambda: shards.count(name) > count + 20)


def test_a_shard_that_is_killed_stops_no_other_and_each_event_comes_once_in_order(
    start_mortal: Callable[[], Server], start_ticker: StartTicker, tmp_path: Path
) -> None:
    servers = {name: start_mortal() for name in "ab"}
    shards = Shards(tmp_path, {name: server.dsn for name, server in servers.items()})
    shards.apply("a", "b")
    start_ticker(*shards.dsns.values())
    consumer = ShardedConsumer(Seen, shards.file)
    consumer.reload_interval = 0.05
    load = Load(shards, producers=4, keys=3)
    with running(consumer):
        for name, other, named in ("a", "b", "key 0 0"), ("b", "a", "key 1 1"):
            load.progress()
            servers[name].kill()
            goes_on(shards, other)
            servers[name].restart()
            load.progress()
            # Keys move as soon as all shards are there again.
            shards.want("a", "b", **{other: [named]})
            wait_until(lambda: shards.try_apply().exit_code == 0)
        load.progress()
        sent = load.stop()
    assert shards.seen() == sent

    servers["a"].kill()
    with pytest.raises(ConnectionFailed, match=r"databases were down: a\n"):
        ShardedConsumer(Seen, shards.file).run(until_empty=True)
