"""The command: a thread reads the database, this one reads keys and draws."""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import click
import psycopg
from rich.live import Live

from pgqpy.cli._base.command import Command, seconds_option, stuck_after_option
from pgqpy.cli._base.database import connect
from pgqpy.cli._base.errors import CliError, first_line
from pgqpy.cli._base.output import console
from pgqpy.cli._top.screen import Screen
from pgqpy.cli._top.tables import Opened, Reading, Table
from pgqpy.connection import Connection
from pgqpy.doctor._history import History
from pgqpy.doctor._queues import status_of
from pgqpy.doctor._readings import read, task_workers
from pgqpy.doctor._status import judge
from pgqpy.errors import PermissionDenied
from pgqpy.tasks import Tasks

#: Tasks of each kind that are counted; workers that are listed.
COUNTED, WORKERS = 10_000, 500
#: Seconds between attempts at a database that is away.
AWAY = 1.0
SEQUENCES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\b": "backspace",
}


@click.command(cls=Command, role="pgq_reader")
@seconds_option("--every", 1, "How often the database is read.", least=0.1)
@stuck_after_option
def top(dsn: str, every: float, stuck_after: float) -> None:
    """Watch queues, consumers, tasks, workers and problems on a full screen.

    1 to 5 choose the tab, the arrows a line, Enter opens it: the consumers of a queue, the tasks of
    a task queue or a worker, an error or a problem in full; Escape goes back. / finds lines, < and
    > choose the column to sort by, r turns the order round, p pauses, q quits.

    Examples:
      pgqpy top
      pgqpy top --every 5
    """
    if not (sys.stdin.isatty() and console().is_terminal):
        raise CliError("top needs a terminal", "for a file or a pipe: pgqpy status --watch")
    # The first connection is made here, so that its errors are told as those of other commands.
    with connect(dsn):
        pass
    reader = Reader(dsn, every, timedelta(seconds=stuck_after))
    screen = Screen()
    with _keys() as keys, reader, Live(console=console(), screen=True, auto_refresh=False) as live:
        while not screen.ended:
            reader.show(screen)
            live.update(screen.draw(live.console), refresh=True)
            ready, _, _ = select.select([keys, reader.wakes], [], [])
            if keys in ready:
                for key in _pressed(keys):
                    screen.press(key)
                reader.want(screen.opened[-1] if screen.opened else None)


class Reader:
    """Reads the database in a thread of its own, so that keys work while it does not answer."""

    def __init__(self, dsn: str, every: float, patience: timedelta) -> None:
        self._dsn, self._every, self._patience = dsn, every, patience
        self._history = History()
        self._changed = threading.Condition()
        self._wanted: Opened | None = None
        self._ended = False
        self._last: tuple[Reading | None, Opened | None, Table | None, str] = None, None, None, ""
        self.wakes, self._wake = os.pipe()
        os.set_blocking(self.wakes, False)
        # It may wait for a server that does not answer: the process does not wait for it.
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()

    def want(self, opened: Opened | None) -> None:
        """Say what is open: its rows are read at once."""
        with self._changed:
            if opened is not self._wanted:
                self._wanted = opened
                self._changed.notify()

    def show(self, screen: Screen) -> None:
        """Give the screen what was read last, unless it is paused."""
        with suppress(BlockingIOError):
            os.read(self.wakes, 65536)
        reading, opened, found, problem = self._last
        screen.problem = problem
        if (
            screen.opened
            and screen.opened[-1] is opened
            and (screen.found is None or not screen.paused)
        ):
            screen.found = found
        if not screen.paused or screen.reading is None:
            screen.reading = reading or screen.reading

    def _run(self) -> None:
        while not self._ended:
            try:
                with connect(self._dsn) as conn:
                    self._read_on(conn)
            except Exception as error:
                # Also a bug: the screen must not stand still and say nothing.
                told = first_line(str(error)) or type(error).__name__
                self._tell(f"{told}: what is shown is old")
                self._pause(AWAY)

    def _read_on(self, conn: Connection) -> None:
        while not self._ended:
            wanted = self._wanted
            reading = read_all(conn, self._history, self._patience)
            found = wanted.read(conn) if wanted and wanted.read else None
            self._last = reading, wanted, found, ""
            self._tell("")
            if wanted is self._wanted:
                self._pause(self._every)

    def _tell(self, problem: str) -> None:
        self._last = *self._last[:3], problem
        os.write(self._wake, b".")

    def _pause(self, seconds: float) -> None:
        with self._changed:
            if not self._ended:
                self._changed.wait(seconds)


def read_all(conn: Connection, history: History, patience: timedelta) -> Reading:
    """Read what all tabs show, and add it to the history."""
    with conn.transaction():
        # Of one moment: what comes in between would count as read by all consumers.
        conn.execute("set transaction isolation level repeatable read, read only")
        status = status_of(judge(read(conn, None, patience), patience))
        history.read(conn, status)
    # The rates now: the history changes with the next reading, while this one is drawn.
    out = {
        (queue.queue, each.consumer): history["out", queue.queue, each.consumer].rate
        for queue in status.queues
        for each in queue.consumers
    }
    try:
        with conn.transaction():
            tasks = Tasks(conn).queues(max_count=COUNTED)
            return Reading(status, out, tasks, task_workers(conn, WORKERS))
    except (PermissionDenied, psycopg.errors.InsufficientPrivilege):
        return Reading(status, out, None, None)


@contextmanager
def _keys() -> Iterator[int]:
    """Let the terminal send each key at once; yield its file descriptor."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield terminal
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _pressed(terminal: int) -> Iterator[str]:
    """Yield the keys that were pressed, by character or name."""
    text = os.read(terminal, 1024).decode(errors="ignore")
    if not text:
        # The terminal is gone.
        yield "q"
    while text:
        for sequence, name in SEQUENCES.items():
            if text.startswith(sequence):
                yield name
                break
        else:
            sequence = text[0]
            yield sequence
        text = text[len(sequence) :]
