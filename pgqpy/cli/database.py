"""Connections of the command line, and lookup of a single queue or consumer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pgqpy
from pgqpy.admin import Admin
from pgqpy.cli.interrupt import interruptible
from pgqpy.errors import ConsumerNotRegistered, QueueNotFound
from pgqpy.values import ConsumerInfo, QueueInfo

# psycopg raises the errors that it logs while unwinding; on a terminal the log is noise.
logging.getLogger("psycopg").addHandler(logging.NullHandler())


@contextmanager
def connect(dsn: str) -> Iterator[pgqpy.Connection]:
    """Connect; each statement is its own transaction unless the command opens one."""
    with interruptible(), pgqpy.connect(dsn, autocommit=True) as conn:
        yield conn


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
