"""`pgqpy event` with times and keys, and what waits in `queue show` and `status`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_db import Connection
from tests.integration.delayed.test_delayed_events import move, waiting


@pytest.mark.smoke
def test_an_event_for_later_is_shown_and_cancelled_by_the_id_that_was_printed(
    cli: Cli, conn: Connection, queue: str
) -> None:
    said = cli.ok("event", "insert", queue, "t", "later", "--delay", "2 hours", "--extra1", "x")
    assert "to be delivered at" in said
    number = said.split(":")[-1].strip()
    cli.ok("event", "insert", queue, "t", "sooner", "--delay", "1h")
    first, second = cli.json_lines("event", "delayed", queue)
    assert list(first) == ["due", "id", "type", "data", "extra1", "extra2", "extra3", "extra4"]
    assert (first["data"], second["data"], second["extra1"]) == ("sooner", "later", "x")
    assert str(second["id"]) == number
    assert len(cli.json_lines("event", "delayed", queue, "-n", "1")) == 1
    assert "later" in cli.ok("event", "delayed", queue)
    assert cli.ok("event", "cancel", queue, number) == f"cancelled 1 event of {queue}\n"
    assert waiting(conn, queue) == ["sooner"]


def test_events_are_cancelled_all_or_none_or_with_their_queue(
    cli: Cli, conn: Connection, queue: str
) -> None:
    cli.ok("event", "insert", queue, "t", "d", "--delay", "1h")
    [event] = cli.json_lines("event", "delayed", queue)
    said = cli.fails("event", "cancel", queue, str(event["id"]), "999")
    assert "999; nothing was cancelled" in said
    assert "pgqpy event delayed" in said
    assert waiting(conn, queue) == ["d"]
    cli.fails("event", "cancel", "nosuch", "1")
    cli.fails("event", "delayed", "nosuch")
    assert "1 delayed event" in cli.fails("queue", "drop", queue)
    cli.ok("queue", "drop", queue, "--force")


def test_a_time_without_offset_is_local_and_a_file_has_one_for_all(
    cli: Cli, conn: Connection, queue: str, tmp_path: Path
) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text('{"type": "t", "data": "a"}\n{"type": "t", "data": "b"}\n')
    cli.ok("event", "insert", queue, "--file", str(file), "--at", "2020-01-01T00:00+01:00")
    cli.ok("event", "insert", queue, "--file", str(file), "--delay", "1h", "--batch", "1")
    assert move(conn) == 2
    assert waiting(conn, queue) == ["a", "b"]
    cli.ok("event", "insert", queue, "t", "year", "--at", "2999-01-01")
    assert waiting(conn, queue)[-1] == "year"


def test_a_key_makes_a_repeated_insert_a_no_op(cli: Cli, queue: str) -> None:
    said = cli.fails("event", "insert", queue, "t", "d", "--key", "k")
    assert "key_window" in said
    cli.ok("queue", "config", queue, "key_window", "1 day")
    first = cli.ok("event", "insert", queue, "t", "d", "--key", "k")
    assert cli.ok("event", "insert", queue, "t", "again", "--key", "k") == first
    assert [event["data"] for event in cli.json_lines("event", "peek", queue)] == ["d"]


def test_what_waits_is_counted_by_status_and_show(cli: Cli, conn: Connection, queue: str) -> None:
    assert "no delayed events" in cli.ok("event", "delayed", queue)
    shown = cli.json("queue", "show", queue)
    assert (shown["delayed_events"], shown["next_due"]) == (0, None)
    for delay in ("2 hours", "1 hour"):
        cli.ok("event", "insert", queue, "t", "d", "--delay", delay)
    shown = cli.json("queue", "show", queue)
    assert (shown["delayed_events"], bool(shown["next_due"])) == (2, True)
    assert "next one due" in cli.ok("queue", "show", queue)
    status = cli.json("status")["queues"][0]
    assert status["delayed_events"] == 2
    assert 3000 < status["next_due_in"] <= 3600
    assert "2 delayed, next in" in cli.ok("status")
