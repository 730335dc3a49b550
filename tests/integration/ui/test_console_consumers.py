"""The console's consumers and groups: how far they are, moved, unregistered, resized."""

from __future__ import annotations

import re
from datetime import UTC

import pytest

import pgqpy
from pgqpy.admin import Admin, GroupAdmin
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_console import OWNER, Client, get, post
from tests.fixtures.fix_db import Connect, Connection


@pytest.fixture
def page(conn: Connection, queue: str) -> str:
    """The page of a consumer that has read two of three events."""
    Admin(conn).register_consumer(queue, "billing")
    for data in "abc":
        ops.insert_ticked(conn, queue, data)
    for _ in range(2):
        batch = Admin(conn).next_batch(queue, "billing")
        assert batch is not None
        Admin(conn).finish_batch(batch)
    return f"/consumer?queue={queue}&name=billing"


def at(conn: Connection) -> int:
    """The position of the consumer."""
    [info] = Admin(conn).get_consumer_info()
    assert info.last_tick is not None
    return info.last_tick


def test_a_consumer_is_shown_with_what_it_has_not_read(
    conn: Connection, queue: str, client: Client, page: str
) -> None:
    # Also those that came after the last tick, as on its own page.
    conn.execute("select pgq.insert_event(%s, 'a', 'b')", [queue])
    listed = get(client, "/consumers")
    unread = ops.value(conn, "select pending_events + 1 from pgq.get_consumer_info()")
    assert f'<td class="n">{unread}</td>' in listed
    assert f"/consumer?queue={queue}&amp;name=billing" in listed
    assert "billing" not in get(client, "/consumers?text=nothing")
    assert "billing" not in get(client, "/consumers?state=stuck")
    shown = get(client, page)
    assert "% of the time that is kept has been read" in shown
    assert "What it has not read" in shown
    for wrong in (f"/consumer?queue={queue}&name=x", "/consumer?queue=x&name=billing"):
        get(client, wrong, status=404)


@pytest.mark.parametrize("kind", [pgqpy.Consumer, pgqpy.GroupConsumer])
def test_a_consumer_that_fails_is_shown_with_error_and_traceback(
    conn: Connection, dsn: str, queue: str, client: Client, kind: type[pgqpy.Consumer]
) -> None:
    class Billing(kind):  # type: ignore[valid-type, misc]
        consumer = "billing"
        partitions, key = 1, "ev_type"

        def process_batch(self, conn: pgqpy.Connection, batch: pgqpy.Batch) -> None:
            raise ValueError("no <b>such</b> order")

    failing = Billing(dsn, queue=queue)
    failing.run(until_empty=True)
    ops.insert_ticked(conn, queue, "a")
    with pytest.raises(ValueError, match="such"):
        failing.run_once()
    shown = get(client, f"/consumer?queue={queue}&name=billing")
    assert "has failed 1 time" in shown
    error = "ValueError: no &lt;b&gt;such&lt;/b&gt; order</bdi></pre>"
    assert shown.count(error) == 2
    before, _, traceback = shown.partition("<details><summary>Traceback</summary>")
    assert error in before
    assert "in process_batch\n    raise ValueError(&#34;no &lt;b&gt;such" in traceback
    assert "<b>such" not in shown


def test_what_a_consumer_has_not_read_is_what_it_will_get(
    conn: Connection, queue: str, client: Client, page: str, connect: Connect
) -> None:
    unread = f"/events?name={queue}&unread=billing"
    assert unread.replace("&", "&amp;") in get(client, page)
    with connect(autocommit=False) as late:
        # An older event than those that are read before it, and than the position.
        number = ops.insert(late, queue, "late")
        ops.insert_ticked(conn, queue, "early")
        while (batch := Admin(conn).next_batch(queue, "billing")) is not None:
            Admin(conn).finish_batch(batch)
        assert "No such events" in get(client, unread)
        late.commit()
    ops.tick(conn, queue)
    shown = get(client, unread)
    assert re.findall(r";id=(\d+)", shown) == [str(number)]
    assert "1 event, the first that billing has not read" in shown
    assert "No such events" in get(client, f"{unread}&type=other")
    get(client, f"/events?name={queue}&unread=unknown", status=404)


def test_the_sessions_of_a_consumer_are_shown_with_and_without_a_batch(
    conn: Connection, queue: str, client: Client, page: str, connect: Connect
) -> None:
    assert "No session has its name" in get(client, page)
    idle = connect(application_name="pgqpy billing")
    connect(application_name="pgqpy billing 2")
    connect(application_name="pgqpy billing2 0.1.0")
    told = f"is connected: session {idle.info.backend_pid} of role"
    assert get(client, page).count("is connected: session") == 1
    batch = Admin(conn).next_batch(queue, "billing")
    busy = connect(application_name=f"pgqpy batch {batch}, 2 s: billing")
    shown = get(client, page)
    assert f"Batch {batch} is with process {busy.info.backend_pid} of role" in shown
    assert told in shown


@pytest.mark.parametrize("name", ["billing", "b" * 63])
def test_the_session_of_a_consumer_that_runs_is_shown_with_its_version_if_the_name_has_room(
    conn: Connection, dsn: str, queue: str, client: Client, name: str
) -> None:
    shown = []

    class Billing(pgqpy.Consumer):
        consumer = name

        def process_batch(self, conn: pgqpy.Connection, batch: pgqpy.Batch) -> None:
            page = get(client, f"/consumer?queue={queue}&name={name}")
            shown.append(page.partition(f"session {conn.info.backend_pid} of role")[2])

    consumer = Billing(dsn, queue=queue)
    consumer.register()
    ops.insert_ticked(conn, queue, "a")
    assert consumer.run_once()
    version = f", pgqpy {pgqpy.__version__}, since" if name == "billing" else "</bdi>, since"
    assert version in shown[0].partition("</p>")[0]


def test_a_consumer_is_moved_after_a_preview(
    conn: Connection, queue: str, client: Client, page: str
) -> None:
    before = at(conn)
    position = ops.value(conn, "select tick_time from pgq.tick where tick_id = %s", before)
    prefilled = position.astimezone(UTC).isoformat(timespec="seconds")[:19]
    assert f'name="to" value="{prefilled}' in get(client, page)
    for to, told in {
        "first": "reads again 2 events",
        "now": "skips 1 event",
        "2020-01-01": "they were rotated away|oldest|kept",
        "tomorrow": "is no place in a queue",
        "2100-01-01 00:00": "is not at",
    }.items():
        shown = get(client, f"{page}&to={to}")
        assert any(each in shown for each in told.split("|")), to
    assert at(conn) == before
    assert "2 events, from <time" in get(client, f"{page}&to=first")
    moved = post(client, f"{page}&to=first", OWNER, action="seek", to="first", **{"from": "0"})
    assert moved.status_code == 409
    assert at(conn) == before
    given = {"action": "seek", "to": "first", "from": str(before)}
    assert post(client, f"{page}&to=first", OWNER, **given).status_code == 303
    assert at(conn) < before


def test_a_consumer_and_a_group_are_paused_and_resumed(
    conn: Connection, queue: str, client: Client, page: str
) -> None:
    GroupAdmin(conn).create_group(queue, "mailing", partitions=2, key="ev_extra1")
    for each in (page, f"/consumer?queue={queue}&name=mailing"):
        assert "Paused since" not in get(client, each)
        assert post(client, each, OWNER, action="pause").status_code == 303
        assert "Paused since" in get(client, each)
    paused = [info.consumer_name for info in Admin(conn).get_paused_consumers(queue)]
    assert paused == ["billing", "mailing#0", "mailing#1"]
    assert ">paused<" in get(client, "/consumers")
    for each in (page, f"/consumer?queue={queue}&name=mailing"):
        assert post(client, each, OWNER, action="resume").status_code == 303
        assert "Paused since" not in get(client, each)
    assert Admin(conn).get_paused_consumers() == []


def test_of_a_parked_event_without_a_key_no_key_is_shown_but_its_id(
    conn: Connection, dsn: str, queue: str, client: Client
) -> None:
    class Mailing(pgqpy.GroupConsumer):
        consumer = "mailing"
        retry_policy = pgqpy.FixedDelay(0, attempts=1)

        def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
            raise ValueError("bad")

    Mailing(dsn, queue=queue).register()
    number = ops.insert(conn, queue, "a")
    pgqpy.Producer(queue).insert_event(conn, "t", "d", extra1="ann")
    ops.tick(conn, queue)
    Mailing(dsn, queue=queue).run(until_empty=True)
    page = f"/consumer?queue={queue}&name=mailing"
    keys = re.findall(
        r'<th scope="row">([^<]*)<(?:bdi|a href="/event)[^>]*>([^<]*)', get(client, page)
    )
    assert keys == [("– (", f"event {number}"), ("", "ann")]
    assert post(client, page, OWNER, action="unpark", key=str(number)).status_code == 303


def test_a_consumer_is_unregistered_by_typing_its_name(
    conn: Connection, client: Client, page: str
) -> None:
    assert post(client, page, OWNER, action="unregister", confirm="x").status_code == 409
    assert "loses 1 events" in get(client, page)
    assert post(client, page, OWNER, action="unregister", confirm="billing").status_code == 303
    assert Admin(conn).get_consumer_info() == []


def test_a_group_is_shown_by_partition_resized_and_dropped(
    conn: Connection, queue: str, client: Client
) -> None:
    GroupAdmin(conn).create_group(queue, "mailing", partitions=2, key="ev_extra1")
    page = f"/consumer?queue={queue}&name=mailing"
    assert "name=mailing" in get(client, "/consumers")
    for each in (page, f"{page}%230"):
        shown = get(client, each)
        assert "group of" in shown
        assert "mailing#0" not in shown
        assert "Move it" not in shown
    assert post(client, page, OWNER, action="resize", partitions="x").status_code == 409
    assert post(client, page, OWNER, action="resize", partitions="3").status_code == 303
    [group] = GroupAdmin(conn).get_group_info(queue)
    assert group.partitions == 3
    assert post(client, page, OWNER, action="unpark", key="x").status_code == 409
    assert post(client, page, OWNER, action="unregister", confirm="mailing").status_code == 303
    assert GroupAdmin(conn).get_group_info(queue) == []
