"""The Django example, run as its text says and asked over HTTP."""

from __future__ import annotations

import sys

import pytest

from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_example import EXAMPLES, SPARK_PATIENCE, Program, Run
from tests.fixtures.fix_ticker import StartTicker, eventually
from tests.fixtures.fix_web import accepts, ask, free_port

pytestmark = pytest.mark.slow


class Manage:
    """``manage("migrate")`` starts a command of the project."""

    def __init__(self, run: Run, dsn: str) -> None:
        self._run = run
        self._environment = {"PGQPY_DSN": dsn, "PYTHONWARNINGS": "error"}

    def __call__(self, *command: str) -> Program:
        manage = str(EXAMPLES / "django_app" / "manage.py")
        return self._run(sys.executable, manage, *command, environment=self._environment)


@pytest.fixture
def manage(run: Run, dsn: str) -> Manage:
    return Manage(run, dsn)


def test_an_order_is_confirmed_by_the_consumer_and_a_refused_one_leaves_no_event(
    manage: Manage, dsn: str, conn: Connection, start_ticker: StartTicker
) -> None:
    start_ticker(dsn).hear("leading")
    manage("migrate").finish(SPARK_PATIENCE)
    port = free_port()
    manage("runserver", "--noreload", str(port))
    accepts(port, SPARK_PATIENCE)
    url = f"http://127.0.0.1:{port}/orders"
    status, placed = ask(url, {"item": "book"})
    assert status == 201
    assert ask(f"{url}/{placed['id']}") == (200, placed | {"item": "book", "confirmed": False})
    assert ask(url, {"item": ""})[0] == 422
    assert ask(url, {})[0] == 400
    # Placed before the consumer is there for the first time, and not lost.
    consumer = manage("confirm_orders")
    confirmed = "select confirmed from shop_order where id = %s"
    eventually(conn, confirmed, placed["id"], patience=SPARK_PATIENCE)
    assert ask(f"{url}/{placed['id']}")[1]["confirmed"] is True
    assert consumer.terminate() == 0
    events = conn.execute("select ev_type, ev_data from pgq.event_template").fetchall()
    assert [(kind, '"book"' in data) for kind, data in events] == [("order.placed", True)]
    assert conn.execute("select count(*) from shop_order").fetchall() == [(1,)]


def test_its_migrations_go_back(manage: Manage, conn: Connection) -> None:
    for _ in range(2):
        manage("migrate").finish(SPARK_PATIENCE)
        assert conn.execute("select queue_name from pgq.queue").fetchall() == [("orders",)]
        manage("migrate", "shop", "zero").finish(SPARK_PATIENCE)
        assert conn.execute("select queue_name from pgq.queue").fetchall() == []
    manage("makemigrations", "--check", "--dry-run").finish(SPARK_PATIENCE)
