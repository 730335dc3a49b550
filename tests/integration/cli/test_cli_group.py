"""`pgqpy group`."""

from __future__ import annotations

import re

import pytest

import pgqpy
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_client import Tick
from tests.fixtures.fix_db import Connection

ANSI = re.compile(r"\x1b\[[0-9;]*m")
AWKWARD = 'it\'s "quoted" [red]%s{}; drop schema pgq --'


class Fails(pgqpy.GroupConsumer):
    consumer = "group"
    partitions = 3
    retry_policy = pgqpy.FixedDelay(0, attempts=1)

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        raise ValueError("no [red]")


@pytest.fixture
def failing(conn: Connection, dsn: str, queue: str, tick: Tick) -> str:
    """A group in which the keys a and b are parked, with two events each; its name."""
    Fails(dsn, queue=queue).register()
    pgqpy.Producer(queue).insert_events(conn, [("t", "data", key) for key in "abab"])
    tick()
    Fails(dsn, queue=queue).run(until_empty=True)
    return "group"


@pytest.mark.smoke
def test_a_group_is_created_listed_shown_resized_and_dropped(cli: Cli, queue: str) -> None:
    said = cli.ok("group", "create", queue, "g", "--key", "ev_extra1", "--partitions", "3")
    assert said == f"created group g on queue {queue} with 3 partitions\n"
    assert "exists already" in cli.ok("group", "create", queue, "g", "--key", "ev_extra1")
    [info] = cli.json("group", "list")
    assert (info["group_name"], info["partitions"], info["key"]) == ("g", 3, "ev_extra1")
    assert "ev_extra1" in cli.ok("group", "list", queue)
    assert [part["partition"] for part in cli.json("group", "show", queue, "g")] == [0, 1, 2]
    assert "ev_extra1" in cli.ok("group", "show", queue, "g")
    assert (
        cli.ok("group", "resize", queue, "g", "5") == f"group g on queue {queue} has 5 partitions\n"
    )
    assert len(cli.json("group", "show", queue, "g")) == 5
    cli.ok("group", "set", queue, "g", "park_limit", "7")
    assert cli.json("group", "list")[0]["park_limit"] == 7
    cli.ok("group", "drop", queue, "g")
    assert cli.json("group", "list") == []
    assert "no groups yet" in cli.ok("group", "list")
    # Any name will do.
    cli.ok("queue", "create", AWKWARD)
    cli.ok("group", "create", AWKWARD, AWKWARD, "--key", "ev_data")
    assert AWKWARD in cli.ok("group", "list")
    cli.ok("group", "show", AWKWARD, AWKWARD)
    cli.ok("group", "drop", AWKWARD, AWKWARD)


def test_a_resizing_that_has_to_wait_says_for_what(
    cli: Cli, conn: Connection, queue: str, tick: Tick
) -> None:
    cli.ok("group", "create", queue, "g", "--key", "ev_extra1", "--partitions", "2")
    conn.execute("select pgq.insert_event(%s, 't', 'd', 'k', null, null, null)", [queue])
    tick()
    conn.execute(
        "select pgq.next_group_batch(member_id, 100) from pgq.join_group(%s, 'g', 'w')", [queue]
    )
    assert "have taken all to tick 2" in cli.ok("group", "resize", queue, "g", "4")
    assert "will have 4 partitions" in cli.ok("group", "show", queue, "g")


def test_parked_keys_are_listed_and_unparked(
    cli: Cli, conn: Connection, queue: str, failing: str
) -> None:
    keys = cli.json("group", "parked", queue, failing)
    assert sorted((key["key"], key["events"], key["next_attempt"]) for key in keys) == [
        ("a", 2, None),
        ("b", 2, None),
    ]
    shown = cli.ok("group", "parked", queue, failing)
    assert "by hand" in shown
    assert "ValueError: no [red]" in shown
    assert cli.ok("group", "unpark", queue, failing, "a") == "key a is tried again now\n"
    assert cli.ok("group", "unpark", queue, failing, "--all") == "2 keys are tried again now\n"
    assert all(key["next_attempt"] for key in cli.json("group", "parked", queue, failing))
    assert "full" not in cli.ok("group", "show", queue, failing)
    cli.ok("group", "set", queue, failing, "park_limit", "0")
    assert "full" in cli.ok("group", "show", queue, failing)
    # An event can be given up.
    assert "dead letter" in cli.ok("group", "unpark", queue, failing, "a", "--give-up")
    reasons = conn.execute("select dl_reason from pgq.dead_letter").fetchall()
    assert reasons == [("ValueError: no [red]",)]
    keys = cli.json("group", "parked", queue, failing)
    assert {key["key"]: key["events"] for key in keys} == {"a": 1, "b": 2}


def test_of_an_event_without_a_key_no_key_is_shown_but_its_id(
    cli: Cli, conn: Connection, dsn: str, queue: str, failing: str, tick: Tick
) -> None:
    number = pgqpy.Producer(queue).insert_event(conn, "t", "data")
    tick()
    Fails(dsn, queue=queue).run(until_empty=True)
    assert f"- (event {number})  " in cli.ok("group", "parked", queue, failing)
    assert (
        cli.ok("group", "unpark", queue, failing, str(number))
        == f"key {number} is tried again now\n"
    )


def test_in_a_terminal_of_80_columns_there_is_room_for_why_keys_are_parked(
    cli: Cli, queue: str, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    shown = ANSI.sub("", cli.ok("group", "parked", queue, failing)).splitlines()
    assert shown[0].split() == ["Key", "Events", "Attempts", "Parked", "Again", "Error"]
    assert shown[0].index("Error") < 60
    assert "ValueError: no [red]" in shown[2]
    partitions = [
        ANSI.sub("", line) for line in cli.ok("group", "show", queue, failing).split("\n")
    ]
    assert "Part   Worker   Seen   Backlog " in "\n".join(partitions)
    assert all(len(line) <= 80 for line in shown + partitions)


def test_mistakes_are_explained(cli: Cli, queue: str, failing: str) -> None:
    assert "group parked" in cli.fails("group", "unpark", queue, failing, "c")
    cli.fails("group", "unpark", queue, failing, exit_code=2)
    cli.fails("group", "unpark", queue, failing, "a", "--all", exit_code=2)
    said = cli.fails("group", "show", queue, "unknown")
    assert "no consumer group" in said
    assert "pgqpy group list" in said
    assert "does not exist" in cli.fails("group", "show", "nowhere", failing)
    assert "ev_extra1" in cli.fails("group", "create", queue, "g", "--key", "now()")
    assert "1 to 1024" in cli.fails("group", "resize", queue, failing, "0")
    assert "4 parked" in cli.fails("group", "drop", queue, failing)
    cli.ok("group", "drop", queue, failing, "--force")
