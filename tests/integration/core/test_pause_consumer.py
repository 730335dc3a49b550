"""Paused consumers and groups: no batch is opened, nothing is lost, resuming wakes them."""

from __future__ import annotations

import pytest

from pgqpy import Admin, Consumer, Event
from pgqpy.connection import Connection as AnyConnection
from tests.fixtures import group_ops as groups
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import running, wait_until
from tests.fixtures.fix_db import Connection


@pytest.mark.smoke
def test_an_open_batch_is_finished_and_no_other_is_opened(conn: Connection, queue: str) -> None:
    admin = Admin(conn)
    admin.register_consumer(queue, "c")
    ops.insert_ticked(conn, queue, "a")
    batch = admin.next_batch(queue, "c")
    assert admin.pause_consumer(queue, "c")
    assert not admin.pause_consumer(queue, "c")
    [pause] = admin.get_paused_consumers(queue)
    assert (pause.queue_name, pause.consumer_name) == (queue, "c")
    ops.insert_ticked(conn, queue, "b")
    assert admin.next_batch(queue, "c") == batch
    assert batch is not None
    admin.finish_batch(batch)
    for _ in range(2):
        assert admin.next_batch(queue, "c") is None
        assert admin.next_batch_upto(queue, "c", 10) is None
    channel = ops.value(conn, "select pgq.tick_channel(%s)", queue)
    conn.execute(f"listen {channel}".encode())
    assert admin.resume_consumer(queue, "c")
    assert [each.channel for each in conn.notifies(timeout=10, stop_after=1)] == [channel]
    assert not admin.resume_consumer(queue, "c")
    assert admin.get_paused_consumers() == []
    assert (
        ops.value(
            conn, "select ev_data from pgq.get_batch_events(%s)", admin.next_batch(queue, "c")
        )
        == "b"
    )


def test_workers_that_share_a_consumers_events_have_its_pause(conn: Connection, queue: str) -> None:
    admin = Admin(conn)
    admin.register_consumer(queue, "c")
    ops.insert_ticked(conn, queue, "a")
    batch = ops.value(conn, "select pgq_coop.next_batch(%s, 'c', 'one')", queue)
    admin.pause_consumer(queue, "c")
    paused = [info.consumer_name for info in admin.get_paused_consumers()]
    assert paused == ["c", "c.one"]
    ops.insert_ticked(conn, queue, "b")
    again = "select pgq_coop.next_batch(%s, 'c', %s)"
    assert ops.value(conn, again, queue, "one") == batch
    assert ops.value(conn, again, queue, "two") is None
    taken_over = "select pgq_coop.next_batch(%s, 'c', 'three', '0 s')"
    assert ops.value(conn, taken_over, queue) == batch
    with ops.refused("PQ016", "shares|has its pause"):
        conn.execute("select pgq.pause_consumer(%s, 'c.three')", [queue])
    admin.resume_consumer(queue, "c")
    assert ops.value(conn, again, queue, "two") is not None


def test_a_group_is_paused_also_when_it_gets_more_partitions(conn: Connection, queue: str) -> None:
    groups.create(conn, queue, partitions=1)
    member = groups.join(conn, queue)
    insert = "select pgq.insert_event(%s, 't', 'd', 'key', null, null, null)"
    conn.execute(insert, [queue])
    ops.tick(conn, queue)
    batch = groups.must_take(conn, member)
    Admin(conn).pause_consumer(queue, groups.GROUP)
    conn.execute(insert, [queue])
    ops.tick(conn, queue)
    assert groups.must_take(conn, member) == batch
    [event] = [int(row[0]) for row in conn.execute(batch.sql.encode()).fetchall()]
    groups.fail(conn, batch, event)
    # A parked key is due, and waits as well.
    assert groups.take(conn, member, parked=True) is None
    parked = "select parked from pgq.next_group_batch(%s, 1000)"
    assert ops.value(conn, parked, member) is False
    with ops.refused("PQ038"):
        conn.execute("select pgq.pause_consumer(%s, %s)", [queue, f"{groups.GROUP}#0"])
    conn.execute("select pgq.resize_group(%s, %s, 2)", [queue, groups.GROUP])
    assert groups.take(conn, member) is None
    Admin(conn).resume_consumer(queue, groups.GROUP)
    assert ops.value(conn, parked, member) is True


@pytest.mark.parametrize("name", ["nothing", None])
def test_what_cannot_be_paused_is_named(conn: Connection, queue: str, name: str | None) -> None:
    for function in ("pause_consumer", "resume_consumer"):
        with ops.refused("PQ002"):
            conn.execute(f"select pgq.{function}(%s, %s)".encode(), [queue, name])
        with ops.refused("PQ001"):
            conn.execute(f"select pgq.{function}('nothing', %s)".encode(), [name])


def test_a_running_consumer_waits_and_goes_on(dsn: str, conn: Connection, queue: str) -> None:
    seen: list[str | None] = []

    class Reader(Consumer):
        consumer = "c"

        def process_event(self, conn: AnyConnection, event: Event) -> None:
            seen.append(event.data)

    reader = Reader(dsn, queue=queue)
    reader.register()
    Admin(conn).pause_consumer(queue, "c")
    ops.insert_ticked(conn, queue, "a")
    with running(reader):
        # One that runs has what wakes it for itself.
        assert not Reader(dsn, queue=queue).run_once()
        assert seen == []
        Admin(conn).resume_consumer(queue, "c")
        wait_until(lambda: seen == ["a"])
