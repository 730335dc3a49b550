"""The time from which a task is available, however it is given: the past is now, far is far."""

from __future__ import annotations

from typing import LiteralString

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops as tasks
from tests.fixtures.fix_db import Connection

Q = "mails"
WAYS: dict[str, LiteralString] = {
    "push": "select pgq_task.push('mails', '1', at => %(at)s::timestamptz)",
    "push with a key": "select pgq_task.push('mails', '1', at => %(at)s, unique_key => 'k')",
    "push_many": "select pgq_task.push_many('mails', array['1'::jsonb], at => %(at)s)",
    "modify": "select id from pgq_task.modify('w', jsonb_build_array(jsonb_build_object("
    " 'queue', 'mails', 'at', %(at)s::text)))",
    "change": "select id from pgq_task.modify('w', changes => jsonb_build_array("
    " jsonb_build_object('id', pgq_task.push('mails', '1', delay => '1 hour'),"
    " 'version', 1, 'at', %(at)s::text)))",
    "change_tasks": "select pgq_task.change_tasks('mails', '{}', jsonb_build_object("
    " 'at', %(at)s::text))",
}


@pytest.fixture(autouse=True)
def task_queue(conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue(%s)", [Q])


def put(conn: Connection, way: str, at: str) -> None:
    if way == "change_tasks":
        tasks.push(conn, Q, delay="1 hour")
    conn.execute(WAYS[way], {"at": at})


@pytest.mark.one_database
@pytest.mark.parametrize("way", WAYS)
def test_a_time_in_the_past_is_now(conn: Connection, way: str) -> None:
    for at in ("2020-01-01", "0044-03-15 BC", "-infinity"):
        put(conn, way, at)
        assert len(tasks.claim(conn, Q)) == 1


@pytest.mark.one_database
@pytest.mark.parametrize("way", WAYS)
def test_a_time_far_in_the_future_is_kept(conn: Connection, way: str) -> None:
    for at, shown in (
        ("2350-01-01 00:00Z", "2350-01-01 00:00Z"),
        ("9999-12-31", "2500-01-01 00:00Z"),
    ):
        put(conn, way, at)
        assert tasks.claim(conn, Q) == []
        scheduled = "select at = %s::timestamptz from pgq_task.tasks where status = 'scheduled'"
        assert ops.value(conn, scheduled, shown)
        # and it can be changed back
        back = "select pgq_task.change_tasks('mails', '{}', '{\"delay\": \"0\"}')"
        assert ops.value(conn, back) == 1
        tasks.finish(conn, *tasks.claim(conn, Q))
    assert tasks.statuses(conn) == {}


def test_infinity_is_no_time(conn: Connection) -> None:
    for way in WAYS:
        with ops.refused("PQ072") as caught:
            put(conn, way, "infinity")
        assert "pgq_task.stop" in (caught.value.diag.message_hint or "")
