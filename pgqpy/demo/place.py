"""The demo's database: creating its objects there, and dropping them."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterable, Sequence
from typing import Any

import psycopg

import pgqpy.schema
from pgqpy.demo.errors import DemoError
from pgqpy.demo.names import QUEUE, SCHEMA

MARK = "made by pgqpy demo"

# Short, so that the run has rotations. The default is two hours.
ROTATION_PERIOD = "8 seconds"

# Any number that only the demo uses.
LOCK = 0x70677170795F64

Connection = psycopg.Connection[Any]


class Place:
    """A database that is prepared for the demo, and cleaned up afterwards.

    ``conn`` is in autocommit mode. It holds an advisory lock, so that two demos cannot run in one
    database.
    """

    def __init__(self, conn: Connection, dsn: str) -> None:
        self.conn = conn
        self.dsn = dsn
        self.installed_schema = False
        """Whether the schema ``pgq`` was installed by the demo."""

    def prepare(self, airlines: Iterable[Sequence[str]]) -> None:
        """Install what is missing and create the demo's own objects.

        Raises `DemoError`, and changes nothing, if foreign objects are in the way.
        """
        self._lock()
        self._refuse_what_is_not_ours()
        if not self._exists("pgq"):
            pgqpy.schema.migrate(self.dsn)
            self.installed_schema = True
        self.clear()
        self._create(airlines)

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

    def _create(self, airlines: Iterable[Sequence[str]]) -> None:
        tables = importlib.resources.files(__package__).joinpath("tables.sql").read_text("utf-8")
        with self.conn.transaction():
            self.conn.execute(tables.encode())
            with self.conn.cursor() as cursor:
                cursor.executemany("insert into pgqpy_demo.airline values (%s, %s)", airlines)
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

    def _lock(self) -> None:
        if not self._value("select pg_try_advisory_lock(%s)", LOCK):
            raise DemoError(
                "Another pgqpy demo is running in this database.",
                hint="Wait until it has finished, or name another database.",
            )

    def _refuse_what_is_not_ours(self) -> None:
        if self._exists("pgq") and not self._value(
            "select count(*) from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
            " where n.nspname = 'pgq' and p.proname = 'capture_table'"
        ):
            raise DemoError(
                "The schema pgq of this database is another program's, PgQ's perhaps.",
                hint="Name another database; an empty one will do.",
            )
        if self._exists(SCHEMA) and not self._marked():
            raise DemoError(
                f"This database has a schema {SCHEMA}, and the demo did not make it.",
                hint="Name another database, or rename that schema.",
            )
        if self._queue_exists() and not self._queue_is_ours():
            raise DemoError(
                f"This database has a queue {QUEUE!r}, and the demo did not make it.",
                hint="Name another database; the demo would mix its events with yours.",
            )

    def _exists(self, schema: str) -> bool:
        return bool(self._value("select to_regnamespace(%s) is not null", schema))

    def _marked(self) -> bool:
        mark = self._value("select obj_description(to_regnamespace(%s), 'pg_namespace')", SCHEMA)
        return bool(mark == MARK)

    def _queue_exists(self) -> bool:
        return self._exists("pgq") and bool(
            self._value("select count(*) from pgq.queue where queue_name = %s", QUEUE)
        )

    def _queue_is_ours(self) -> bool:
        return (
            self._queue_exists()
            and self._exists(SCHEMA)
            and bool(
                self._value(
                    "select count(*) from pgq.queue join pgqpy_demo.queue using (queue_id)"
                    " where queue_name = %s",
                    QUEUE,
                )
            )
        )

    def _value(self, query: str, *parameters: object) -> Any:
        row = self.conn.execute(query, parameters).fetchone()
        assert row is not None
        return row[0]
