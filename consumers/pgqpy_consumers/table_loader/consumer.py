"""The table loader: captured changes in tables of another database."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Literal, get_args

import pgqpy
from pgqpy.errors import InvalidParameter, InvalidPayload
from pgqpy_consumers.apply import (
    ApplyError,
    BadEvent,
    Change,
    Table,
    apply_all,
    change_of,
    describe,
    rounds,
)
from pgqpy_consumers.apply._change import Row
from pgqpy_consumers.apply._merge import by_columns, copy_rows, naming
from pgqpy_consumers.settings import Configured, setting
from pgqpy_consumers.table_loader._bad_row import bad_row, is_about_rows
from pgqpy_consumers.table_loader._partitions import Every, make_partitions, partition_column

Mode = Literal["latest", "plain", "history"]
BadRows = Literal["stop", "dead_letter"]
Source = Literal["operation", "event_id", "event_time", "txid"]
SOURCES: tuple[Source, ...] = get_args(Source)

Loaded = tuple[pgqpy.Event, Change]

#: The number of events held in memory and applied together.
_PIECE = 50_000


class TableLoader(Configured, pgqpy.RemoteConsumer):
    """Applies the changes of captured tables to tables of another database, each exactly once.

    The queue is filled by `pgq.capture_table`, or by the row triggers jsontriga or logutriga. To
    change rows, or to leave some out, subclass it and override `convert`.
    """

    consumer = "table_loader"
    target_dsn: str = setting("The database with the tables to load.")
    tables: Mapping[str, str] = setting(
        "Tables of the source and those of the target that they go into, and no others; without"
        " it, all go into tables of the same name.",
        default={},
        example={"public.orders": "reports.orders"},
    )
    mode: Mode = setting(
        "latest: the last state of each row, in bulk; plain: change by change; history: a new row"
        " for each.",
        default="latest",
    )
    partitions: Every | None = setting(
        "Make partitions of an hour, day, month or year when rows need them.",
        default=None,
        example="month",
    )
    history_columns: Mapping[str, Source] = setting(
        "In history, columns for operation, event_id, event_time or txid; with operation,"
        " deletions are rows, too.",
        default={},
        example={"changed_at": "event_time", "operation": "operation"},
    )
    bad_rows: BadRows = setting(
        "If a row does not fit: stop, or put the event aside as a dead_letter.", default="stop"
    )
    ignore_other_events: bool = setting(
        "Leave out events that are no changes of tables, instead of failing.", default=False
    )
    batch_size: int | None = setting(
        "The approximate number of events a transaction.", default=50_000, at_least=1
    )

    _nested: bool | None = None

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Raise ValueError if there are columns for history in another mode."""
        if config.history_columns and config.mode != "history":
            raise ValueError(f"history_columns are for mode history, not for {config.mode}")

    # --- to be overridden

    def convert(self, change: Change) -> Change | None:
        """The change to make; None to leave it out. Values are text, as PostgreSQL wrote them; the
        key columns must stay."""
        return change

    # --- implementation

    def prepare_target(self, target: pgqpy.Connection) -> None:
        """Raises TableMissing if a table that the settings name is missing."""
        self._nested = None
        if unknown := set(self.history_columns.values()) - set(SOURCES):
            raise InvalidParameter(
                f"history_columns cannot be {', '.join(sorted(unknown))}",
                hint=f"They get one of {', '.join(SOURCES)}.",
            )
        if self.bad_rows == "dead_letter" and self.retry_policy is None:
            # A row that does not fit will not fit later.
            self.retry_policy = pgqpy.FixedDelay(0, attempts=1)
        for name in self.tables.values():
            describe(target, *_split(name))

    def process_remote_batch(
        self, conn: pgqpy.Connection, batch: pgqpy.Batch, target: pgqpy.Connection
    ) -> None:
        """Apply the batch's changes."""
        if self._nested is None:
            self._nested = _has_nested(conn, self.queue)
        changes = self._changes(batch)
        while True:
            with _without_collections():
                piece = list(islice(changes, _PIECE))
                if not piece:
                    break
                for part in [[each] for each in piece] if self.mode == "plain" else [piece]:
                    self._load(target, batch, part)

    def _changes(self, batch: pgqpy.Batch) -> Iterator[Loaded]:
        for event in batch:
            try:
                change = change_of(event)
                if change is None:
                    if self.ignore_other_events:
                        continue
                    raise BadEvent(
                        f"event {event.id} of type {event.type!r} is no change of a table",
                        hint="Fill the queue with pgq.capture_table, jsontriga or logutriga only,"
                        " or set ignore_other_events.",
                    )
            except (BadEvent, InvalidPayload) as error:
                self.fail_event(batch, event, error)
                continue
            if not self.tables or ".".join(change.table) in self.tables:
                converted = self.convert(change)
                if converted is not None:
                    yield event, converted

    def _load(
        self, target: pgqpy.Connection, batch: pgqpy.Batch, changes: Sequence[Loaded]
    ) -> None:
        """Apply changes; if a row does not fit, halve them until only that row is left."""
        try:
            with target.transaction():
                self._apply(target, changes)
        except ApplyError as error:
            if not is_about_rows(error):
                raise
            if len(changes) == 1:
                [(event, change)] = changes
                bad = bad_row(target, event.id, change, error, nested=bool(self._nested))
                if self.bad_rows == "stop":
                    bad.hint = (
                        "Change the table or the row; or set bad_rows to dead_letter, and such"
                        " events are put aside."
                    )
                self.fail_event(batch, event, bad)
                return
        else:
            return
        # Outside the except block, so that the error of a half is not chained to that of the whole.
        half = len(changes) // 2
        self._load(target, batch, changes[:half])
        self._load(target, batch, changes[half:])

    def _apply(self, target: pgqpy.Connection, changes: Sequence[Loaded]) -> None:
        if self.mode == "history":
            self._append(target, changes)
            return
        # convert() may have changed the key.
        for work in rounds((change.table, change) for _, change in changes):
            found = [(self._table_for(target, name), latest) for name, latest in work.items()]
            for table, latest in found:
                self._make_partitions(target, table, latest.rows.values(), latest.key_columns)
            apply_all(target, found, nested=bool(self._nested))

    def _append(self, target: pgqpy.Connection, changes: Sequence[Loaded]) -> None:
        deletions = "operation" in self.history_columns.values()
        rows: dict[tuple[str, str], list[Row]] = {}
        for event, change in changes:
            if change.operation == "TRUNCATE" or (change.operation == "DELETE" and not deletions):
                continue
            rows.setdefault(change.table, []).append(
                _history_row(event, change, self.history_columns)
            )
        for name, added in rows.items():
            table = self._table_for(target, name)
            self._make_partitions(target, table, added)
            with naming(table):
                for names, alike in by_columns(added).items():
                    columns = table.writable(names)
                    copy_rows(target, table.identifier, columns, alike, nested=bool(self._nested))

    def _make_partitions(
        self,
        target: pgqpy.Connection,
        table: Table,
        rows: Collection[Row],
        key_columns: Sequence[str] | None = None,
    ) -> None:
        """Make the partitions of rows; if they have a key, it must have the column."""
        if not (self.partitions and rows):
            return
        with naming(table):
            column = partition_column(target, table)
            if column is None:
                return
            if key_columns is not None and column not in key_columns:
                key = ", ".join(key_columns)
                raise InvalidParameter(
                    f'the changes have the key ({key}), without "{column}", by which the table is'
                    " partitioned",
                    hint=f"Capture the source with key => '{{{key},{column}}}' and replace => true,"
                    f" or by a trigger with pkey={key.replace(' ', '')},{column}; and let the"
                    " primary key of the target have both.",
                )
            values = [row.get(column) for row in rows]
            make_partitions(target, table, column, self.partitions, values)

    def _table_for(self, target: pgqpy.Connection, name: tuple[str, str]) -> Table:
        """The table that the changes of a table go into."""
        mapped = self.tables.get(".".join(name))
        return describe(target, *(_split(mapped) if mapped else name))


def _history_row(event: pgqpy.Event, change: Change, extra: Mapping[str, Source]) -> Row:
    """The row to add; ``extra`` maps columns to fields of the event."""
    known = {
        "operation": change.operation,
        "event_id": str(event.id),
        "event_time": event.time.isoformat(),
        "txid": str(change.txid),
    }
    return change.values | {column: known[source] for column, source in extra.items()}


def _split(name: str) -> tuple[str, str]:
    """``schema.table``, or a table of the schema public."""
    schema, dot, table = name.partition(".")
    return (schema, table) if dot else ("public", schema)


@contextmanager
def _without_collections() -> Iterator[None]:
    """No garbage collections inside the block. A piece has many objects and no cycles; collecting
    repeatedly would take half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _has_nested(conn: pgqpy.Connection, queue: str) -> bool:
    """Whether the queue has rows of the format row_json, whose JSON columns are nested."""
    ours = conn.execute("select to_regprocedure('pgq.capture_info(regclass)') is not null")
    if ours.fetchone() != (True,):
        return False
    rows = conn.execute(
        "select from pgq.capture_info() where queue_name = %s and format = 'row_json'", [queue]
    )
    return bool(rows.fetchall())
