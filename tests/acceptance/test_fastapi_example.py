"""The FastAPI example, served by uvicorn and asked over HTTP."""

from __future__ import annotations

import sys

import pytest

from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_example import EXAMPLES, SPARK_PATIENCE, Program, Run
from tests.fixtures.fix_ticker import StartTicker, eventually
from tests.fixtures.fix_web import ask

pytestmark = pytest.mark.slow

SERVE = ("-m", "uvicorn", "--app-dir", str(EXAMPLES), "--port", "0", "fastapi_app:app")


CONFIRMED = "select confirmed from web_order where id = %s"


def serve(run: Run, dsn: str) -> tuple[Program, str]:
    program = run(sys.executable, *SERVE, environment={"PGQPY_DSN": dsn})
    said = program.hear("Uvicorn running on", SPARK_PATIENCE)
    return program, said.partition("running on ")[2].partition(" ")[0]


def test_an_order_is_confirmed_by_the_consumer_and_a_refused_one_leaves_no_event(
    run: Run, dsn: str, conn: Connection, start_ticker: StartTicker
) -> None:
    start_ticker(dsn).hear("leading")
    program, url = serve(run, dsn)
    status, order = ask(f"{url}/orders", {"item": "book"})
    assert (status, order["confirmed"]) == (201, False)
    assert ask(f"{url}/orders", {"item": ""})[0] == 422
    eventually(conn, CONFIRMED, order["id"], patience=SPARK_PATIENCE)
    assert ask(f"{url}/orders/{order['id']}") == (200, order | {"confirmed": True})
    assert ask(f"{url}/orders/4711")[0] == 404
    events = conn.execute("select ev_type, ev_data from pgq.event_template").fetchall()
    assert [(kind, '"book"' in data) for kind, data in events] == [("order.placed", True)]
    assert conn.execute("select count(*) from web_order").fetchall() == [(1,)]
    program.terminate()
    assert "Application shutdown complete." in " ".join(program.lines)
    assert not [line for line in program.lines if "ERROR" in line or "Traceback" in line]


def test_events_wait_while_the_application_is_down(
    run: Run, dsn: str, conn: Connection, start_ticker: StartTicker
) -> None:
    program, url = serve(run, dsn)
    _, order = ask(f"{url}/orders", {"item": "lamp"})  # no ticker yet: so it is not confirmed
    program.kill()
    start_ticker(dsn).hear("leading")
    serve(run, dsn)
    eventually(conn, CONFIRMED, order["id"], patience=SPARK_PATIENCE)
