"""`pgqpy capture`: the command around pgq.capture_table and its relatives."""

from __future__ import annotations

import json

import pytest

from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_db import Connection


@pytest.fixture
def table(conn: Connection) -> str:
    """A table whose name needs quotes."""
    conn.execute('create schema shop; create table shop."Order" (id int primary key, note text)')
    return 'shop."Order"'


@pytest.mark.smoke
def test_a_table_is_captured_listed_and_released(
    cli: Cli, conn: Connection, queue: str, table: str
) -> None:
    cli.ok("capture", "add", table, queue)
    conn.execute(f"insert into {table} values (1, 'a')")
    [event] = cli.json_lines("event", "peek", queue)
    assert json.loads(event["data"]) == {"id": 1, "note": "a"}
    [info] = cli.json("capture", "list")
    assert (info["table_name"], info["queue_name"], info["key"]) == (table, queue, ["id"])
    assert table in cli.ok("capture", "list", table)
    cli.ok("capture", "remove", table)
    conn.execute(f"insert into {table} values (2, 'b')")
    assert len(cli.json_lines("event", "peek", queue)) == 1
    assert cli.json("capture", "list") == []


def test_every_option_arrives_where_it_belongs(cli: Cli, queue: str, table: str) -> None:
    cli.ok("capture", "add", table, queue)
    assert "--replace" in cli.fails("capture", "add", table, queue, "--exclude", "note")
    cli.ok("capture", "add", table, queue, "--exclude", "note", "--replace")
    assert cli.json("capture", "list")[0]["exclude"] == ["note"]
    cli.ok(
        *("capture", "add", table, queue, "--operations", "insert,update"),
        *("--columns", "id, note", "--key", "id", "--old-values", "changed"),
        *(
            "--condition",
            "note <> ''",
            "--format",
            "jsontriga",
            "--key-changes",
            "error",
            "--replace",
        ),
    )
    [info] = cli.json("capture", "list")
    assert sorted(info["operations"]) == ["insert", "update"]
    assert info["columns"] == ["id", "note"]
    assert info["key"] == ["id"]
    assert info["old_values"] == "changed"
    assert info["condition"] == "note <> ''"
    assert info["format"] == "jsontriga"
    assert info["key_changes"] == "error"


def test_new_partitions_are_captured_on_request(cli: Cli, conn: Connection, queue: str) -> None:
    conn.execute("create table part (id int primary key) partition by range (id)")
    cli.ok("capture", "add", "part", queue)
    conn.execute("create table part_1 partition of part for values from (0) to (10)")
    assert cli.ok("capture", "partitions", "part") == "captured 1 new partition\n"
    conn.execute("insert into part_1 values (1)")
    assert len(cli.json_lines("event", "peek", queue)) == 1


def test_what_cannot_be_captured_is_refused_by_name(cli: Cli, conn: Connection, queue: str) -> None:
    conn.execute("create table flight (id int primary key); create table keyless (id int)")
    for words, complaint in (
        (f"add nosuch {queue}", "there is no table nosuch"),
        (f"add Order {queue}", "there is no table Order"),
        ("remove nosuch", "there is no table nosuch"),
        ("list nosuch", "there is no table nosuch"),
        ("add flight nosuch", "queue 'nosuch' does not exist"),
        ("remove flight", "not captured"),
        (f"add flight {queue} --columns nosuch", "nosuch"),
        (f"add flight {queue} --operations select", "select"),
        (f"add flight {queue} --condition 1+", "condition '1+' cannot be computed: syntax error"),
        (f"add flight {queue} --condition new.nope", "computed: column new.nope does not exist"),
        (f"add flight {queue} --condition nosuch()", "computed: function nosuch() does not exist"),
        (f"add keyless {queue}", "key"),
        (f'add a." {queue}', "there is no table"),
    ):
        assert complaint in cli.fails("capture", *words.split())
    assert cli.json("capture", "list") == []
