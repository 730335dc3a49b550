"""`pgqpy top`: what keys do, and the program in a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from rich.console import Console

from pgqpy import Admin
from pgqpy.cli._top import command
from pgqpy.cli._top.command import _pressed, read_all
from pgqpy.cli._top.screen import Screen
from pgqpy.doctor._history import History
from pgqpy.doctor._status import Judgement, judge
from pgqpy.tasks import Tasks
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_client import PATIENCE
from tests.fixtures.fix_db import Connect, Connection

EVIL = "\x1b[31mred\x07[bold]"


def look(screen: Screen, height: int = 30, width: int = 120) -> str:
    console = Console(width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(screen.draw(console))
    return capture.get()


def names(screen: Screen, column: int = 0) -> list[str]:
    table = screen.table()
    assert table is not None
    return [row.cells[column].text for row in table.rows]


def press(screen: Screen, *keys: str) -> None:
    for key in keys:
        screen.press(key)


@pytest.fixture
def screen(conn: Connection) -> Screen:
    """Of a database with two queues, three consumers, and tasks."""
    admin, tasks = Admin(conn), Tasks(conn)
    for name in ("orders", "clicks"):
        admin.create_queue(name)
    for consumer in ("billing", "search"):
        admin.register_consumer("orders", consumer)
    admin.register_consumer("clicks", "warehouse")
    conn.execute("select pgq.insert_event('orders', 'a', '{}') from generate_series(1, 7)")
    ops.tick(conn, "orders")
    batch = admin.next_batch("orders", "search")
    assert batch is not None
    admin.finish_batch(batch)
    tasks.create_queue("mails")
    tasks.push("mails", {"to": "ann"})
    tasks.change("mails", None, {"error": EVIL})
    tasks.claim("mails")
    tasks.push("mails", {"to": "bob"})
    reading = read_all(conn, History(), timedelta(minutes=5))
    return Screen(reading=reading)


def test_tabs_show_all_there_is(screen: Screen) -> None:
    assert sorted(names(screen)) == ["clicks", "orders"]
    assert screen.reading is not None
    assert screen.reading.workers
    [worker] = screen.reading.workers
    for key, found in {"2": "billing", "3": "mails", "4": worker.claimant}.items():
        press(screen, key)
        assert found in look(screen), key
    press(screen, "5")
    assert "no problems" in look(screen).splitlines()[3]
    press(screen, "tab")
    assert screen.tab == "queues"


def test_a_consumer_that_reads_nothing_has_no_rate_though_events_come(
    dsn: str, conn: Connection, screen: Screen, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, history, patience = connect(dsn), History(), timedelta(minutes=5)
    read_all(conn, history, patience)

    def judge_late(*readings: Any) -> Judgement:
        other.execute("select pgq.insert_event('orders', 'a', '{}') from generate_series(1, 7)")
        ops.tick(other, "orders")
        return judge(*readings)

    monkeypatch.setattr(command, "judge", judge_late)
    assert read_all(conn, history, patience).out["orders", "billing"] == 0


def test_lines_are_sorted_by_any_column_those_without_a_value_last(screen: Screen) -> None:
    press(screen, "2", ">", ">")
    assert look(screen).splitlines()[3].split()[4] == "Backlog▼"
    assert names(screen, 1)[0] == "billing"
    press(screen, "r")
    assert names(screen, 1)[-1] == "billing"
    press(screen, ">", ">", ">")
    # No consumer has a batch.
    assert len(names(screen)) == 3
    press(screen, *[">"] * 3)
    assert names(screen, 1) == ["billing", "search", "warehouse"]
    press(screen, "1", "2")
    assert names(screen, 1) == ["billing", "search", "warehouse"]  # as it was left


def test_lines_are_found_as_one_types(screen: Screen) -> None:
    press(screen, "2", "/", *"seax", "backspace")
    assert names(screen, 1) == ["search"]
    press(screen, "enter", "q")
    assert screen.ended
    press(screen, "escape")
    assert len(names(screen)) == 3
    press(screen, "/", *"q1", "escape")
    assert (screen.find, screen.tab) == ("", "consumers")
    press(screen, "/", "z")
    assert "nothing has 'z'" in look(screen)


def test_a_queue_opens_its_consumers_and_a_consumer_a_text(screen: Screen) -> None:
    press(screen, "/", *"orders", "enter", "enter")
    assert names(screen, 1) == ["billing", "search"]
    press(screen, "end", "enter")
    assert "search of orders: ok" in look(screen)
    press(screen, "down", "enter")  # nothing to select, nothing to open
    press(screen, "escape", "escape")
    assert (screen.opened, screen.tab) == ([], "queues")


def test_a_task_queue_opens_its_tasks_in_which_nothing_is_obeyed(
    conn: Connection, screen: Screen
) -> None:
    press(screen, "3", "enter")
    assert "reading" in look(screen)
    read = screen.opened[-1].read
    assert read is not None
    screen.found = read(conn)
    listed = look(screen)
    press(screen, "enter")
    for seen in (listed, look(screen)):
        assert "red" in seen
        assert "[bold]" in seen
        assert "\x1b[31m" not in seen
        assert "\x07" not in seen


def test_what_is_selected_stays_selected_when_lines_move(screen: Screen) -> None:
    press(screen, "2", ">", "end")
    chosen = screen.selected
    press(screen, "r")
    assert screen.selected == chosen
    assert names(screen, 1)[0] == (chosen or ())[1]


def test_a_screen_of_any_height_shows_the_selected_line(screen: Screen) -> None:
    press(screen, "2", "end")
    for height in (1, 7, 8, 24):
        assert (screen.selected or ())[1] in look(screen, height)


def test_long_names_leave_room_for_numbers(conn: Connection, screen: Screen) -> None:
    Tasks(conn).create_queue("long" * 15)
    screen.reading = read_all(conn, History(), timedelta(minutes=5))
    press(screen, "3")
    told = look(screen, width=76)
    assert "longlo" in told
    assert {"Available", "Claimed", "Stopped"} <= set(told.split())


def test_without_rights_on_tasks_the_rest_is_shown(screen: Screen) -> None:
    assert screen.reading is not None
    screen.reading = replace(screen.reading, tasks=None, workers=None)
    press(screen, "3")
    assert "you may not see task queues" in look(screen)
    press(screen, "4")
    assert "you may not see tasks" in look(screen)


def test_sequences_of_the_terminal_are_keys() -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"\x1b[A\x1b[5~\r/\xc3\xa9\x1b")
    assert list(_pressed(ours)) == ["up", "page up", "enter", "/", "é", "escape"]
    os.close(theirs)
    assert list(_pressed(ours)) == ["q"]
    os.close(ours)


def test_without_a_terminal_it_says_what_to_do(cli: Cli) -> None:
    assert "pgqpy status --watch" in cli.fails("top")


def test_rates_are_those_of_the_reading_whatever_is_read_next(
    conn: Connection, screen: Screen
) -> None:
    history = History()
    for number in (0, 100):
        history.add(number, {("out", "orders", "billing"): number * 3.0})
    history.read = lambda *_: None  # type: ignore[method-assign]
    screen.reading = read_all(conn, history, timedelta(minutes=5))
    history.add(200, {})
    press(screen, "2", "/", *"billing", "enter")
    assert names(screen, 5) == ["3.0"]


# --- the program


@contextmanager
def terminal(dsn: str) -> Iterator[tuple[int, int, subprocess.Popen[bytes]]]:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pgqpy", "top", "--dsn", dsn, "--every", "0.1"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
    program = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, close_fds=True
    )
    try:
        yield ours, theirs, program
    finally:
        program.kill()
        program.wait()
        os.close(ours)
        os.close(theirs)


def until(ours: int, text: str, meanwhile: Callable[[], object] = bool) -> None:
    """Read what the program writes until it has written this; call a function again and again."""
    seen, end = "", time.monotonic() + PATIENCE
    while text not in seen:
        meanwhile()
        ready, _, _ = select.select([ours], [], [], max(end - time.monotonic(), 0))
        assert ready, f"{text!r} was not seen in {seen[-3000:]!r}"
        seen += os.read(ours, 65536).decode(errors="ignore")


def test_it_is_kept_up_to_date_and_recovers_from_a_lost_database(
    dsn: str, conn: Connection
) -> None:
    Admin(conn).create_queue("orders")
    Tasks(conn).create_queue("mails")
    with terminal(dsn) as (ours, theirs, program):
        before = termios.tcgetattr(theirs)
        until(ours, "orders")
        Admin(conn).create_queue("later")
        until(ours, "later")
        os.write(ours, b"3")
        until(ours, "mails")
        end = (
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        # Again and again: it may have recovered before it has drawn that.
        until(ours, "what is shown is old", lambda: conn.execute(end))
        Tasks(conn).create_queue("again")
        until(ours, "again")
        os.write(ours, b"q")
        until(ours, "\x1b[?1049l")
        assert program.wait(PATIENCE) == 0
        assert termios.tcgetattr(theirs)[3] == before[3]
