"""`pgqpy event`: in by arguments, standard input and files; seen without being consumed."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli, Spawn
from tests.fixtures.fix_db import Connection


def data(cli: Cli, queue: str) -> list[str | None]:
    return [event["data"] for event in cli.json_lines("event", "peek", queue, "-n", "100")]


def test_an_event_from_the_arguments_has_all_its_fields(cli: Cli, queue: str) -> None:
    extras = [word for n in "1234" for word in (f"--extra{n}", f"x{n}")]
    assert "inserted 1 event" in cli.ok("event", "insert", queue, "type", "däta", *extras)
    [event] = cli.json_lines("event", "peek", queue)
    assert list(event) == [
        *("id", "time", "txid", "retry", "type", "data"),
        *("extra1", "extra2", "extra3", "extra4"),
    ]
    assert (event["type"], event["data"], event["retry"]) == ("type", "däta", 0)
    assert [event[f"extra{n}"] for n in "1234"] == ["x1", "x2", "x3", "x4"]


def test_standard_input_is_the_data_byte_for_byte(cli: Cli, queue: str) -> None:
    # Binary input is refused with the remedy.
    for binary in (b"a\0b", b"\xff\xfe"):
        assert "base64" in cli.fails("event", "insert", queue, "type", "-", stdin=binary)
    payloads = ["", "a\nb\n", "x" * 3_000_000]
    for payload in payloads:
        cli.ok("event", "insert", queue, "type", "-", stdin=payload)
    assert data(cli, queue) == payloads


def test_a_json_lines_file_is_inserted_in_its_order(cli: Cli, queue: str, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text("".join(f'{{"type": "t", "data": "{n}"}}\n' for n in range(50)))
    assert "inserted 50 events" in cli.ok("event", "insert", queue, "--file", str(file))
    assert data(cli, queue) == [str(n) for n in range(50)]


def test_csv_rows_and_lines_of_standard_input_are_events(
    cli: Cli, queue: str, tmp_path: Path
) -> None:
    file = tmp_path / "flights.csv"
    file.write_text("carrier,delay\nUA,12\nDL,-3\n", encoding="utf-8-sig")
    cli.ok("event", "insert", queue, "flight", "--file", str(file), "--whole-row")
    lines = ("event", "insert", queue, "line", "--file", "-", "--format", "lines")
    cli.ok(*lines, stdin="one\ntwo\n")
    first, second, *rest = data(cli, queue)
    assert json.loads(first or "") == {"carrier": "UA", "delay": "12"}
    assert json.loads(second or "") == {"carrier": "DL", "delay": "-3"}
    assert rest == ["one", "two"]


def test_what_peek_shows_as_json_can_be_inserted_into_another_queue(cli: Cli, queue: str) -> None:
    for n in range(3):
        cli.ok("event", "insert", queue, "t", f'{{"n": {n}}}', "--extra1", "x")
    lines = cli.ok("event", "peek", queue, "--json")
    cli.ok("queue", "create", "copy")
    cli.ok("event", "insert", "copy", "--file", "-", stdin=lines)
    keys = ("type", "data", "extra1")
    assert [[event[key] for key in keys] for event in cli.json_lines("event", "peek", "copy")] == [
        [event[key] for key in keys] for event in map(json.loads, lines.splitlines())
    ]


BROKEN = '{"type": "t", "data": "1"}\n{"type": "t", "data": "2"}\n{"type": "t", "data": \n'


def test_of_a_file_with_a_broken_line_nothing_is_inserted_but_batches_before(
    cli: Cli, queue: str
) -> None:
    said = cli.fails("event", "insert", queue, "--file", "-", stdin=BROKEN)
    assert "line 3" in said
    assert data(cli, queue) == []
    said = cli.fails("event", "insert", queue, "--file", "-", "--batch", "2", stdin=BROKEN)
    assert "line 3" in said
    assert "2 events were inserted before" in said
    assert data(cli, queue) == ["1", "2"]


def test_wrong_usage_is_told(cli: Cli, queue: str) -> None:
    insert = ("event", "insert", queue)
    for arguments in (
        (),
        ("type",),
        ("type", "data", "--file", "-"),
        ("--file", "-", "--extra1", "x"),
        ("type", "data", "--batch", "5"),
        ("type", "data", "--whole-row"),
        ("type", "a\0b"),
        ("type", "data", "--extra1", "a\0b"),
        ("type", "data", "--at", "2030-01-01", "--delay", "1h"),
        ("type", "data", "--at", "tomorrow"),
        ("--file", "-", "--key", "k"),
    ):
        cli.fails(*insert, *arguments, exit_code=2)
    assert "'90 seconds'" in cli.fails(*insert, "type", "data", "--delay", "soon")
    cli.fails("event", "cancel", queue, exit_code=2)
    assert "nosuch.csv" in cli.fails(*insert, "--file", "nosuch.csv", exit_code=2)
    cli.fails("event", "peek", queue, "--from-tick", "1", exit_code=2)
    ticks = ("--from-tick", "1", "--to-tick", "2")
    cli.fails("event", "peek", queue, *ticks, "--since", "2026-11-21", exit_code=2)
    cli.fails("event", "peek", queue, "--since", "yesterday", exit_code=2)


COPYING = """
select pid from pg_stat_activity where datname = current_database() and query ilike 'copy%'
"""


def test_ctrl_c_while_a_file_is_inserted_leaves_nothing_of_it(
    cli: Cli, conn: Connection, queue: str, spawn: Spawn
) -> None:
    command = ("event", "insert", queue, "t", "--file", "-", "--format", "lines")
    insert = spawn(*command, stdin=subprocess.PIPE)
    assert insert.stdin is not None
    insert.stdin.write("x" * 1000 + "\n")
    insert.stdin.flush()
    while not conn.execute(COPYING).fetchall():
        assert insert.poll() is None
    insert.send_signal(signal.SIGINT)
    _, complaints = insert.communicate()
    assert (insert.returncode, complaints) == (130, "")
    assert data(cli, queue) == []


def test_peek_shows_the_newest_events_oldest_first(cli: Cli, conn: Connection, queue: str) -> None:
    for n in range(12):
        ops.insert(conn, queue, str(n))
        ops.tick(conn, queue)
    newest = ["7", "8", "9", "10", "11"]
    assert [each["data"] for each in cli.json_lines("event", "peek", queue, "-n", "5")] == newest
    # Enough of them also behind many that were rolled back.
    with conn.transaction(force_rollback=True):
        conn.execute(
            "select pgq.insert_event(%s, 't', 'never') from generate_series(1, 500)", [queue]
        )
    ops.tick(conn, queue)
    assert [each["data"] for each in cli.json_lines("event", "peek", queue, "-n", "5")] == newest


def test_peek_since_a_time_shows_the_first_events_from_then_on(
    cli: Cli, conn: Connection, queue: str
) -> None:
    for data in "abc":
        ops.insert_ticked(conn, queue, data)
    time = ops.value(conn, "select clock_timestamp()").isoformat()
    ops.insert_ticked(conn, queue, "d", "e")
    ops.insert(conn, queue, "f")

    def since(time: str, *options: str) -> list[str]:
        peek = ("event", "peek", queue, "--since", time, *options)
        return [each["data"] for each in cli.json_lines(*peek)]

    assert since(time) == ["d", "e", "f"]
    assert since(time, "-n", "2") == ["d", "e"]
    assert since("2001-01-01") == [*"abcdef"]
    assert "no events there" in cli.ok("event", "peek", queue, "--since", "2999-01-01")


def test_peek_finds_events_by_what_they_hold(cli: Cli, conn: Connection, queue: str) -> None:
    start = ops.tick(conn, queue)
    for data in ('{"order": {"id": 4711}, "tags": ["50%"]}', '{"order": {"id": "4712"}}', "{4711"):
        ops.insert(conn, queue, data)
    conn.execute("select pgq.insert_event(%s, 'other', '[1, 2]')", [queue])
    ops.tick(conn, queue)

    def found(*options: str) -> list[str]:
        ways: tuple[tuple[str, ...], ...] = (
            (),
            ("--since", "2001-01-01"),
            ("--from-tick", str(start), "--to-tick", str(start + 1)),
        )
        one, *same = (
            [each["data"] for each in cli.json_lines("event", "peek", queue, *options, *way)]
            for way in ways
        )
        assert same == [one, one]
        return [data[:12] for data in one]

    assert found("--path", "$.order.id", "--value", "4711") == ['{"order": {"']
    assert len(found("--path", "$.order.id")) == 2
    assert found("--path", "$[*]", "--value", "2") == ["[1, 2]"]
    assert len(found("--contains", "4711")) == 2
    assert found("--contains", "50%", "--type", "test") == ['{"order": {"']
    assert found("--type", "other") == ["[1, 2]"]
    assert "jsonpath" in cli.fails("event", "peek", queue, "--path", "$.")
    cli.fails("event", "peek", queue, "--value", "4711", exit_code=2)


def test_peek_between_two_ticks_shows_what_a_consumer_would_get(
    cli: Cli, conn: Connection, queue: str
) -> None:
    ticks = []
    for n in range(3):
        ticks.append(str(ops.tick(conn, queue)))
        ops.insert(conn, queue, str(n))
    events = cli.json_lines("event", "peek", queue, "--from-tick", ticks[0], "--to-tick", ticks[2])
    assert [event["data"] for event in events] == ["0", "1"]


def test_peeking_consumes_nothing_and_shows_control_characters_as_escapes(
    cli: Cli, queue: str
) -> None:
    cli.ok("consumer", "register", queue, "counter")
    cli.ok("event", "insert", queue, "t", "\x1b]0;owned\x07[bold]x")
    before = cli.json("consumer", "list")[0]["last_tick"]
    assert r"\x1b]0;owned\x07[bold]x" in cli.ok("event", "peek", queue)
    assert cli.json("consumer", "list")[0]["last_tick"] == before
    assert len(data(cli, queue)) == 1
