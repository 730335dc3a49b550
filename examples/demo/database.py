"""The demo's database: creating its objects there, and dropping them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

import pgqpy.schema
from examples.demo import QUEUE, SCHEMA, DemoError

MARK = "made by pgqpy demo"

# Short, so that the run has rotations. The default is two hours.
ROTATION_PERIOD = "8 seconds"

# Any number that only the demo uses.
LOCK = 0x70677170795F64

CAPTURES = """
select exists (select from pg_proc p join pg_namespace n on n.oid = p.pronamespace
                where n.nspname = 'pgq' and p.proname = 'capture_table')
"""


class Database:
    """A database that is prepared for the demo, and cleaned up afterwards.

    ``conn`` is in autocommit mode. It holds an advisory lock, so that two demos cannot run in one
    database.
    """

    def __init__(self, conn: psycopg.Connection[Any], dsn: str) -> None:
        self.conn = conn
        self.dsn = dsn
        self.installed_schema = False
        """Whether the schema ``pgq`` was installed by the demo."""

    def prepare(self) -> None:
        """Install what is missing and create the demo's own objects.

        Raises `DemoError`, and changes nothing, if foreign objects are in the way.
        """
        if not self._value("select pg_try_advisory_lock(%s)", LOCK):
            raise DemoError(
                "Another demo is running in this database.",
                hint="Wait until it has finished, or name another database.",
            )
        self._refuse_what_is_not_ours()
        if not self._exists("pgq"):
            pgqpy.schema.migrate(self.dsn)
            self.installed_schema = True
        self.clear()
        with self.conn.transaction():
            self.conn.execute(Path(__file__).with_name("tables.sql").read_bytes())
            self.conn.execute("select pgq.create_queue(%s)", (QUEUE,))
            self.conn.execute(
                "insert into pgqpy_demo.queue select queue_id from pgq.queue where queue_name = %s",
                (QUEUE,),
            )
            self.conn.execute(
                "select pgq.set_queue_config(%s, 'rotation_period', %s)", (QUEUE, ROTATION_PERIOD)
            )
            self.conn.execute(
                "select pgq.capture_table('pgqpy_demo.flight', %s, old_values => 'row')", (QUEUE,)
            )

    def read_by(self, conn: psycopg.Connection[Any]) -> Database:
        """Return the same database by another connection, without the lock."""
        other = Database(conn, self.dsn)
        other.installed_schema = self.installed_schema
        return other

    def clear(self) -> None:
        """Drop the demo's queue, consumers and tables."""
        if not self._exists(SCHEMA):
            return
        with self.conn.transaction():
            if self._queue_is_ours():
                self.conn.execute("select pgq.drop_queue(%s, true)", (QUEUE,))
            self.conn.execute(f"drop schema {SCHEMA} cascade")

    def last_tick(self) -> int:
        """Return the queue's newest tick. Ticks are numbered without gaps unless there is a
        crash."""
        return int(self._value("select last_tick_id from pgq.get_queue_info(%s)", QUEUE))

    def rotations(self) -> int:
        """Return the number of rotations of the queue."""
        query = "select queue_rotations from pgq.queue where queue_name = %s"
        return int(self._value(query, QUEUE))

    def _refuse_what_is_not_ours(self) -> None:
        installed = self._exists("pgq")
        if installed and not self._value(CAPTURES):
            raise DemoError(
                "The schema pgq of this database is another program's, PgQ's perhaps.",
                hint="Name another database; an empty one will do.",
            )
        mark = "select obj_description(to_regnamespace(%s), 'pg_namespace')"
        if self._exists(SCHEMA) and self._value(mark, SCHEMA) != MARK:
            raise DemoError(
                f"This database has a schema {SCHEMA}, and the demo did not make it.",
                hint="Name another database, or rename that schema.",
            )
        query = "select exists (select from pgq.queue where queue_name = %s)"
        if installed and self._value(query, QUEUE) and not self._queue_is_ours():
            raise DemoError(
                f"This database has a queue {QUEUE!r}, and the demo did not make it.",
                hint="Name another database; the demo would mix its events with yours.",
            )

    def _queue_is_ours(self) -> bool:
        query = "select exists (select from pgq.queue join pgqpy_demo.queue using (queue_id))"
        return self._exists("pgq") and self._exists(SCHEMA) and bool(self._value(query))

    def _exists(self, schema: str) -> bool:
        return bool(self._value("select to_regnamespace(%s) is not null", schema))

    def _value(self, query: str, *parameters: object) -> Any:
        row = self.conn.execute(query, parameters).fetchone()
        assert row is not None
        return row[0]
