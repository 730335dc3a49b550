"""`pgqpy queue` and `pgqpy consumer`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_db import Connection

AWKWARD = 'it\'s "quoted" [red]%s{}; drop schema pgq --'


def value(conn: Connection, query: str, *arguments: Any) -> Any:
    row = conn.execute(query.encode(), arguments).fetchone()
    assert row is not None
    return row[0]


def tick(conn: Connection, queue: str) -> int:
    conn.execute("select pgq.force_tick(%s)", [queue])
    return int(value(conn, "select pgq.ticker(%s)", queue))


@pytest.mark.smoke
def test_a_queue_is_created_listed_and_dropped(cli: Cli) -> None:
    assert cli.ok("queue", "create", "flights") == "created queue flights\n"
    assert [info["queue_name"] for info in cli.json("queue", "list")] == ["flights"]
    assert "flights" in cli.ok("queue", "list")
    assert cli.ok("queue", "drop", "flights") == "dropped queue flights\n"
    assert cli.json("queue", "list") == []


def test_creating_a_queue_again_says_that_it_exists(cli: Cli) -> None:
    cli.ok("queue", "create", "flights")
    assert cli.ok("queue", "create", "flights") == "queue flights exists already\n"


def test_any_name_that_the_schema_takes_works_everywhere(cli: Cli) -> None:
    cli.ok("queue", "create", AWKWARD)
    cli.ok("consumer", "register", AWKWARD, AWKWARD)
    cli.ok("event", "insert", AWKWARD, AWKWARD, AWKWARD)
    assert cli.json("queue", "show", AWKWARD)["queue_name"] == AWKWARD
    assert cli.json_lines("event", "peek", AWKWARD)[0]["data"] == AWKWARD
    for show in (("queue", "list"), ("consumer", "list"), ("event", "peek", AWKWARD), ("status",)):
        assert AWKWARD in cli.ok(*show)
    cli.ok("queue", "drop", AWKWARD, "--force")


@pytest.mark.one_database
@pytest.mark.parametrize("name", ["", "x" * 256, "a\0b"], ids=["empty", "too long", "NUL"])
def test_a_name_that_cannot_be_is_refused(cli: Cli, name: str) -> None:
    cli.fails("queue", "create", name, exit_code=2 if "\0" in name else 1)
    assert cli.json("queue", "list") == []


def test_a_queue_in_use_is_dropped_only_with_force(cli: Cli) -> None:
    cli.ok("queue", "create", "flights")
    cli.ok("consumer", "register", "flights", "counter")
    said = cli.fails("queue", "drop", "flights")
    assert "counter" in said
    assert "--force" in said
    cli.ok("queue", "drop", "flights", "--force")
    assert cli.json("queue", "list") == []


@pytest.mark.one_database
@pytest.mark.parametrize(
    "command",
    [
        ("queue", "drop", "nosuch"),
        ("queue", "show", "nosuch"),
        ("queue", "config", "nosuch"),
        ("queue", "config", "nosuch", "ticker_max_lag", "1 s"),
        ("consumer", "register", "nosuch", "counter"),
        ("consumer", "unregister", "nosuch", "counter"),
        ("consumer", "list", "nosuch"),
        ("consumer", "seek", "nosuch", "counter", "--end"),
        ("event", "insert", "nosuch", "type", "data"),
        ("event", "peek", "nosuch"),
        ("event", "peek", "nosuch", "--from-tick", "1", "--to-tick", "2"),
        ("status", "nosuch"),
    ],
    ids=" ".join,
)
def test_every_command_says_so_when_there_is_no_such_queue(
    cli: Cli, command: tuple[str, ...]
) -> None:
    said = cli.fails(*command)
    assert "queue 'nosuch' does not exist" in said
    assert "pgqpy queue list" in said


def test_parameters_are_shown_set_and_taken_away(cli: Cli) -> None:
    cli.ok("queue", "create", "flights")
    assert cli.json("queue", "config", "flights")["ticker_max_lag"] == 3.0
    cli.ok("queue", "config", "flights", "rotation_period", "30 minutes")
    assert cli.json("queue", "config", "flights", "rotation_period") == {"rotation_period": 1800.0}
    cli.ok("queue", "config", "flights", "ticker_latency", "null")
    assert cli.json("queue", "config", "flights", "ticker_latency") == {"ticker_latency": None}


def test_a_new_queue_is_configured_with_it_or_not_made(cli: Cli) -> None:
    cli.ok("queue", "create", "flights", "--set", "per_tx_limit=5")
    assert cli.json("queue", "config", "flights", "per_tx_limit") == {"per_tx_limit": 5}
    said = cli.fails("queue", "create", "trains", "--set", "ticker_max_lag=soon")
    assert "ticker_max_lag" in said
    assert [info["queue_name"] for info in cli.json("queue", "list")] == ["flights"]


def test_an_unknown_parameter_names_those_there_are(cli: Cli) -> None:
    cli.ok("queue", "create", "flights")
    said = cli.fails("queue", "config", "flights", "max_lag", "1 s", exit_code=2)
    assert "ticker_max_lag" in said


def test_showing_a_queue_shows_its_consumers_and_parameters(cli: Cli) -> None:
    cli.ok("queue", "create", "flights")
    cli.ok("consumer", "register", "flights", "counter")
    shown = cli.json("queue", "show", "flights")
    assert shown["config"]["ticker_max_count"] == 500
    assert [each["consumer_name"] for each in shown["consumers"]] == ["counter"]
    text = cli.ok("queue", "show", "flights")
    assert "ticker_max_count" in text
    assert "counter" in text


def test_a_consumer_is_registered_listed_and_unregistered(cli: Cli) -> None:
    cli.ok("queue", "create", "flights")
    assert "registered consumer counter" in cli.ok("consumer", "register", "flights", "counter")
    assert "already" in cli.ok("consumer", "register", "flights", "counter")
    assert [c["consumer_name"] for c in cli.json("consumer", "list", "flights")] == ["counter"]
    cli.ok("consumer", "unregister", "flights", "counter")
    assert cli.json("consumer", "list") == []


@pytest.mark.parametrize("command", [("unregister",), ("seek", "--end")], ids=" ".join)
def test_a_consumer_that_is_not_registered_is_named(cli: Cli, command: tuple[str, ...]) -> None:
    cli.ok("queue", "create", "flights")
    said = cli.fails("consumer", command[0], "flights", "unknown", *command[1:])
    assert "consumer 'unknown' is not registered on queue 'flights'" in said


def test_a_consumer_can_start_or_be_moved_anywhere(cli: Cli, conn: Connection) -> None:
    cli.ok("queue", "create", "flights")
    first = value(conn, "select max(tick_id) from pgq.tick")
    between = value(conn, "select clock_timestamp()").isoformat()
    last = tick(conn, "flights")

    def position() -> int:
        [info] = cli.json("consumer", "list", "flights")
        return int(info["last_tick"])

    cli.ok("consumer", "register", "flights", "counter", "--start")
    assert position() == first
    for to, expected in [
        (("--end",), last),
        (("--time", between), first),
        (("--tick", str(last)), last),
        (("--start",), first),
    ]:
        said = cli.ok("consumer", "seek", "flights", "counter", *to)
        assert f"to {expected}" in said
        assert position() == expected


def test_registering_again_elsewhere_is_an_error_and_moves_nothing(
    cli: Cli, conn: Connection
) -> None:
    cli.ok("queue", "create", "flights")
    cli.ok("consumer", "register", "flights", "counter")
    before = cli.json("consumer", "list")[0]["last_tick"]
    tick(conn, "flights")
    assert "seek" in cli.fails("consumer", "register", "flights", "counter", "--end")
    assert cli.json("consumer", "list")[0]["last_tick"] == before


def test_a_place_that_is_not_there_any_more_is_refused(cli: Cli) -> None:
    cli.ok("queue", "create", "flights")
    cli.ok("consumer", "register", "flights", "counter")
    assert "--start" in cli.fails("consumer", "seek", "flights", "counter", "--time", "2001-01-01")
    assert "tick 999" in cli.fails("consumer", "seek", "flights", "counter", "--tick", "999")


@pytest.mark.one_database
@pytest.mark.parametrize(
    "options",
    [(), ("--start", "--end"), ("--time", "yesterday"), ("--tick", "-1"), ("--tick", "many")],
    ids=" ".join,
)
def test_a_place_that_cannot_be_meant_is_wrong_usage(cli: Cli, options: tuple[str, ...]) -> None:
    cli.fails("consumer", "seek", "flights", "counter", *options, exit_code=2)


def test_workers_are_listed_with_their_batches_and_not_lost(cli: Cli, conn: Connection) -> None:
    cli.ok("queue", "create", "flights")
    next_batch = "select pgq_coop.next_batch('flights', 'shared', %s)"
    for worker in ("w1", "w2"):
        assert ops.value(conn, next_batch, worker) is None
    ops.insert(conn, "flights", "event")
    ops.tick(conn, "flights")
    batch = ops.value(conn, next_batch, "w1")
    shown = {each["consumer_name"]: each for each in cli.json("consumer", "list", "flights")}
    assert list(shown) == ["shared", "shared.w1", "shared.w2"]
    assert [each["current_batch"] for each in shown.values()] == [None, batch, None]
    assert "shared.w1" in cli.ok("consumer", "list")

    said = cli.fails("consumer", "unregister", "flights", "shared.w1")
    assert f"batch {batch} of consumer shared open" in said
    said = cli.fails("consumer", "seek", "flights", "shared.w2", "--end")
    assert "pgqpy consumer seek flights shared" in said
    cli.ok("consumer", "unregister", "flights", "shared.w2")
    cli.ok("consumer", "unregister", "flights", "shared")
    assert cli.json("consumer", "list") == []
