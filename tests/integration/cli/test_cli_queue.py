"""`pgqpy queue` and `pgqpy consumer`."""

from __future__ import annotations

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_db import Connection

AWKWARD = 'it\'s "quoted" [red]%s{}; drop schema pgq --'


@pytest.mark.smoke
def test_a_queue_is_created_listed_and_dropped(cli: Cli) -> None:
    assert cli.ok("queue", "create", "flights") == "created queue flights\n"
    assert cli.ok("queue", "create", "flights") == "queue flights exists already\n"
    assert [info["queue_name"] for info in cli.json("queue", "list")] == ["flights"]
    assert "flights" in cli.ok("queue", "list")
    assert cli.ok("queue", "drop", "flights") == "dropped queue flights\n"
    assert cli.json("queue", "list") == []


def test_any_name_that_the_schema_takes_works_everywhere(cli: Cli) -> None:
    cli.ok("queue", "create", AWKWARD)
    cli.ok("consumer", "register", AWKWARD, AWKWARD)
    cli.ok("event", "insert", AWKWARD, AWKWARD, AWKWARD)
    assert cli.json("queue", "show", AWKWARD)["queue_name"] == AWKWARD
    assert cli.json_lines("event", "peek", AWKWARD)[0]["data"] == AWKWARD
    for show in (("queue", "list"), ("consumer", "list"), ("event", "peek", AWKWARD), ("status",)):
        assert AWKWARD in cli.ok(*show)
    cli.ok("queue", "drop", AWKWARD, "--force")


def test_a_name_that_cannot_be_is_refused(cli: Cli) -> None:
    for name, exit_code in (("", 1), ("x" * 256, 1), ("a\0b", 2)):
        cli.fails("queue", "create", name, exit_code=exit_code)
        assert cli.json("queue", "list") == []


def test_every_command_says_so_when_there_is_no_such_queue(cli: Cli) -> None:
    for command in (
        *("queue drop nosuch", "queue show nosuch", "queue config nosuch", "status nosuch"),
        *("queue config nosuch ticker_max_lag 1s", "consumer register nosuch counter"),
        *("consumer unregister nosuch counter", "consumer list nosuch", "event peek nosuch"),
        *("consumer seek nosuch counter --end", "event insert nosuch type data"),
        "event peek nosuch --from-tick 1 --to-tick 2",
    ):
        said = cli.fails(*command.split())
        assert "queue 'nosuch' does not exist" in said
        assert "pgqpy queue list" in said


def test_parameters_are_shown_set_and_taken_away(cli: Cli) -> None:
    cli.ok("queue", "create", "flights", "--set", "per_tx_limit=5")
    assert cli.json("queue", "config", "flights", "per_tx_limit") == {"per_tx_limit": 5}
    assert cli.json("queue", "config", "flights")["ticker_max_lag"] == 3.0
    cli.ok("queue", "config", "flights", "rotation_period", "30 minutes")
    assert cli.json("queue", "config", "flights", "rotation_period") == {"rotation_period": 1800.0}
    cli.ok("queue", "config", "flights", "ticker_latency", "null")
    assert cli.json("queue", "config", "flights", "ticker_latency") == {"ticker_latency": None}
    # A new queue is configured with it or not made.
    said = cli.fails("queue", "create", "trains", "--set", "ticker_max_lag=soon")
    assert "ticker_max_lag" in said
    assert [info["queue_name"] for info in cli.json("queue", "list")] == ["flights"]
    # An unknown parameter names those there are.
    said = cli.fails("queue", "config", "flights", "max_lag", "1 s", exit_code=2)
    assert "ticker_max_lag" in said


def test_a_consumer_is_registered_listed_and_unregistered(cli: Cli) -> None:
    cli.ok("queue", "create", "flights")
    for command in (("unregister",), ("seek", "--end")):
        said = cli.fails("consumer", command[0], "flights", "unknown", *command[1:])
        assert "consumer 'unknown' is not registered on queue 'flights'" in said
    assert "registered consumer counter" in cli.ok("consumer", "register", "flights", "counter")
    assert "already" in cli.ok("consumer", "register", "flights", "counter")
    assert [c["consumer_name"] for c in cli.json("consumer", "list", "flights")] == ["counter"]
    shown = cli.json("queue", "show", "flights")
    assert shown["config"]["ticker_max_count"] == 500
    assert [each["consumer_name"] for each in shown["consumers"]] == ["counter"]
    text = cli.ok("queue", "show", "flights")
    assert "ticker_max_count" in text
    assert "counter" in text
    # A queue in use is dropped with force only.
    said = cli.fails("queue", "drop", "flights")
    assert "counter" in said
    assert "--force" in said
    cli.ok("consumer", "unregister", "flights", "counter")
    assert cli.json("consumer", "list") == []
    cli.ok("consumer", "register", "flights", "counter")
    cli.ok("queue", "drop", "flights", "--force")
    assert cli.json("queue", "list") == []


def test_a_consumer_can_start_or_be_moved_anywhere(cli: Cli, conn: Connection) -> None:
    cli.ok("queue", "create", "flights")
    first = ops.value(conn, "select max(tick_id) from pgq.tick")
    between = ops.value(conn, "select clock_timestamp()").isoformat()
    last = ops.tick(conn, "flights")

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
        (("--time", "2001-01-01"), first),
    ]:
        said = cli.ok("consumer", "seek", "flights", "counter", *to)
        assert f"to {expected}" in said
        assert position() == expected
    # Registering again elsewhere is an error and moves nothing.
    assert "seek" in cli.fails("consumer", "register", "flights", "counter", "--end")
    seek = ("consumer", "seek", "flights", "counter")
    assert "is not at 2" in cli.fails(*seek, "--time", "2999-01-01T00:00+00:00")
    assert "tick 999" in cli.fails(*seek, "--tick", "999")
    for wrong in ("", "--start --end", "--event 0", "--time yesterday", "--tick -1", "--tick many"):
        cli.fails(*seek, *wrong.split(), exit_code=2)
    assert position() == first


def test_seek_says_first_what_is_read_again_or_skipped(cli: Cli, conn: Connection) -> None:
    cli.ok("queue", "create", "flights")
    cli.ok("consumer", "register", "flights", "counter")
    for data in ("a", "b", "c"):
        event = ops.insert(conn, "flights", data)
        ops.tick(conn, "flights")
    seek = ("consumer", "seek", "flights", "counter")
    said = cli.ok(*seek, "--end", "--dry-run")
    assert "skips 3 events, from 20" in said
    assert "would move consumer counter on queue flights from tick 1 to 4" in said
    assert ops.drain(conn, "flights", "counter") == ["a", "b", "c"]
    # The tick before the last one is the first that is certainly before the event.
    assert "reads again 2 events, from 20" in cli.ok(*seek, "--event", str(event))
    assert ops.drain(conn, "flights", "counter") == ["b", "c"]
    assert "skips 0 events\n" in cli.ok(*seek, "--end")
    conn.execute("update pgq.queue set queue_horizon_tick = 3")
    assert "--start" in cli.fails(*seek, "--time", "2001-01-01")


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


def test_queues_are_restricted_to_granted_roles(cli: Cli) -> None:
    cli.ok("queue", "create", "flights")
    assert cli.ok("queue", "rights") == "no queue is restricted\n"
    assert cli.ok("queue", "restrict", "flights") == "queue flights is restricted\n"
    cli.ok("queue", "grant", "flights", "pgq_reader", "consume", "read", "--as", "delays")
    assert cli.json("queue", "rights", "flights") == [
        {
            "queue_name": "flights",
            "restricted": True,
            "role": "pgq_reader",
            "consumer": consumer,
            "actions": [action],
        }
        for consumer, action in ((None, "read"), ("delays", "consume"))
    ]
    cli.ok("queue", "revoke", "flights", "pgq_reader", "read")
    assert "delays" in cli.ok("queue", "rights")
    assert cli.ok("queue", "restrict", "flights", "--off") == "queue flights is open\n"
    assert "unknown" in cli.fails("queue", "grant", "flights", "unknown", "read")
