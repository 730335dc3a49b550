"""Contracts checked in Python, by producers and consumers that ask for it, and by the command."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgqpy import (
    Admin,
    AsyncProducer,
    Consumer,
    Event,
    FixedDelay,
    GroupAdmin,
    GroupConsumer,
    Producer,
    errors,
)
from pgqpy.errors import ContractViolation
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_client import Make, Tick
from tests.fixtures.fix_db import Connection

pytestmark = pytest.mark.any_pg

ORDER = {"properties": {"lines": {"items": {"properties": {"price": {"type": "number"}}}}}}
GOOD, BAD = {"lines": [{"price": 1}]}, {"lines": [{"price": 1}, {"price": "2"}]}


@pytest.fixture
def admin(conn: Connection, queue: str) -> Admin:
    """Of a database with a contract that only clients check."""
    admin = Admin(conn)
    admin.set_contract(queue, "order", ORDER)
    return admin


def refused(call: Any) -> str:
    with pytest.raises(ContractViolation) as caught:
        call()
    assert caught.value.path == "/lines/1/price"
    assert caught.value.sqlstate == "PQ054"
    assert caught.value.hint
    return caught.value.message.partition("price")[0]


def test_a_captured_table_changes_no_check(conn: Connection, queue: str, admin: Admin) -> None:
    admin.set_contract(queue, None, ORDER)
    conn.execute("create table placed (id int primary key)")
    conn.execute("select pgq.capture_table('placed', %s)", [queue])
    refused(lambda: Producer(queue, check=True).insert_event(conn, "public.placed", BAD))


def test_a_producer_checks_before_it_inserts(conn: Connection, queue: str, admin: Admin) -> None:
    producer = Producer(queue, check=True)
    rows = [("order", GOOD), ("order", BAD)]
    said = {
        refused(lambda: producer.insert_event(conn, "order", BAD)),
        refused(lambda: producer.insert_events(conn, iter(rows))),
        refused(lambda: producer.insert_events(conn, rows, delay=0)),
        refused(lambda: producer.insert_events_returning(conn, rows)),
    }
    assert conn.execute("select ev_id from pgq.event where ev_txid > 0").fetchall() == []
    producer.insert_event(conn, "order", GOOD)
    assert producer.insert_events(conn, [("order", GOOD), ("other", BAD)]) == 2

    # The same error comes from the server.
    admin.set_contract(queue, "order", ORDER, enforced=True)
    said.add(refused(lambda: Producer(queue).insert_event(conn, "order", BAD)))
    assert len(said) == 1

    # A new version is noticed.
    assert admin.set_contract(queue, "order", {}) == 2
    producer.insert_events(conn, rows)


def test_an_async_producer_does(dsn: str, queue: str, admin: Admin) -> None:
    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as conn:
            for data in (None, "no JSON", '{"lines": NaN}', "[" * 100_000, '"\ud800"'):
                with pytest.raises(ContractViolation) as caught:
                    await AsyncProducer(queue, check=True).insert_events(conn, [("order", data)])
                assert caught.value.path == ""

    asyncio.run(run())


class Strict(Consumer):
    queue, consumer = "test_queue", "strict"
    check_contracts = True
    retry_policy = FixedDelay(0, attempts=1)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seen: list[str | None] = []

    def process_event(self, conn: Any, event: Event) -> None:
        self.seen.append(event.type)


def test_a_consumer_fails_events_that_do_not_fit(
    conn: Connection, queue: str, make: Make, tick: Tick, admin: Admin
) -> None:
    consumer = make(Strict)
    Producer(queue).insert_events(conn, [("order", GOOD), ("other", BAD), ("order", BAD)])
    tick()
    consumer.run(until_empty=True)
    assert sorted(map(str, consumer.seen)) == ["order", "other"]
    [(reason,)] = conn.execute("select dl_reason from pgq.dead_letter").fetchall()
    assert "/lines/1/price" in reason


class StrictGroup(Strict, GroupConsumer):
    consumer = "strict_group"
    key = "ev_data"
    retry_policy = FixedDelay(0, attempts=2)


def test_a_group_parks_events_that_do_not_fit(
    conn: Connection, queue: str, make: Make, tick: Tick, admin: Admin
) -> None:
    """They are checked again when they are retried."""
    worker = make(StrictGroup)
    Producer(queue).insert_events(conn, [("order", GOOD), ("order", BAD)])
    tick()
    worker.run(until_empty=True)
    assert worker.seen == ["order"]
    [parked] = GroupAdmin(conn).get_parked_keys(queue, "strict_group")
    assert parked.attempts == 2
    assert "/lines/1/price" in str(parked.error)


def test_a_schema_that_only_python_understands(conn: Connection, queue: str, admin: Admin) -> None:
    admin.set_contract(queue, "x", {"properties": {"a": {}}, "unevaluatedProperties": False})
    producer = Producer(queue, check=True)
    producer.insert_event(conn, "x", {"a": 1})
    with pytest.raises(ContractViolation):
        producer.insert_event(conn, "x", {"b": 1})
    with pytest.raises(errors.InvalidContract, match="unevaluatedProperties"):
        admin.set_contract(queue, "x", {"unevaluatedProperties": False}, enforced=True)
    admin.set_contract(queue, "y", {"$ref": "https://example.com/schema"})
    with pytest.raises(errors.InvalidContract, match="type 'y' is not a JSON Schema"):
        producer.insert_event(conn, "x", {"a": 1})
    with pytest.raises(errors.ContractNotFound):
        admin.get_contract(queue, "x", 7)
    assert admin.get_contract(queue, "z") is None


def test_the_command(cli: Cli, tmp_path: Path, conn: Connection) -> None:
    file = tmp_path / "order.json"
    file.write_text('{"properties": {"a": {"items": {"type": "integer"}}}}')
    cli.ok("queue", "create", "odd %s")
    said = cli.ok("contract", "set", "odd %s", str(file), "--type", "order")
    assert said == "version 1 of the contract of queue odd %s is in force\n"
    [info] = cli.json("contract", "list")
    assert (info["ev_type"], info["version"], info["enforced"]) == ("order", 1, False)
    assert "properties" in cli.ok("contract", "show", "odd %s", "--type", "order")
    assert "all fit" in cli.ok("contract", "check", "odd %s")
    rows = [("order", {"a": values}) for values in ([1], ["x"], [1, 2.5, None], [])]
    Producer("odd %s").insert_events(conn, rows)
    result = cli("contract", "check", "odd %s", "--since", "2020-01-01", "--json")
    [found] = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (found["type"], found["path"], found["events"]) == ("order", "/a/*", 2)
    file.write_text('{"required": ["b"], "properties": {"a": {}}}')
    assert "at /required" in cli.fails("contract", "set", "odd %s", str(file), "--type", "order")
    cli.ok("contract", "set", "odd %s", str(file), "--type", "new", "--enforced")
    lines = '{"type": "new", "data": {"b": 1}}\n\n{"type": "new", "data": {}}'
    told = cli.fails("event", "insert", "odd %s", "--file", "-", stdin=lines)
    assert "(row 2 of those copied)" in told
    file.write_text("no JSON")
    assert "is not JSON" in cli.fails("contract", "set", "odd %s", str(file))
    cli.ok("contract", "drop", "odd %s", "--type", "order")
    assert "no contract" in cli.fails("contract", "show", "odd %s", "--type", "order")
