"""``count(*)`` made cheap: row counts of captured tables, kept up to date."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import psycopg
from psycopg import sql

import pgqpy
from pgqpy._runtime.log import logger
from pgqpy.errors import translate_errors
from pgqpy_consumers.ready import setting

Connection = psycopg.Connection[Any]


class RowCounter(pgqpy.Consumer):
    """Keeps the row counts of captured tables, for `select pgq.row_count('flight')`.

    A count is exact as of the last batch's tick. A table is counted once, when it is new here;
    from then on captured changes are added in the batch's transaction. The table is counted
    again if changes may have been missed: its capture or its partitions changed, a partition
    was truncated, or the consumer was moved.

    The tables must be captured into the queue, with inserts, deletes and truncates and without a
    condition; the consumer's role may select from them.
    """

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        """Settings of a row counter."""

        dsn: str | None = setting(
            "The database; without it, PGQPY_DSN or libpq's environment.", default=None
        )
        queue: str = setting("The queue that the tables are captured into.")
        consumer: str = setting("The consumer's name.", default="row_counter")
        tables: tuple[str, ...] = setting(
            "The tables to count, as SQL writes them.", example=("public.flight",)
        )

        def __post_init__(self) -> None:
            if not self.tables:
                raise ValueError("tables must name at least one table")

    tables: tuple[str, ...] = ()
    """The tables to count, as SQL writes them, with schema."""

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """A counter with these settings."""
        made = cls(config.dsn, queue=config.queue, consumer=config.consumer)
        made.tables = config.tables
        return made

    def run(self, *, until_empty: bool = False, handle_signals: bool = True) -> None:
        """Count new tables, then process batches as `pgqpy.Consumer` does.

        Raises RowsNotCountable if a table is missing or not captured as it has to be.
        """
        self.register()
        with pgqpy.connect(self.dsn) as conn:
            self.start(conn)
        super().run(until_empty=until_empty, handle_signals=handle_signals)

    def start(self, conn: Connection) -> None:
        """Count tables that are new or must be counted again, so that counts exist before the
        first batch. The consumer is registered."""
        with translate_errors(), conn.transaction():
            names = conn.execute(
                "select schema_name, table_name"
                " from pgq.row_counts_to_start(%s, %s, pgq.find_counted_tables(%s))",
                [self.queue, self.consumer, list(self.tables)],
            ).fetchall()
        for schema, name in names:
            with conn.transaction():
                self.count(conn, schema, name)

    def process_batch(self, conn: Connection, batch: pgqpy.Batch) -> None:
        """Add the batch's changes, inside the database."""
        batch.events_read = batch.seq_end - batch.seq_start
        with translate_errors():
            again = conn.execute(
                "select schema_name, table_name"
                " from pgq.count_batch_rows(%s, pgq.find_counted_tables(%s))",
                [batch.id, list(self.tables)],
            ).fetchall()
        for schema, name in again:
            self.count(conn, schema, name, batch)

    def count(
        self, conn: Connection, schema: str, name: str, batch: pgqpy.Batch | None = None
    ) -> None:
        """Start counting a table: its rows now, and the transactions that this count has seen."""
        table = sql.Identifier(schema, name)
        # One statement, so that both come from one snapshot.
        statement = sql.SQL(
            "select pgq.start_row_count(%s, %s, %s::regclass, n, seen, %s), n"
            " from (select count(*) as n, txid_current_snapshot() as seen from {}) counted"
        ).format(table)
        with translate_errors():
            rows = conn.execute(
                statement,
                [
                    self.queue,
                    self.consumer,
                    table.as_string(),
                    None if batch is None else batch.id,
                ],
            ).fetchall()
        logger.info(
            "counted table %s.%s",
            schema,
            name,
            extra=self._fields() | {"rows": rows[0][1]},
        )
