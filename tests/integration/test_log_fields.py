"""Fields of log lines about failures: they name the event or task, and its trace."""

from __future__ import annotations

import json
import logging
from io import StringIO

import pgqpy
from pgqpy.cli._base.command import log_to
from pgqpy.tasks import TaskApp, Tasks
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}


class Billing(pgqpy.Consumer):
    retry_policy = pgqpy.FixedDelay(1, attempts=1)

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        raise ValueError("no address")


def errors(text: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if line["level"] == "error"]


def test_a_line_about_a_failed_event_names_batch_event_and_trace(
    dsn: str, conn: Connection, queue: str
) -> None:
    consumer = Billing(dsn, queue=queue, consumer="billing")
    consumer.register()
    producer = pgqpy.Producer(queue)
    number = producer.insert_event(conn, "order", "{}", extra4=json.dumps(HEADERS))
    ops.tick(conn, queue)
    said = StringIO()
    with log_to(said, "info", "json"):
        consumer.run(until_empty=True, handle_signals=False)
    [line] = errors(said.getvalue())
    found = {name: line[name] for name in ("queue", "consumer", "event_id", "trace_id", "attempt")}
    assert found == {
        "queue": queue,
        "consumer": "billing",
        "event_id": number,
        "trace_id": TRACE,
        "attempt": 1,
    }
    assert {"batch_id", "tick_id", "lag"} <= line.keys()
    assert "ValueError: no address" in str(line["traceback"])


def test_a_line_about_a_failed_task_names_it_its_worker_and_trace(
    dsn: str, conn: Connection
) -> None:
    app, tasks = TaskApp("mails"), Tasks(conn)

    @app.task
    def send(to: str) -> None:
        raise KeyError(to)

    tasks.create_queue("mails")
    tasks.set_config("mails", "max_attempts", 1)
    number = tasks.push("mails", {"task": send.name, "args": {"to": "ann"}}, headers=HEADERS)
    said = StringIO()
    with log_to(said, "info", "json"):
        app.worker(dsn).run(until_empty=True, handle_signals=False)
    [line] = errors(said.getvalue())
    assert (line["queue"], line["task_id"], line["trace_id"]) == ("mails", number, TRACE)
    assert line["claimant"]
    assert "KeyError: 'ann'" in str(line["traceback"])


def test_an_error_is_a_record_with_its_exception_for_reporters(
    dsn: str, conn: Connection, queue: str
) -> None:
    """As Sentry's integration sees it."""
    consumer = Billing(dsn, queue=queue, consumer="billing")
    consumer.register()
    pgqpy.Producer(queue).insert_event(conn, "order", "{}")
    ops.tick(conn, queue)
    records: list[logging.LogRecord] = []

    class Reporter(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Reporter(logging.ERROR)
    pgqpy_logger = logging.getLogger("pgqpy")
    pgqpy_logger.addHandler(handler)
    try:
        consumer.run(until_empty=True, handle_signals=False)
    finally:
        pgqpy_logger.removeHandler(handler)
    [record] = records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)
