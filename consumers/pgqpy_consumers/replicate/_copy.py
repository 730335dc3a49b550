"""Copying a table, and catching up until it is in step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import LiteralString

import psycopg
from psycopg import sql
from psycopg.abc import Buffer

import pgqpy
from pgqpy.errors import from_psycopg
from pgqpy_consumers.apply import Change, Table
from pgqpy_consumers.apply._change import change_from
from pgqpy_consumers.apply._merge import identifiers, is_about_tables, naming
from pgqpy_consumers.replicate import _source as catalog
from pgqpy_consumers.replicate._apply import Applier
from pgqpy_consumers.replicate._state import (
    CATCHING_UP,
    COPYING,
    Replica,
    ReplicaError,
    Snapshot,
    State,
)

logger = logging.getLogger("pgqpy")

#: The number of waiting changes applied in one transaction.
CHUNK = 20_000

_POSITION: LiteralString = """
select t.tick_snapshot::text,
       (select n.tick_snapshot::text from pgq.tick n
         where n.tick_queue = q.queue_id order by n.tick_id desc limit 1)
  from pgq.get_consumer_info(%s, %s) c
  join pgq.queue q on q.queue_name = c.queue_name
  join pgq.tick t on t.tick_queue = q.queue_id and t.tick_id = c.last_tick
"""


class Stopped(Exception):
    """The process is to end; unfinished work is repeated."""


class _Unwanted(Exception):
    """The table was removed, or is to be copied again."""


class Copier:
    """Copies a table, and lets the copy catch up."""

    def __init__(
        self,
        source: pgqpy.Connection,
        state: State,
        replica: Replica,
        check_stop: Callable[[], None],
    ) -> None:
        """``check_stop`` is called again and again; it raises `Stopped` to end the work."""
        self._source = source
        self._target = state.conn
        self._state = state
        self._replica = replica
        self._applier = Applier()
        self._check_stop = check_stop

    def copy(self) -> bool:
        """Copy all rows, in one transaction of the target; False if it was removed meanwhile.

        The copy's snapshot tells what the copy has seen. Changes wait from before it was taken, so
        that each change is either in the copy or waits, or is still in the queue.
        """
        with self._target.transaction():
            self._state.own()
            if self._state.now(self._replica) is None:
                return False
            self._state.begin_copy(self._replica)
        try:
            rows = self._copy_rows()
        except _Unwanted:
            return False
        logger.info("table %s: %s rows copied", self._replica, rows)
        return True

    def _copy_rows(self) -> int:
        source, target, replica = self._source, self._target, self._replica
        # What was applied before the table's changes began to wait, must be in the copy.
        tick = self._state.progress() or _position(source, *self._state.names)
        queue, _ = self._state.names
        with catalog.reading(source, queue, replica.source, tick, self._check_stop) as snapshot:
            relation = catalog.by_names(source, replica.source)
            names = catalog.chosen(source, relation, replica.columns)
            with target.transaction():
                self._applier.prepare(target)
                self._applier.forget(replica)
                table = self._applier.table(target, replica)
                columns = identifiers([each.name for each in table.writable(names)])
                # Readers keep the old rows until the copy is there; TRUNCATE would lock them out.
                with naming(table):
                    target.execute(sql.SQL("delete from {}").format(table.identifier))
                copy_out = sql.SQL("copy (select {} from {} {}) to stdout").format(
                    columns,
                    sql.SQL("" if relation.kind == "p" else "only"),
                    sql.Identifier(*relation.names),
                )
                # A COPY holds the lock of its connection, which the end of its transaction needs.
                with closing(_read(source, copy_out)) as blocks:
                    rows = self._write(blocks, table, columns)
                if not self._state.end_copy(replica, snapshot):
                    raise _Unwanted
        return rows

    def _write(self, blocks: Iterator[Buffer], table: Table, columns: sql.Composed) -> int:
        """Write the rows into the target; returns how many."""
        statement = sql.SQL("copy {} ({}) from stdin").format(table.identifier, columns)
        with self._target.cursor() as cursor:
            try:
                with cursor.copy(statement) as copy:
                    for block in blocks:
                        self._check_stop()
                        copy.write(block)
            except psycopg.Error:
                with naming(table):
                    raise
            return cursor.rowcount

    def catch_up(self) -> None:
        """Apply the changes that have waited; after the last of them the stream takes over. Raises
        the error that prevents it."""
        while True:
            self._check_stop()
            with self._target.transaction():
                if self._apply_waiting() == CHUNK:
                    continue
            with self._target.transaction():
                # Under this lock the stream cannot add changes.
                self._state.own()
                while (done := self._apply_waiting()) == CHUNK:
                    pass
                if done is not None:
                    self._state.caught_up(self._replica)
                return

    def _apply_waiting(self) -> int | None:
        """Apply some; returns how many. None if the table is not waiting any more."""
        self._applier.prepare(self._target)
        now = self._state.now(self._replica)
        if now is None or not now.waiting or not now.copied or now.state == COPYING:
            return None
        seen = now.snapshot
        rows = self._state.waiting(now, now.applied, CHUNK)
        changes: list[tuple[Replica, Change]] = []
        for _, event_id, txid, event_type, data, extra1 in rows:
            if seen is None or not seen.sees(txid):
                change = change_from(event_id, txid, event_type, data, extra1)
                assert change is not None
                changes.append((now, change))
        for error in self._applier.apply(self._target, changes).values():
            raise error
        if rows:
            self._state.applied(now, rows[-1][0])
        return len(rows)


def mark_in_step(source: pgqpy.Connection, state: State) -> None:
    """Set tables in step whose copy the queue has passed."""
    pending = [
        (each, snapshot)
        for each in state.tables()
        if each.state == CATCHING_UP and not each.waiting and (snapshot := each.snapshot)
    ]
    if not pending:
        return
    row = source.execute(_POSITION, state.names).fetchone()
    if row is None:
        return
    position, newest = map(Snapshot.parse, row)
    for replica, snapshot in pending:
        if position.covers(snapshot):
            state.in_step(replica)
            logger.info("table %s is in step", replica)
    if not all(newest.covers(snapshot) for _, snapshot in pending):
        # An idle queue would be ticked only once a minute.
        source.execute("select pgq.force_tick(%s)", state.names[:1])


def _position(source: pgqpy.Connection, queue: str, consumer: str) -> int:
    [info] = pgqpy.Admin(source).get_consumer_info(queue, consumer)
    return info.last_tick or 0


def _read(source: pgqpy.Connection, copy_out: sql.Composed) -> Generator[Buffer, None, None]:
    try:
        with source.cursor() as reading, reading.copy(copy_out) as rows:
            yield from rows
    except psycopg.Error as error:
        if not is_about_tables(error):
            raise
        raise ReplicaError(f"the source cannot be read: {from_psycopg(error).message}") from error
