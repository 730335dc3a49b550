"""Events into a queue of another database, by COPY; they keep their times."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import TypeAlias

import pgqpy
from pgqpy.errors import InvalidParameter, translate_errors
from pgqpy.formats import (
    NEW_EVENT_COLUMNS,
    TRAILER,
    CopyReader,
    copy_in,
    copy_out,
    event_table,
    padded,
)

COLUMNS = ("ev_time", *NEW_EVENT_COLUMNS)
TYPES = ["timestamptz", *["text"] * len(NEW_EVENT_COLUMNS)]

Timed: TypeAlias = tuple[pgqpy.Event, pgqpy.NewEvent]
"""The event that was read, whose time is kept, and the event to write."""


def is_same_database(consumer: pgqpy.RemoteConsumer, target: pgqpy.Connection) -> bool:
    """Whether the consumer's queue is in its target database."""
    with pgqpy.connect(consumer.dsn) as source:
        return source.execute(_DATABASE).fetchall() == target.execute(_DATABASE).fetchall()


def endless(queue: str) -> InvalidParameter:
    """The error for a consumer that would write what it reads."""
    return InvalidParameter(
        f"events of queue {queue} would go into itself, for ever",
        hint="Write to another queue, or to one of another database.",
    )


def write_events(target: pgqpy.Connection, queue: str, events: Iterable[Timed]) -> None:
    """Write events, in their order."""
    table = event_table(target, queue)
    with (
        translate_errors(),
        target.cursor() as cursor,
        cursor.copy(copy_in(table, COLUMNS)) as copy,
    ):
        copy.set_types(TYPES)
        for read, written in events:
            copy.write_row((read.time, *padded(written)))


def copy_events(
    source: pgqpy.Connection, batch: pgqpy.Batch, target: pgqpy.Connection, queue: str
) -> None:
    """Write a batch's events unchanged, without decoding them."""
    table = event_table(target, queue)
    query = copy_out(batch.sql, batch.event_types, COLUMNS).as_bytes(source)
    with translate_errors(), target.cursor() as cursor, closing(CopyReader(source)) as reader:
        reader.begin(query)
        with cursor.copy(copy_in(table, COLUMNS)) as copy:
            while messages := reader.messages():
                batch.events_read += len(messages) - (messages[-1] == TRAILER)
                copy.write(b"".join(messages))


_DATABASE = b"select pg_postmaster_start_time(), current_database()"
