"""One logical queue over several databases."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, LiteralString
from zlib import crc32

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.conninfo import make_conninfo

from pgqpy import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    AsyncShardedConsumer,
    Consumer,
    CoopConsumer,
    Event,
    GroupAdmin,
    GroupConsumer,
    NewEvent,
    Producer,
    ShardedConsumer,
    ShardMap,
    async_connect,
)
from pgqpy import sqlalchemy as for_sessions
from pgqpy.connection import Connection
from pgqpy.errors import (
    InvalidConsumer,
    InvalidParameter,
    InvalidShardMap,
    PgqError,
    RetryTransaction,
    StaleShardMap,
    WrongShard,
)
from pgqpy.shards._share import Share
from pgqpy_consumers.queue_mover import QueueMover
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli, Spawn
from tests.fixtures.fix_client import PATIENCE, running, wait_until
from tests.fixtures.fix_shards import QUEUE, Load, Seen, Shards
from tests.fixtures.fix_ticker import StartTicker


class AsyncSeen(AsyncConsumer):
    queue = QUEUE
    consumer = "seen"
    start = "first"

    async def process_event(self, conn: Any, event: Event) -> None:
        await conn.execute("insert into seen values (%s, %s)", [event.extra1, event.data])


class GroupSeen(GroupConsumer):
    queue = QUEUE
    consumer = "seen"
    start = "first"
    partitions = 2

    def process_event(self, conn: Connection, event: Event) -> None:
        if event.type == "bad":
            raise ValueError
        conn.execute("insert into seen values (%s, %s)", [event.extra1, event.data])


class Grouped(GroupSeen):
    consumer = "grouped"


class CoopSeen(CoopConsumer):
    queue = QUEUE
    consumer = "coop"
    start = "first"
    process_event = Seen.process_event


def send(shards: Shards, name: str, key: str, *numbers: int, kind: str = "t") -> None:
    """Events of a key, in a shard, in a batch of their own."""
    producer = Producer(QUEUE, shards=shards.file)
    with shards.connect(name) as conn:
        for number in numbers:
            with conn.transaction():
                producer.insert_event(conn, kind, str(number), extra1=key, shard_key=key)
    shards.tick(name)


# --- producers


@pytest.mark.smoke
def test_a_producer_writes_keys_of_its_database_and_consumers_read_all(shards: Shards) -> None:
    shards.apply("a", "b", "c")
    producer = Producer(QUEUE, shards=shards.file)
    keys = [f"k{number}" for number in range(30)]

    async def send_one(dsn: str, key: str) -> None:
        async with await async_connect(dsn) as conn:
            given = AsyncProducer(QUEUE, shards=shards.map)
            await given.insert_event(conn, "t", "1", extra1=key, shard_key=key)

    for name in "abc":
        own = [key for key in keys if shards.map.shard_for(key).name == name]
        with shards.connect(name, autocommit=False) as conn:
            producer.insert_event(conn, "t", "0", extra1=own[0], shard_key=own[0])
            events = [("t", "0", key) for key in own[1:]]
            producer.insert_events(conn, events[1:], shard_key=lambda event: event[2])
            producer.insert_events_returning(conn, events[:1], shard_key=lambda event: event[2])
        asyncio.run(send_one(shards.dsns[name], own[0]))
        url = sa.engine.url.make_url("postgresql+psycopg://")
        engine = sa.create_engine(url, creator=lambda name=name: psycopg.connect(shards.dsns[name]))
        with engine.begin() as connection:
            given = for_sessions.Producer(QUEUE, shards=shards.map)
            given.insert_event(connection, "t", "2", extra1=own[0], shard_key=own[0])
            other = next(key for key in keys if key not in own)
            with pytest.raises(WrongShard):
                given.insert_event(connection, "t", "2", shard_key=other)
        engine.dispose()
    shards.tick()
    ShardedConsumer(Seen, shards.file).run(until_empty=True)
    seen = shards.seen()
    assert {key: numbers[0] for key, numbers in seen.items()} == dict.fromkeys(keys, 0)
    assert sorted(map(len, seen.values())) == [1] * 27 + [3] * 3
    # The position is kept in each shard.
    asyncio.run(AsyncShardedConsumer(AsyncSeen, shards.file).run(until_empty=True))
    assert shards.seen() == seen


def test_a_key_of_another_shard_is_refused_with_its_name_and_nothing_is_written(
    shards: Shards,
) -> None:
    shards.apply("a", "b", a=["acme"], b=["zeta"])
    producer = Producer(QUEUE, shards=shards.file)
    with shards.connect("b") as conn:
        wrong = "'acme' of queue 'orders' belongs to shard 'a', and"
        with pytest.raises(WrongShard, match=wrong), conn.transaction():
            producer.insert_event(conn, "t", shard_key="acme")
        with pytest.raises(WrongShard):
            producer.insert_events(
                conn, [("t", key) for key in ("zeta", "acme")], shard_key=lambda event: event[1]
            )
        hint = r'needs a shard_key(.|\n)*HINT: .* insert_event\(..., shard_key="acme"\)'
        with pytest.raises(InvalidParameter, match=hint), conn.transaction():
            producer.insert_event(conn, "t")
        with pytest.raises(InvalidParameter, match=hint):
            producer.insert_events(conn, [("t", "zeta")])
        with pytest.raises(PgqError, match="in a transaction, and the connection has none"):
            producer.insert_event(conn, "t", shard_key="zeta")
        assert conn.execute("select count(*) from pgq_queue.orders").fetchone() == (0,)
    with pytest.raises(InvalidShardMap, match="of queue 'orders', not of 'mails'"):
        Producer("mails", shards=shards.file)
    with shards.connect("c", autocommit=False) as conn, pytest.raises(WrongShard, match="no shard"):
        producer.insert_event(conn, "t", shard_key="zeta")


@pytest.mark.any_pg
def test_keys_do_not_move_before_their_late_writers_have_ended(shards: Shards) -> None:
    """A late producer is waited for, or refused; a hasty one, too."""
    shards.apply("a", "b", a=["acme"])
    old = Producer(QUEUE, shards=shards.map)
    with shards.connect("a") as late, shards.connect("a") as other, shards.connect("b") as new:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with ThreadPoolExecutor() as pool, late.transaction():
            old.insert_event(late, "t", "0", extra1="acme", shard_key="acme")
            shards.want("a", "b", b=["acme"])
            applied = pool.submit(shards.try_apply)
            with other.transaction():
                other.execute("select 1")
                with shards.connect("a") as conn:
                    version = "select shard_version from pgq.get_shard_info(%s)"
                    wait_until(lambda: conn.execute(version, [QUEUE]).fetchone() == (2,))
                with pytest.raises(RetryTransaction), other.transaction():
                    old.insert_event(other, "t", "1", extra1="acme", shard_key="acme")
            stale = "version 1 of shard 'a' of queue 'orders'"
            with pytest.raises(StaleShardMap, match=stale), other.transaction():
                old.insert_event(other, "t", "1", extra1="acme", shard_key="acme")
            hasty = ShardMap.parse(
                {
                    "shards": {
                        "a": {"dsn": "", "hashes": [0, 65536], "version": 2},
                        "b": {"dsn": "", "keys": ["acme"], "version": 2},
                    }
                }
            )
            stale = "its database has version 1"
            with pytest.raises(StaleShardMap, match=stale), new.transaction():
                Producer(QUEUE, shards=hasty).insert_event(new, "t", shard_key="acme")
            assert not applied.done()
        assert applied.result().exit_code == 0
        assert "shard a: waiting for" in applied.result().stdout
        tick = shards.map.shards["b"].after["a"]
        Admin(late).register_consumer_at(QUEUE, "c", tick)
        assert late.execute("select * from pgq.get_consumer_info(%s, 'c')", [QUEUE]).fetchone()
        seen = late.execute(
            "select txid_visible_in_snapshot(ev_txid, tick_snapshot)"
            " from pgq_queue.orders, pgq.tick where tick_id = %s",
            [tick],
        )
        assert seen.fetchall() == [(True,)]


# --- consumers


@pytest.mark.parametrize("kind", [Seen, GroupSeen])
def test_a_shard_is_read_after_the_ticks_of_those_from_which_its_keys_came(
    shards: Shards, kind: type[Consumer]
) -> None:
    shards.apply("a", "b", a=["acme"])
    kind(shards.dsns["a"]).register()
    send(shards, "a", "acme", 0, 1)
    shards.apply("a", "b", b=["acme"])
    send(shards, "b", "acme", 2, 3)
    with shards.connect("a") as conn:
        Admin(conn).pause_consumer(QUEUE, "seen")
        with pytest.raises(PgqError, match="of shard 'a', after which shard 'b' comes, is not"):
            ShardedConsumer(kind, shards.file).run(until_empty=True)
        assert shards.seen() == {}
        Admin(conn).resume_consumer(QUEUE, "seen")
    ShardedConsumer(kind, shards.file).run(until_empty=True)
    assert shards.seen() == {"acme": [0, 1, 2, 3]}


def test_a_parked_key_holds_back_the_shard_to_which_it_moved(shards: Shards) -> None:
    shards.apply("a", "b", a=["acme"])
    GroupSeen(shards.dsns["a"]).register()
    send(shards, "a", "acme", 0, kind="bad")
    GroupSeen(shards.dsns["a"]).run(until_empty=True)
    shards.apply("a", "b", b=["acme"])
    send(shards, "b", "acme", 1)
    with pytest.raises(PgqError, match="of shard 'a', after which shard 'b' comes, is not"):
        ShardedConsumer(GroupSeen, shards.file).run(until_empty=True)
    with shards.connect("a") as conn:
        conn.execute("select pgq.give_up_parked(%s, 'seen', 'acme')", [QUEUE])
    ShardedConsumer(GroupSeen, shards.file).run(until_empty=True)
    assert shards.seen() == {"acme": [1]}


def test_a_consumer_with_an_old_map_does_not_read_keys_that_moved(shards: Shards) -> None:
    shards.apply("a", "b", a=["acme"])
    maps = [shards.map]
    calls: list[ShardMap] = []

    def read() -> ShardMap:
        calls.append(maps[-1])
        return maps[-1]

    consumer = ShardedConsumer(Seen, read)
    # It is asked again only if a reader says that it is too old.
    consumer.reload_interval = 3600
    with running(consumer):
        send(shards, "b", "b" * 20, 0)
        send(shards, "a", "acme", 0)
        wait_until(lambda: len(shards.seen()) == 2)
        with shards.connect("a") as conn:
            Admin(conn).pause_consumer(QUEUE, "seen")
            send(shards, "a", "acme", 1)
            shards.apply("a", "b", b=["acme"])
            before = len(calls)
            send(shards, "b", "acme", 2)
            wait_until(lambda: len(calls) > before)
            assert shards.seen()["acme"] == [0]
            maps.append(shards.map)
            wait_until(lambda: calls[-1] is maps[-1])
            Admin(conn).resume_consumer(QUEUE, "seen")
        wait_until(lambda: len(shards.seen()["acme"]) == 3)
    assert shards.seen()["acme"] == [0, 1, 2]
    with pytest.raises(StaleShardMap, match="shard 'b' has got keys, which the map lacks"):
        ShardedConsumer(Seen, maps[0]).run(until_empty=True)


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
        load.progress()
        # c is new, and gets keys of b, which gets keys of a
        shards.apply("a", "b", "c")
        load.progress()
        # keys move back: first the consumer has to finish what was moved before
        named = ["key 0 0", "key 1 1"]
        shards.want("a", "b", "c", a=named)
        wait_until(lambda: shards.try_apply().exit_code == 0)
        load.progress()
        shards.want("a", "b", a=named)
        wait_until(lambda: shards.try_apply().exit_code == 0)
        load.progress()
        # c, without keys, is drained before it is removed
        wait_until(lambda: "drained, and removed" in shards.try_apply().stdout)
        load.progress()
        sent = load.stop()
    assert [*shards.map.shards] == ["a", "b"]
    assert load.stale > 0
    assert shards.seen() == sent


@pytest.mark.slow
def test_processes_share_the_shards_and_a_crash_frees_those_of_one(
    shards: Shards, start_ticker: StartTicker, spawn: Spawn
) -> None:
    shards.apply("a", "b", "c")
    start_ticker(*shards.dsns.values())
    load = Load(shards, producers=1, keys=12)

    def start() -> subprocess.Popen[str]:
        return spawn(
            *("run", f"{Seen.__module__}:Seen", "--shards", str(shards.file)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    first = start()
    wait_until(lambda: len(shards.readers()) == 3)
    second = start()
    # The first has three, the second none: it gets one.
    wait_until(lambda: {first.pid, second.pid} == set(shards.readers().values()))
    first.kill()
    wait_until(lambda: [*shards.readers().values()] == [second.pid] * 3)
    sent = load.stop()
    second.send_signal(signal.SIGTERM)
    assert second.wait(PATIENCE) == 0
    assert shards.seen() == sent


class Looking(Share):
    """Looks at each batch whether others wait for shards."""

    looks = 0

    def may_look(self) -> bool:
        self.looks += 1
        return True


def test_only_sessions_of_readers_get_shards_by_their_name(shards: Shards) -> None:
    shards.apply("a", "b", "c")
    with shards.connect("a") as conn:
        conn.execute(
            "do $$ begin if to_regrole('no_reader') is null then create role no_reader"
            " login; end if; end $$"
        )
    consumer = ShardedConsumer(Seen, shards.file)
    consumer._share = looking = Looking(consumer._look_again)
    with running(consumer), ExitStack() as stack:

        def wait_for_shards(*numbers: str, **user: str) -> None:
            for dsn in shards.dsns.values():
                for number in numbers:
                    name = f"pgqpy waits {crc32(b'seen')} {number}"
                    named = make_conninfo(dsn, application_name=name, **user)
                    stack.enter_context(psycopg.connect(named))

        wait_for_shards("0", "-9", "boom", "99999999999", user="no_reader")
        wait_for_shards("-9", "boom", "99999999999")
        wait_until(lambda: consumer.claimed == 3)
        before = looking.looks
        wait_until(lambda: looking.looks > before + 12)
        assert consumer.claimed == 3
        wait_for_shards("0")
        wait_until(lambda: consumer.claimed < 3)


def test_a_map_may_be_in_a_table(shards: Shards) -> None:
    shards.apply("a", "b")
    send(shards, "a", next(key for key in "abcdefgh" if shards.map.shard_for(key).name == "a"), 7)
    with shards.connect("c") as conn:
        conn.execute(
            "create table shard_map (name text, dsn text, hashes int[], version int, after jsonb)"
        )
        for shard in shards.map.shards.values():
            values = [shard.name, shard.dsn, [*map(list, shard.hashes)], shard.version]
            conn.execute("insert into shard_map values (%s, %s, %s, %s)", values)
        found = ShardMap.from_table(conn, "public.shard_map", queue=QUEUE)
        assert found == shards.map
        ShardedConsumer(Seen, lambda: found).run(until_empty=True)
    assert [*shards.seen().values()] == [[7]]


def test_what_apply_cannot_do_is_refused_and_changes_nothing(shards: Shards) -> None:
    shards.apply("a", "b", a=["acme"], b=["zeta"])
    before, spare = shards.file.read_text(), shards.dsns["c"]

    def refused() -> str:
        result = shards.try_apply()
        assert (result.exit_code, result.stdout) == (1, "")
        assert shards.file.read_text() == before
        return result.stderr

    shards.want("a", "b", a=["zeta"], b=["acme"])
    said = refused()
    assert "keys would move from shard" in said
    assert "hint: Move them in two steps: first apply a map in which" in said
    Seen(shards.dsns["a"]).register()
    shards.dsns = {**shards.dsns, "c": shards.dsns["a"]}
    shards.want("a", "b", "c")
    assert "the database of shard 'c' is that of shard 'a' already" in refused()
    shards.dsns = {**shards.dsns, "c": make_conninfo(shards.dsns["a"], port=1)}
    shards.want("a", "b", "c")
    assert "cannot connect" in refused()
    shards.want("a", "b")
    shards.file.unlink()
    assert "shard 'a' has version 1 already, but there is no file" in shards.try_apply().stderr
    for name in "de":  # two ways to write one database
        shards.dsns = {**shards.dsns, name: make_conninfo(spare, application_name=name)}
    shards.want("d", "e")
    assert "the database of shard 'e' is that of shard 'd' already" in shards.try_apply().stderr
    with psycopg.connect(spare, autocommit=True) as conn:
        conn.execute("select pgq.drop_queue(%s, true)", [QUEUE])
    assert "the database of shard 'd' has no queue 'orders'" in shards.try_apply().stderr
    assert not shards.file.exists()
    assert shards.rows("a", "select * from pgq.get_shard_info()") == [(QUEUE, "a", 1, 0)]


def test_apply_without_a_wanted_map_says_what_to_write(shards: Shards) -> None:
    refused = shards.try_apply()
    assert f"there is no file {shards.wanted}: write the map that you want" in refused.stderr
    assert 'hint: A map has queue = "..." at the top and' in refused.stderr
    shards.wanted.write_text("queue = 'orders'\n[shards.a]\nhash = [0, 65536]")
    wrong = f"{shards.wanted}: shard 'a' has an unknown key 'hash': did you mean hashes?"
    assert wrong in shards.try_apply().stderr


def test_a_map_that_apply_has_not_written_is_not_overwritten(shards: Shards, cli: Cli) -> None:
    shards.apply("a", "b", a=["acme"])
    shards.apply("a", "b", b=["acme"])
    by_hand, written = shards.wanted.read_text(), shards.file.read_text()
    linked = shards.wanted.with_name("linked.toml")
    linked.symlink_to(shards.wanted)
    for file in (shards.wanted, linked):
        refused = cli("shards", "apply", str(shards.wanted), str(file))
        assert f"{file} is the map that is wanted, and would be overwritten" in refused.stderr
    shards.file.write_text(by_hand)
    shards.want("a", "b", a=["acme"])
    refused = shards.try_apply()
    assert "has shards without version: `pgqpy shards apply` has not written it" in refused.stderr
    assert "copy that of a producer or consumer" in refused.stderr
    assert shards.file.read_text() == by_hand
    shards.file.write_text(written)
    assert {each["problem"] for each in checked(cli, shards)} == {None}


def test_the_written_map_can_be_read_by_no_others_than_the_one_with_its_passwords(
    shards: Shards,
) -> None:
    shards.want("a", "b")
    shards.wanted.chmod(0o600)
    modes = []
    umask = os.umask(0)
    temporary = shards.file.with_name(f".{shards.file.name}.{os.getpid()}")
    temporary.touch()  # by another user, and kept open
    try:
        with temporary.open() as early:
            for mode in (None, 0o640):
                if mode:
                    shards.file.chmod(mode)
                assert shards.try_apply().exit_code == 0
                modes.append(shards.file.stat().st_mode & 0o777)
            assert early.read() == ""
    finally:
        os.umask(umask)
    assert modes == [0o600, 0o640]


def checked(cli: Cli, shards: Shards) -> Any:
    """What `pgqpy shards check` says of each shard."""
    return json.loads(cli("shards", "check", str(shards.file), "--json").stdout)


def test_whatever_names_are_like_the_written_map_is_read_again(shards: Shards) -> None:
    odd, queue = "\U0001f980 \\u007f \\u0001 50%", "\U0001f980"
    for name in shards.dsns:
        with shards.connect(name) as conn:
            Admin(conn).create_queue(queue)
            Admin(conn).force_tick(queue)
            Admin(conn).ticker(queue)
            Admin(conn).register_consumer(queue, "50% \x7f")
            Producer(queue).insert_event(conn, "t")
    for hashes, others in (([0, 32768], [32768, 65536]), ([0, 65536], []), ([0, 65536], None)):
        text = f'queue = "{queue}"\n'
        for name, dsn, has in (("a", shards.dsns["a"], hashes), (odd, shards.dsns["b"], others)):
            if has is not None:
                text += f'[shards."{name}"]\ndsn = {json.dumps(dsn)}\nhashes = {has}\n'
        shards.wanted.write_text(text)
        result = shards.try_apply()
        assert result.exit_code == 0, result.output
    assert len(shards.map.shards) == 2
    assert "not drained yet, it has events for 50% \\x7f;" in result.stdout


def test_keys_move_back_when_the_first_move_is_read_and_before_it_is_said_for_what_to_wait(
    shards: Shards,
) -> None:
    shards.apply("a", "b")
    Seen(shards.dsns["a"]).register()
    shards.apply("a", "b", "c")
    before = shards.file.read_text()
    shards.want("a", "b")
    refused = shards.try_apply()
    assert "would move back before all consumers have read them" in refused.stderr
    assert "hint: Apply again when" in refused.stderr
    assert shards.file.read_text() == before
    ShardedConsumer(Seen, str(shards.file)).run(until_empty=True)
    assert shards.try_apply().exit_code == 0


def test_a_shard_is_removed_when_no_events_are_left_and_before_it_is_said_for_which_consumers(
    shards: Shards,
) -> None:
    """Its consumers need not run while `apply` does."""
    shards.apply("a", "b", "c", c=["acme"])
    for kind in (Seen, CoopSeen, Grouped):
        kind(shards.dsns["c"]).register()
    send(shards, "c", "acme", 0)
    Grouped(shards.dsns["c"]).run(until_empty=True)
    assert "shard c: it loses all keys" in shards.apply("a", "b")
    left = "shard c: not drained yet, it has events for coop, seen; apply again later\n"
    assert left in shards.apply("a", "b")
    CoopSeen(shards.dsns["c"]).run(until_empty=True)
    with shards.connect("c") as conn:
        # Such events do not ask for the map.
        late = Producer(QUEUE).insert_event(conn, "t", "1", extra1="acme", delay=3600)
        ShardedConsumer(Seen, shards.file).run(until_empty=True)
        assert "events for later (1 delayed, or to be retried)" in shards.apply("a", "b")
        conn.execute("select pgq.cancel_event(%s, %s)", [QUEUE, late])
    shards.tick("c")
    assert "shard c: drained, and removed" in shards.apply("a", "b")
    assert [*shards.map.shards] == ["a", "b"]
    assert shards.count("c") == 3


def test_a_shard_is_not_removed_while_a_delayed_event_moves_into_its_queue(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards.apply("a", "b", "c", c=["acme"])
    Seen(shards.dsns["c"]).register()
    shards.apply("a", "b")
    get_group_info = GroupAdmin.get_group_info

    with shards.connect("c") as conn:
        Producer(QUEUE).insert_event(conn, "t", "1", extra1="acme", delay=3600)
        ShardedConsumer(Seen, shards.file).run(until_empty=True)

        def move_first(admin: GroupAdmin, *queue: str) -> Any:
            """Consumers have been asked, but not whether there are delayed events."""
            conn.execute("update pgq.delayed set due = now() - interval '1 hour'")
            conn.execute("select pgq.maint_delayed_events()")
            return get_group_info(admin, *queue)

        with monkeypatch.context() as patch:
            patch.setattr(GroupAdmin, "get_group_info", move_first)
            shards.apply("a", "b")
    assert "c" in shards.map.shards
    assert "for seen" in shards.apply("a", "b")


def test_members_that_cooperate_are_not_copied_and_idle_ones_hold_nothing_up(
    shards: Shards, cli: Cli
) -> None:
    shards.apply("a", "b", a=["acme"])
    with running(CoopSeen(shards.dsns["a"])), shards.connect("a") as conn:
        send(shards, "a", "acme", 0)
        wait_until(lambda: shards.count("a") == 1)
        shards.apply("a", "b", b=["acme"])
        with shards.connect("b") as other:
            names = [each.consumer_name for each in Admin(other).get_consumer_info(QUEUE)]
            assert names == ["coop"]
        tick = shards.map.shards["b"].after["a"]
        finished = "select pgq.has_finished(%s, 'coop', %s)"
        wait_until(lambda: conn.execute(finished, [QUEUE, tick]).fetchone() == (True,))
        idle = "select count(last_tick), count(*) from pgq.get_consumer_info(%s)"
        wait_until(lambda: conn.execute(idle, [QUEUE]).fetchone() == (1, 2))
        assert [each["waiting"] for each in checked(cli, shards)] == [[], []]
        shards.apply("a", "b", a=["acme"])


def test_apply_that_is_killed_can_be_run_again(shards: Shards, spawn: Spawn, cli: Cli) -> None:
    shards.apply("a", "b", a=["acme"])
    Seen(shards.dsns["a"]).register()
    send(shards, "a", "acme", 0)

    def state(name: str) -> dict[str, Any]:
        return next(each for each in checked(cli, shards) if each["shard"] == name)

    shards.want("a", "b", b=["acme"])
    apply = "shards", "apply", str(shards.wanted), str(shards.file)
    producer = Producer(QUEUE, shards=shards.file)
    # before the writers of a have ended
    with shards.connect("a") as late, late.transaction():
        producer.insert_event(late, "t", "1", extra1="acme", shard_key="acme")
        process = spawn(*apply)
        wait_until(lambda: state("a")["problem"])
        assert "the map has version 1, the database 2: apply again" in state("a")["problem"]
        process.kill()
        process.wait()
    with shards.connect("b") as conn, shards.connect("b", autocommit=False) as locked:
        # after the file was written
        locked.execute("select from pgq.shard for update")
        process = spawn(*apply)
        waiting: LiteralString = (
            "from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        )
        wait_until(lambda: conn.execute(f"select pid {waiting}".encode()).fetchall())
        process.kill()
        process.wait()
        # The server would go on with what the process has asked.
        conn.execute(f"select pg_terminate_backend(pid, 10000) {waiting}".encode())
    assert "the map has version 2, the database 1: apply again" in state("b")["problem"]
    with shards.connect("b", autocommit=False) as conn, pytest.raises(StaleShardMap):
        producer.insert_event(conn, "t", shard_key="acme")

    cli.ok(*apply)
    assert [state(name)["problem"] for name in "ab"] == [None, None]
    assert state("b")["waiting"] == ["seen"]
    send(shards, "b", "acme", 2)
    ShardedConsumer(Seen, shards.file).run(until_empty=True)
    assert shards.seen() == {"acme": [0, 1, 2]}
    assert cli.ok("shards", "check", str(shards.file)).count(" 50.0 %") == 2


def test_a_queue_is_split_over_shards_and_merged_again(
    shards: Shards, target: Connection, target_dsn: str, cli: Cli, tmp_path: Path
) -> None:
    """Also while a key moves: each event once, in the order of its key."""
    shards.apply("a", "b")
    for queue in ("all", "merged"):
        target.execute("select pgq.create_queue(%s)", [queue])
    keys = ["acme", "ann", "bob", "eve"]

    class ToShard(QueueMover):
        def convert(self, event: Event) -> NewEvent | None:
            owner = shards.map.shard_for(event.extra1 or "")
            return event.new() if self.consumer == f"split@{owner.name}" else None

    config = tmp_path / "merge.toml"
    config.write_text(f'queue = "{QUEUE}"\ntarget_dsn = "{target_dsn}"\ntarget_queue = "merged"\n')
    merge = ("run", "queue_mover", str(config), "--shards", str(shards.file), "--until-empty")

    def split(numbers: range) -> None:
        for number in numbers:
            for key in keys:
                Producer("all").insert_event(target, "t", str(number), extra1=key)
        ops.tick(target, "all")
        for name in ("a", "b"):
            mover = ToShard(
                target_dsn, target_dsn=shards.dsns[name], queue="all", consumer=f"split@{name}"
            )
            mover.start, mover.target_queue = "first", QUEUE
            mover.run(until_empty=True)
        shards.tick("a", "b")

    cli.ok(*merge)
    split(range(5))
    moved = [key for key in keys if shards.map.shard_for(key).name == "a"]
    assert 0 < len(moved) < len(keys)
    shards.apply("a", "b", b=moved)
    split(range(5, 10))
    cli.ok(*merge)
    found: dict[str, list[int]] = {key: [] for key in keys}
    for key, data in target.execute(
        "select ev_extra1, ev_data from pgq_queue.merged order by ev_id"
    ):
        found[key].append(int(data))
    assert found == {key: [*range(10)] for key in keys}
    with shards.connect("b") as conn:
        names = {each.consumer_name for each in Admin(conn).get_consumer_info(QUEUE)}
    assert names == {"queue_mover@b"}


def test_consumers_that_cannot_be_run_over_shards_are_refused(shards: Shards) -> None:
    shards.apply("a", "b")
    with pytest.raises(InvalidConsumer, match="no consumer that can be run over shards"):
        ShardedConsumer(AsyncSeen, shards.file)  # type: ignore[arg-type]
