"""Connections of the command line, and lookup of a single queue or consumer."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, LiteralString

from psycopg.rows import dict_row

import pgqpy
from pgqpy._runtime.planted import refuse_planted
from pgqpy.admin import Admin
from pgqpy.errors import ConsumerNotRegistered, QueueNotFound
from pgqpy.models import ConsumerInfo, QueueInfo

# psycopg raises the errors that it logs while unwinding; on a terminal the log is noise.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

#: The exit code that a shell reports for a process ended by SIGINT.
INTERRUPTED = 128 + signal.SIGINT

#: The seconds that unwinding may take after Ctrl-C.
PATIENCE = 1.0


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt at Ctrl-C inside the block; end the process if that hangs.

    An interrupt at the wrong moment, such as the start of a COPY, leaves psycopg waiting for its
    own lock. Ending the process is just as clean: the server rolls back uncommitted work.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        end_soon(INTERRUPTED)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def end_soon(code: int) -> None:
    """End the process, unless it has ended by then."""
    watchdog = threading.Timer(PATIENCE, os._exit, [code])
    watchdog.daemon = True
    watchdog.start()


@contextmanager
def connect(dsn: str, *, names_of_users: bool = False) -> Iterator[pgqpy.Connection]:
    """Connect; each statement is its own transaction unless the command opens one.

    With ``names_of_users`` keep the search path, on which the command looks up tables of users.
    """
    with interruptible(), pgqpy.connect(dsn, autocommit=True) as conn:
        refuse_planted(conn)
        # Ticks, and some changes, need it.
        conn.execute("set default_transaction_isolation = 'read committed'")
        if not names_of_users:
            # An operator in a schema on the path may fit better than PostgreSQL's.
            conn.execute("set search_path = pg_catalog, pg_temp")
        yield conn


def dict_rows(
    conn: pgqpy.Connection, statement: LiteralString, arguments: Sequence[Any] = ()
) -> list[dict[str, Any]]:
    """Return the rows of a statement, by column."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement, arguments).fetchall()


def no_such_queue(queue: str) -> QueueNotFound:
    """Return the error for a queue for which functions return no row."""
    return QueueNotFound(f"queue '{queue}' does not exist")


def one_queue(conn: pgqpy.Connection, queue: str) -> QueueInfo:
    """Return a queue's state. Raises QueueNotFound."""
    for info in Admin(conn).get_queue_info(queue):
        return info
    raise no_such_queue(queue)


def one_consumer(conn: pgqpy.Connection, queue: str, consumer: str) -> ConsumerInfo:
    """Return a consumer's state. Raises QueueNotFound or ConsumerNotRegistered."""
    for info in Admin(conn).get_consumer_info(queue, consumer):
        return info
    one_queue(conn, queue)
    raise ConsumerNotRegistered(f"consumer '{consumer}' is not registered on queue '{queue}'")
