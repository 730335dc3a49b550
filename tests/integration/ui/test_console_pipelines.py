"""Pipelines in the console: what their workers have told the server, drawn for those who may."""

from __future__ import annotations

from typing import Any

import pytest

from pgqpy.tasks import AsyncPipelineWorker, Pipeline, PipelineWorker, Task, Tasks
from pgqpy.ui._pipeline import columns
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_console import Console, get
from tests.fixtures.fix_db import AsRole, Connection, MakeRole
from tests.fixtures.fix_task_worker import aside, run_until_empty

EVIL = "<i>orders"
MADE = "select xmin::text from pgq_task.station order by queue_id"


def declared(name: str, conn: Connection, wrap: Any = lambda function: function) -> Pipeline:
    """A pipeline with a loop and two ways, and its queues."""

    def again(conn: object, task: Task) -> Any:
        if task.payload == "bad":
            raise ValueError(task.payload)
        return "pack" if task.payload == "paid" else "check"

    made = Pipeline(name, start="check")
    made.choice("check", to=["pack", "check", "refuse"])(wrap(again))
    made.direct("pack", to="send")(wrap(lambda conn, task: None))
    for sink in ("send", "refuse"):
        made.sink(sink)(wrap(lambda conn, task: None))
    for queue in made.queues:
        Tasks(conn).create_queue(queue)
    return made


@pytest.mark.parametrize("awaited", [False, True])
def test_a_pipeline_is_drawn_with_counts_once_a_worker_has_started(
    dsn: str, conn: Connection, console: Console, awaited: bool
) -> None:
    kind: Any = AsyncPipelineWorker if awaited else PipelineWorker
    pipeline, client = declared(EVIL, conn, aside if awaited else lambda f: f), console(dsn)
    url = "/pipeline?name=%3Ci%3Eorders"
    get(client, url, status=404)
    assert "Pipelines" not in get(client, "/task_queues")
    tasks = Tasks(conn)
    tasks.set_config(pipeline.queue("check"), "max_attempts", "1")
    tasks.push(pipeline.queue("check"), "bad")
    tasks.push(pipeline.queue("check"), "paid")
    run_until_empty(kind(dsn, pipeline, stations=["check", "pack"]))
    tasks.push(pipeline.queue("refuse"), 1)
    rows = conn.execute(MADE).fetchall()
    assert len(rows) == 2
    shown = get(client, url)
    assert "<i>" not in shown
    assert shown.count("<rect") == 4
    assert shown.count("<path") == 4 + 1, "a way back has an arrow"
    assert shown.count('class="back"') == 1
    assert shown.count("no worker seen") == 2 * 2
    assert "1 failed" in shown
    assert "refuse: 1 available, no worker seen" in shown
    run_until_empty(kind(dsn, pipeline))
    assert conn.execute(MADE).fetchall()[:2] == rows, "what has not changed is not written again"
    shown = get(client, url)
    assert "no worker seen" not in shown
    for page in ("/task_queues", "/task_queue?name=%3Ci%3Eorders.send"):
        assert "/pipeline?name=%3Ci%3Eorders" in get(client, page)
    assert "/task_queue?name=%3Ci%3Eorders.send" in shown
    tasks.drop_queue(pipeline.queue("refuse"), force=True)
    shown = get(client, url)
    assert shown.count("no queue") == 2
    assert "/task_queue?name=%3Ci%3Eorders.refuse" not in shown


def test_stations_of_restricted_queues_are_shown_to_roles_that_may_read_them(
    dsn: str, conn: Connection, console: Console, make_role: MakeRole, as_role: AsRole
) -> None:
    pipeline = declared("orders", conn)
    run_until_empty(PipelineWorker(dsn, pipeline))
    conn.execute("select pgq_task.restrict_queue('orders.check')")
    role, client = make_role("stranger", "pgq_reader"), console(dsn)
    shown = get(client, "/pipeline?name=orders", role)
    assert "/task_queue?name=orders.check" not in shown
    assert "/task_queue?name=orders.pack" in shown
    # Another station leads to this one.
    conn.execute("select pgq_task.restrict_queue('orders.send')")
    shown = get(client, "/pipeline?name=orders", role)
    assert "send: you may not read it" in shown
    assert "/task_queue?name=orders.send" not in shown
    assert "/pipeline" not in get(client, "/task_queue?name=orders.check", role)
    conn.execute("select pgq_task.grant_queue('orders.check', '{read}', %s)", [role])
    assert "/task_queue?name=orders.check" in get(client, "/pipeline?name=orders", role)
    stranger = as_role(role)
    tell = "select pgq_task.set_station(%s, %s, true, %s)"
    with ops.refused("42501"):
        stranger.execute(tell, ["orders.check", "orders", []])
    # It may claim from this one, and so describe it, as a station of no other pipeline.
    for pipeline_name, leads_to in (
        ("bills", ["send"]),
        ("order", ["send"]),
        ("orders", [f"s{nr}" for nr in range(101)]),
        ("orders", ["s" * 249]),
    ):
        with ops.refused("PQ072"):
            stranger.execute(tell, ["orders.pack", pipeline_name, leads_to])
    stranger.execute(tell, ["orders.pack", "orders", [["<b>", None], ["check", "<b>"]]])
    assert "&lt;b&gt;" in get(client, "/pipeline?name=orders", role)


def test_a_worker_works_if_the_server_does_not_take_its_stations(
    dsn: str, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = declared("orders", conn)
    conn.execute("revoke all on function pgq_task.set_station from pgq_reader")
    conn.execute("alter function pgq_task.set_station rename to gone")
    Tasks(conn).push("orders.check", "paid")
    PipelineWorker(dsn, pipeline).run(until_empty=True)
    assert Tasks(conn).list("orders.*") == []
    assert "the console cannot draw pipeline orders" in caplog.text


@pytest.mark.parametrize(
    ("leads_to", "expected"),
    [
        ({"a": ["b", "c"], "b": ["c"], "c": []}, {"a": 0, "b": 1, "c": 2}),
        (
            {"a": ["b"], "b": ["c"], "c": ["a", "b", "c", "d"], "d": []},
            {"a": 0, "b": 1, "c": 2, "d": 3},
        ),
        ({"a": [], "y": ["z"], "z": ["y"], "b": ["a"]}, {"a": 1, "y": 0, "z": 1, "b": 0}),
    ],
)
def test_stations_are_behind_those_that_lead_there_but_for_loops(
    leads_to: dict[str, list[str]], expected: dict[str, int]
) -> None:
    assert columns(["a"], leads_to) == expected
