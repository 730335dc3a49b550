"""Connections of the command line, and looking up the one thing that was named."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pgqpy
from pgqpy.admin import Admin
from pgqpy.cli.interrupt import interruptible
from pgqpy.errors import ConsumerNotRegistered, QueueNotFound
from pgqpy.values import ConsumerInfo, QueueInfo

# What psycopg logs when it unwinds is raised as well; on a terminal it is noise.
logging.getLogger("psycopg").addHandler(logging.NullHandler())


@contextmanager
def connect(dsn: str) -> Iterator[pgqpy.Connection]:
    """Connect; each statement is its own transaction unless the command opens one."""
    with interruptible(), pgqpy.connect(dsn, autocommit=True) as conn:
        yield conn


def no_such_queue(queue: str) -> QueueNotFound:
    """The error for a queue that functions returned no row for."""
    return QueueNotFound(f"queue '{queue}' does not exist")


def one_queue(conn: pgqpy.Connection, queue: str) -> QueueInfo:
    """A queue's state. Raises QueueNotFound."""
    for info in Admin(conn).get_queue_info(queue):
        return info
    raise no_such_queue(queue)


def one_consumer(conn: pgqpy.Connection, queue: str, consumer: str) -> ConsumerInfo:
    """A consumer's state. Raises QueueNotFound or ConsumerNotRegistered."""
    for info in Admin(conn).get_consumer_info(queue, consumer):
        return info
    one_queue(conn, queue)
    raise ConsumerNotRegistered(f"consumer '{consumer}' is not registered on queue '{queue}'")
