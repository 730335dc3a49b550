"""The Django and FastAPI examples, run as their texts say and asked over HTTP."""

from __future__ import annotations

import sys

import pytest

from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_example import EXAMPLES, SPARK_PATIENCE, Program, Run
from tests.fixtures.fix_ticker import StartTicker, eventually
from tests.fixtures.fix_web import accepts, ask, free_port

pytestmark = pytest.mark.slow


class Manage:
    """``manage("migrate")`` starts a command of the Django project."""

    def __init__(self, run: Run, dsn: str) -> None:
        self._run = run
        self._environment = {"PGQPY_DSN": dsn, "PYTHONWARNINGS": "error"}

    def __call__(self, *command: str) -> Program:
        manage = str(EXAMPLES / "django_app" / "manage.py")
        return self._run(sys.executable, manage, *command, environment=self._environment)


@pytest.fixture
def manage(run: Run, dsn: str) -> Manage:
    return Manage(run, dsn)


def only_order_placed(conn: Connection) -> bool:
    """Whether the order for a book is the only event."""
    events = conn.execute("select ev_type, ev_data from pgq.event_template").fetchall()
    return [(kind, '"book"' in data) for kind, data in events] == [("order.placed", True)]


def test_django_confirms_an_order_by_the_consumer_and_a_refused_one_leaves_no_event(
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
    assert only_order_placed(conn)
    assert conn.execute("select count(*) from shop_order").fetchall() == [(1,)]


def test_the_migrations_of_django_go_back(manage: Manage, conn: Connection) -> None:
    queues = "select queue_name from pgq.queue"
    for _ in range(2):
        manage("migrate").finish(SPARK_PATIENCE)
        assert conn.execute(queues).fetchall() == [("orders",)]
        manage("migrate", "shop", "zero").finish(SPARK_PATIENCE)
        assert conn.execute(queues).fetchall() == []
    manage("makemigrations", "--check", "--dry-run").finish(SPARK_PATIENCE)


def serve(run: Run, dsn: str) -> tuple[Program, str]:
    """Serve the FastAPI example; the program and its address."""
    app = ("--app-dir", str(EXAMPLES), "--port", "0", "fastapi_app:app")
    program = run(sys.executable, "-m", "uvicorn", *app, environment={"PGQPY_DSN": dsn})
    said = program.hear("Uvicorn running on", SPARK_PATIENCE)
    return program, said.partition("running on ")[2].partition(" ")[0]


def test_fastapi_confirms_an_order_though_it_was_down_and_a_refused_one_leaves_no_event(
    run: Run, dsn: str, conn: Connection, start_ticker: StartTicker
) -> None:
    program, url = serve(run, dsn)
    status, order = ask(f"{url}/orders", {"item": "book"})  # no ticker yet: it is not confirmed
    assert (status, order["confirmed"]) == (201, False)
    assert ask(f"{url}/orders", {"item": ""})[0] == 422
    program.kill()
    start_ticker(dsn).hear("leading")
    program, url = serve(run, dsn)
    confirmed = "select confirmed from web_order where id = %s"
    eventually(conn, confirmed, order["id"], patience=SPARK_PATIENCE)
    assert ask(f"{url}/orders/{order['id']}") == (200, order | {"confirmed": True})
    assert ask(f"{url}/orders/4711")[0] == 404
    assert only_order_placed(conn)
    assert conn.execute("select count(*) from web_order").fetchall() == [(1,)]
    program.terminate()
    program.hear("Application shutdown complete.")
    assert not [line for line in program.lines if "ERROR" in line or "Traceback" in line]
