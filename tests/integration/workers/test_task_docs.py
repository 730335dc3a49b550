"""The SQL on the pages about tasks runs as it stands there."""

from __future__ import annotations

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops as tasks
from tests.fixtures.fix_db import Connection
from tests.fixtures.pages import blocks, text_of


def sql_of(page: str) -> list[str]:
    found = blocks(text_of(page), "sql")
    assert found
    return found


def test_what_the_page_about_changes_shows_works(conn: Connection) -> None:
    for block in sql_of("tasks-modify.md"):
        conn.execute(block.encode())
    # the one that failed is back, the one of the second claim is claimed
    found = tasks.rows(conn, "select queue, payload, error from pgq_task.tasks where error <> ''")
    assert found == [{"queue": "mails", "payload": {"to": "unknown"}, "error": "no such address"}]
    info = tasks.rows(conn, "select * from pgq_task.get_queue_info('mails')")
    assert (info[0]["max_attempts"], info[0]["error_queue"]) == (5, "dead mails")


@pytest.fixture
def roles(conn: Connection) -> object:
    conn.execute("create role web_shop; create role payment_worker")
    yield
    conn.execute("drop owned by web_shop, payment_worker; drop role web_shop, payment_worker")


@pytest.mark.usefixtures("roles")
def test_what_the_page_about_permissions_shows_works(conn: Connection) -> None:
    for block in sql_of("permissions.md"):
        conn.execute(block.encode())
    assert ops.value(conn, "select count(*) from pgq_task.get_queue_grants('payments')") == 2
    assert ops.value(conn, "select count(*) from pgq.get_queue_grants('orders')") == 2
