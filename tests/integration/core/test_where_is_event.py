"""pgq.where_is_event(2): what it says of an event is what happens to it.

Random histories are in tests/property; here are the states that have to be made one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import LiteralString

import pytest

import pgqpy
from pgqpy import Admin, EventPlace
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_db import Connect, Connection, with_snapshot

pytestmark = pytest.mark.any_pg

Where = Callable[[int], dict[str | None, EventPlace]]


@pytest.fixture
def where(conn: Connection, queue: str) -> Where:
    """Where an event is, for each consumer."""
    return lambda event: {p.consumer: p for p in Admin(conn).where_is_event(queue, event)}


def states(places: dict[str | None, EventPlace]) -> dict[str | None, str]:
    return {name: place.state for name, place in places.items()}


def test_an_event_goes_its_way(conn: Connection, queue: str, where: Where) -> None:
    ops.register(conn, queue, "c")
    event = ops.insert(conn, queue, "x")
    assert states(where(event)) == {None: "stored", "c": "no tick yet"}
    ops.tick(conn, queue)
    place = where(event)["c"]
    assert (place.state, place.events, place.ticks, place.attempt) == ("not read", 1, 1, 1)

    batch = ops.next_batch(conn, queue, "c")
    conn.execute("select pgq.note_failure(%s, 'no such table')", [batch])
    place = where(event)["c"]
    opened = "select sub_active from pgq.subscription"
    assert (place.state, place.batch_id, place.reason) == ("in batch", batch, "no such table")
    assert place.since == ops.value(conn, opened)
    conn.execute("select pgq.event_retry(%s, %s, 3600)", [batch, event])
    assert where(event)["c"].state == "in batch"
    ops.finish(conn, batch)
    place = where(event)["c"]
    assert (place.state, place.attempt) == ("retry", 2)
    assert place.due == ops.value(conn, "select ev_retry_after from pgq.retry_queue")

    conn.execute("update pgq.retry_queue set ev_retry_after = now()")
    ops.value(conn, "select pgq.maint_retry_events()")
    assert where(event)["c"].state == "no tick yet"
    batch = ops.open_batch(conn, queue, "c")
    dead: LiteralString = "select pgq.event_dead_letter(%s, %s, 'hopeless')"
    conn.execute(dead, [batch, event])
    ops.finish(conn, batch)
    place = where(event)["c"]
    assert (place.state, place.attempt, place.reason) == ("dead letter", 2, "hopeless")
    conn.execute("select pgq.replay_dead_letters(array(select dl_id from pgq.dead_letter))")
    place = where(event)["c"]
    assert (place.state, place.attempt, place.reason) == ("retry", 1, "replayed")
    ops.value(conn, "select pgq.maint_retry_events()")
    assert where(event)["c"].reason == "replayed"
    assert ops.deliver(conn, queue, "c") == ["x"]
    assert states(where(event)) == {None: "stored", "c": "done"}


def test_ids_are_not_the_order_of_delivery(
    conn: Connection, connect: Connect, queue: str, where: Where
) -> None:
    ops.register(conn, queue, "c")
    late, lost = with_snapshot(connect), with_snapshot(connect)
    first, gone = ops.insert(late, queue, "first"), ops.insert(lost, queue, "gone")
    second = ops.insert(conn, queue, "second")
    assert ops.deliver(conn, queue, "c") == ["second"]
    ops.deliver(conn, queue, "c")
    assert states(where(first)) == states(where(gone)) == {None: "not committed"}
    assert states(where(second)) == {None: "stored", "c": "done"}
    late.commit()
    lost.rollback()
    assert states(where(first)) == {None: "stored", "c": "no tick yet"}
    assert states(where(gone)) == states(where(10**9)) == {None: "absent"}
    ops.tick(conn, queue)
    # A consumer that begins now will never read it, however old its id makes it look.
    ops.register(conn, queue, "new")
    assert states(where(first)) == {None: "stored", "c": "not read", "new": "registered later"}
    assert ops.drain(conn, queue, "c") == ["first"]
    assert where(first)["c"].state == "done"


def test_moved_consumers_skip_and_read_again(conn: Connection, queue: str, where: Where) -> None:
    ops.register(conn, queue, "c")
    seen, start = ops.insert(conn, queue, "seen"), ops.tick(conn, queue)
    ops.drain(conn, queue, "c")
    skipped = ops.insert(conn, queue, "skipped")
    end = ops.tick(conn, queue)

    def move(tick: int) -> list[str]:
        conn.execute("select pgq.register_consumer_at(%s, 'c', %s)", [queue, tick])
        return [where(event)["c"].state for event in (seen, skipped)]

    assert move(end) == ["done", "skipped"]
    assert move(start - 1) == ["not read", "not read"]
    # It has read the first one once.
    assert move(end) == ["done", "skipped"]
    move(start)
    assert ops.drain(conn, queue, "c") == ["skipped"]
    assert move(end) == ["done", "done"]


def test_delayed_events_and_those_that_are_not_kept(
    conn: Connection, queue: str, where: Where
) -> None:
    ops.rotate_whenever_asked(conn, queue)
    ops.register(conn, queue, "c")
    at: LiteralString = "select pgq.insert_event_at(%s, now() + '1 hour', 't', 'x')"
    delayed, cancelled = (ops.value(conn, at, queue) for _ in range(2))
    assert ops.value(conn, "select pgq.cancel_event(%s, %s)", queue, cancelled)
    due = ops.value(conn, "select due from pgq.get_delayed_events(%s)", queue)
    assert [(p.consumer, p.state, p.due) for p in where(delayed).values()] == [
        (None, "delayed", due)
    ]
    event = ops.insert(conn, queue, "x")
    retried = ops.insert(conn, queue, "y")
    batch = ops.open_batch(conn, queue, "c")
    conn.execute("select pgq.event_retry(%s, %s, 3600)", [batch, retried])
    ops.finish(conn, batch)
    ops.deliver(conn, queue, "c")
    assert states(where(cancelled)) == {None: "absent"}
    # Its time comes: the copy in the queue is found far from where its id was drawn.
    conn.execute("update pgq.delayed set due = now() where ev_id = %s", [delayed])
    ops.value(conn, "select pgq.maint_delayed_events()")
    assert states(where(delayed)) == {None: "stored", "c": "no tick yet"}
    ops.rotate_idle(conn, queue, "c", 4)
    assert states(where(event)) == {None: "not kept", "c": "unknown"}
    assert states(where(retried)) == {None: "not kept", "c": "retry"}


def test_of_workers_that_share_a_position_it_names_the_one(
    conn: Connection, queue: str, where: Where
) -> None:
    ops.register(conn, queue, "c")
    batches, events = [], []
    for member in "ab":
        events.append(ops.insert(conn, queue, member))
        ops.tick(conn, queue)
        batches.append(ops.value(conn, "select pgq_coop.next_batch(%s, 'c', %s)", queue, member))
    held = [(p.worker, p.state, p.batch_id) for p in (where(event)["c"] for event in events)]
    assert held == [("a", "in batch", batches[0]), ("b", "in batch", batches[1])]
    conn.execute("select pgq_coop.finish_batch(%s)", [batches[1]])
    assert [where(event)["c"].state for event in events] == ["in batch", "done"]
    assert where(events[1])["c"].worker is None
    conn.execute("select pgq_coop.unregister_subconsumer(%s, 'c', 'a', 1)", [queue])
    assert [where(event)["c"].state for event in events] == ["skipped", "done"]


def test_of_a_group_the_partition_of_the_key_decides(
    conn: Connection, queue: str, where: Where
) -> None:
    # A consumer of the same name is another one.
    ops.register(conn, queue, "g")
    conn.execute("select pgq.create_group(%s, 'g', 4, 'ev_data')", [queue])
    member = ops.value(conn, "select member_id from pgq.join_group(%s, 'g', 'w')", queue)
    keys = ("a", "b", "a")
    first, other, behind = (ops.insert(conn, queue, key) for key in keys)
    ops.tick(conn, queue)

    def places(event: int) -> list[tuple[int | None, str]]:
        found = Admin(conn).where_is_event(queue, event)
        return sorted(
            ((p.partition, p.state) for p in found if p.consumer == "g"),
            key=lambda place: place[0] is None,
        )

    parts = [ops.value(conn, "select pgq.key_partition(%s, 4)", key) for key in keys]
    assert places(other) == [(parts[1], "not read"), (None, "not read")]
    for _ in range(2):
        part, batch, generation = conn.execute(
            "select partition, batch_id, generation from pgq.next_group_batch(%s, null)", [member]
        ).fetchall()[0]
        mine = first if part == parts[0] else other
        assert places(mine)[0] == (part, "in batch")
        failed = [first] if part == parts[0] else []
        conn.execute(
            "select pgq.finish_group_batch(%s, %s, %s, %s, %s)",
            [batch, generation, failed, ["no room"][: len(failed)], ["1 hour"][: len(failed)]],
        )
    assert places(other)[0] == (parts[1], "done")
    group = [
        (p.worker, p.state, p.attempt, p.reason, p.due is None)
        for event in (first, behind)
        for p in Admin(conn).where_is_event(queue, event)
        if p.partition is not None
    ]
    assert group == [
        ("w", "parked", 2, "no room", False),
        ("w", "parked", 1, f"behind event {first}: no room", False),
    ]
    conn.execute("select pgq.give_up_parked(%s, 'g', 'a')", [queue])
    assert places(first)[0] == (parts[0], "dead letter")
    conn.execute("select pgq.resize_group(%s, 'g', 1)", [queue])
    conn.execute("select pgq.next_group_batch(%s, null, i_parked => false)", [member])
    assert places(other)[0] == (0, "done")


def test_an_old_snapshot_is_refused_not_believed(
    conn: Connection, connect: Connect, queue: str
) -> None:
    ops.register(conn, queue, "c")
    event = ops.insert(conn, queue, "x")
    ops.tick(conn, queue)
    old = with_snapshot(connect)
    old.execute("select count(*) from pgq.tick")
    ops.rotate_logs(conn)
    with pytest.raises(pgqpy.errors.RetryTransaction):
        Admin(old).where_is_event(queue, event)


def test_a_recent_event_is_found_by_index(conn: Connection, queue: str, where: Where) -> None:
    ops.register(conn, queue, "c")
    for _ in range(20):
        conn.execute("select pgq.insert_event(%s, 't', 'x') from generate_series(1, 500)", [queue])
        event = ops.insert(conn, queue, "x")
        ops.deliver(conn, queue, "c")
    conn.execute("analyze pgq.event")
    name = ops.value(conn, "select current_event_table from pgq.current_event_table(%s)", queue)
    scans: LiteralString = "select seq_scan from pg_stat_xact_all_tables where relid = %s::regclass"
    with conn.transaction():
        before = ops.value(conn, scans, name)
        assert states(where(event)) == {None: "stored", "c": "done"}
        assert ops.value(conn, scans, name) == before
        where(10**6)
        assert ops.value(conn, scans, name) > before


def test_asyncio_and_the_command_say_the_same(cli: Cli, conn: Connection, queue: str) -> None:
    for name in ("billing", "report"):
        ops.register(conn, queue, name)
    event = ops.insert(conn, queue, '{"order": {"id": 4711}}')
    ops.deliver(conn, queue, "billing")

    async def ask() -> list[EventPlace]:
        async with await pgqpy.async_connect(cli.dsn) as connection:
            return await pgqpy.AsyncAdmin(connection).where_is_event(queue, event)

    assert asyncio.run(ask()) == Admin(conn).where_is_event(queue, event)
    shown = cli.ok("event", "where", queue, str(event)).splitlines()
    assert shown[0].startswith(f"event {event} of {queue}: stored, inserted at 2")
    table = [" ".join(line.split()) for line in shown[4:]]
    assert table == ["billing done - -", "report not read - 1 event, 1 tick to go"]
    said = cli.json("event", "where", queue, str(event))
    assert [(each["consumer"], each["state"]) for each in said] == [
        (None, "stored"),
        ("billing", "done"),
        ("report", "not read"),
    ]
    assert "absent" in str(cli.json("event", "where", queue, "99"))
    assert "never inserted" in cli.ok("event", "where", queue, "99")
    assert "does not exist" in cli.fails("event", "where", "nosuch", "1")
    cli.fails("event", "where", queue, "x", exit_code=2)


def test_a_failing_key_of_a_group_raises_nothing(
    conn: Connection, queue: str, where: Where
) -> None:
    """A key for which the expression fails is that of the event alone."""
    key = "(ev_data::jsonb ->> 'id')"
    conn.execute("select pgq.create_group(%s, 'g', 2, %s)", [queue, key])
    event = ops.insert(conn, queue, "no JSON")
    assert where(event)["g"].state == "no tick yet"
