"""The examples of docs/which-class.md do what the page says."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from pgqpy.tasks import Tasks
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.pages import blocks, run, section, text_of

EVENT = '{"item": "pen", "customer": "ann"}'


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch, dsn: str) -> dict[str, Any]:
    """The names of a module, which annotations are looked up in."""
    monkeypatch.setenv("PGQPY_DSN", dsn)
    module = ModuleType("which_class")
    monkeypatch.setitem(sys.modules, "which_class", module)
    return vars(module)


def run_example(block: str, names: dict[str, Any], target: str) -> None:
    run(block.replace("postgresql:///reports", target), names)


def prepare(conn: Connection) -> None:
    conn.execute("""
        create table stock as select 'pen' as item, 5 as n;
        create table picture (item text);
        create table shipment (customer text);
        create table report (data text);
        create table invoice (order_id int);
        create table booking (item text, price int);
        create table sent (address text);
        create table mail (id int primary key, address text);
        select pgq_task.add_columns('mail');
        select pgq_task.create_queue('invoices');
        insert into mail values (1, 'ann@example.org');
        select pgq.create_queue('orders');
    """)


def test_events(
    conn: Connection, dsn: str, names: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(conn)
    examples = blocks(section(text_of("which-class.md"), "## Events"))
    for block in examples[:-1]:
        run_example(block, names, dsn)  # registers
    ops.insert(conn, "orders", EVENT)
    ops.tick(conn, "orders")
    for block in examples[:-1]:
        run_example(block, names, dsn)
    assert conn.execute(
        "select n, picture.item, customer, data from stock, picture, shipment, report"
    ).fetchall() == [(4, "pen", "ann", EVENT)]
    assert capsys.readouterr().out == "mail to ann\n"


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_spark(
    conn: Connection, dsn: str, names: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    conn.execute("select pgq.create_queue('orders')")
    block = blocks(section(text_of("which-class.md"), "## Events"))[-1]
    run_example(block, names, dsn)
    ops.insert(conn, "orders", EVENT)
    ops.tick(conn, "orders")
    run_example(block, names, dsn)
    assert "count" in capsys.readouterr().out


def test_tasks(conn: Connection, dsn: str, names: dict[str, Any]) -> None:
    prepare(conn)
    names["pgqpy"] = sys.modules["pgqpy"]
    for block in blocks(section(text_of("which-class.md"), "## Tasks")):
        run_example(block, names, dsn)
    assert conn.execute(
        "select order_id, item, price, address from invoice, booking, sent"
    ).fetchall() == [(1047, "pen", 10, "ann@example.org")]
    assert Tasks(conn).statistics("jobs")[0].finished == 1
