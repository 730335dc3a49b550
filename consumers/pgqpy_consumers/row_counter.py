"""``count(*)`` made cheap: row counts of captured tables, kept up to date."""

from __future__ import annotations

import logging
from typing import Any, ClassVar, LiteralString, Unpack

import psycopg
from psycopg import sql

import pgqpy
from pgqpy.consumer import RunOptions
from pgqpy.consumer.base import ConsumerOptions
from pgqpy.errors import InvalidConsumer, RowsNotCountable, translate_errors
from pgqpy_consumers.settings import Configured, setting

logger = logging.getLogger("pgqpy")

Connection = psycopg.Connection[Any]

_IS_TABLE: LiteralString = """
select from pg_catalog.pg_class where oid = %s::regclass::oid and relkind in ('r', 'p')
"""


class RowCounter(Configured, pgqpy.Consumer):
    """Keeps the row counts of captured tables, for `select pgq.row_count('flight')`.

    A count is exact as of the last batch's tick. A table is counted once, when it is new here;
    from then on captured changes are added in the batch's transaction. The table is counted
    again if changes may have been missed: its capture or its partitions changed, a partition
    was truncated, or the consumer was moved.

    The tables must be captured into the queue, with inserts, deletes and truncates and without a
    condition; the consumer's role may select from them.
    """

    consumer = "row_counter"
    _without: ClassVar = {"read_dsn": "changes are counted inside the database, and not read"}
    tables: tuple[str, ...] = setting(
        "The tables to count, as SQL writes them.", example=("public.flight",)
    )

    def __init__(self, dsn: str | None = None, **options: Unpack[ConsumerOptions]) -> None:
        """See `pgqpy.Consumer`; ``read_dsn`` is refused."""
        super().__init__(dsn, **options)
        if self.read_dsn is not None:
            raise InvalidConsumer(f"RowCounter takes no read_dsn: {self._without['read_dsn']}")

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Raise ValueError if there is no table."""
        if not config.tables:
            raise ValueError("tables must name at least one table")

    def run(self, **options: Unpack[RunOptions]) -> None:
        """Count new tables, then process batches as `pgqpy.Consumer` does.

        Raises RowsNotCountable if a table is missing or not captured as it has to be.
        """
        self.register()
        with pgqpy.connect(self.dsn) as conn:
            self.start_counts(conn)
        super().run(**options)

    def start_counts(self, conn: Connection) -> None:
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
        with translate_errors():
            # The table's owner runs nothing here: by a policy, or by a view in its place.
            conn.execute("set local row_security = off")
            conn.execute(sql.SQL("lock table {} in access share mode").format(table))
            is_table = conn.execute(_IS_TABLE, [table.as_string()]).fetchone()
        if is_table is None:
            raise RowsNotCountable(f"{table.as_string()} is no table any more")
        # One statement, so that both come from one snapshot.
        statement = sql.SQL(
            "select pgq.start_row_count(%s, %s, %s::regclass, n, seen, %s), n"
            " from (select count(*) as n, txid_current_snapshot() as seen from {}) counted"
        ).format(table)
        with translate_errors():
            rows = conn.execute(
                statement,
                [self.queue, self.consumer, table.as_string(), None if batch is None else batch.id],
            ).fetchall()
        logger.info(
            "counted table %s.%s",
            schema,
            name,
            extra={"queue": self.queue, "consumer": self.consumer, "rows": rows[0][1]},
        )
