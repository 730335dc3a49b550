"""Random interleavings of real sessions against the model.

Every rule is one thing that some session does. Nothing waits: a lock that is
taken is an error after a few milliseconds, and an error is a rollback.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from psycopg import errors, sql
from psycopg.pq import TransactionStatus

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection
from tests.property.model import Batch, Consumer, Model

ISOLATION = st.sampled_from(["read committed", "repeatable read", "serializable"])
WAYS_TO_INSERT = st.sampled_from(["insert_event", "insert_events", "copy", "copy to an old table"])
CONSUMERS = st.sampled_from(["first", "second"])

# Errors by which a session may be told to try again.
TRY_AGAIN = (errors.LockNotAvailable, errors.SerializationFailure)

_names = itertools.count(1)


def begin(conn: Connection, isolation: str) -> None:
    conn.execute(f"begin isolation level {isolation}".encode())


@dataclass
class Writer:
    """A session that produces. Events wait in one list for the transaction and one a savepoint."""

    conn: Connection
    levels: list[list[str]] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)

    @property
    def pending(self) -> list[str]:
        return [data for level in self.levels for data in level]


@dataclass
class Maintenance:
    """A transaction of the ticker's that was left open."""

    what: str
    log_length: int
    tick_id: int | None


class Sessions:
    """Connections that outlive one example."""

    def __init__(self, dsn: str) -> None:
        def connect() -> Connection:
            return psycopg.connect(
                dsn, autocommit=True, options="-c lock_timeout=30ms -c synchronous_commit=off"
            )

        self.writers = [connect() for _ in range(3)]
        self.readers = [connect() for _ in range(2)]
        self.control = connect()
        self.maintenance = connect()
        self.old_reader = connect()

    def all(self) -> list[Connection]:
        return [*self.writers, *self.readers, self.control, self.maintenance, self.old_reader]

    def close(self) -> None:
        for conn in self.all():
            conn.close()


class QueueMachine(RuleBasedStateMachine):
    """One queue, three producers, two consumers, a ticker and a session that dawdles."""

    def __init__(self, sessions: Sessions) -> None:
        super().__init__()
        self.sessions = sessions
        self.control = sessions.control
        self.writers = [Writer(conn) for conn in sessions.writers]
        self.prepared: dict[str, list[str]] = {}
        self.maintenance: Maintenance | None = None
        self.old_snapshot = False
        self.payload = itertools.count(1)
        self.queue = f"property_{next(_names)}"
        with self.patience():
            self.control.execute("select pgq.create_queue(%s)", [self.queue])
        ops.rotate_whenever_asked(self.control, self.queue)
        # Every round of the daemon makes an early tick if there is anything new.
        self.control.execute("select pgq.set_queue_config(%s, 'ticker_latency', '0')", [self.queue])
        self.model = Model(self.newest_tick())
        self.events = sql.Identifier(
            *ops.value(
                self.control,
                "select queue_data_pfx from pgq.queue where queue_name = %s",
                self.queue,
            ).split(".")
        )
        self.tables = [self.current_table(self.control)]

    # -- helpers ---------------------------------------------------------------------------

    @contextmanager
    def patience(self) -> Iterator[None]:
        """No session of the machine holds a lock now, but autovacuum may."""
        self.control.execute("set lock_timeout = 0")
        yield
        self.control.execute("reset lock_timeout")

    def newest_tick(self) -> int:
        tick_id: int = ops.value(
            self.control, "select last_tick_id from pgq.get_queue_info(%s)", self.queue
        )
        return tick_id

    def current_table(self, conn: Connection) -> str:
        table: str = ops.value(conn, "select pgq.current_event_table(%s)", self.queue)
        return table

    def reader(self, number: int) -> Connection:
        return self.sessions.readers[number]

    def failed(self, writer: Writer) -> None:
        """The writer ran into a lock: all that it had done is gone."""
        writer.conn.execute("rollback")
        writer.levels.clear()

    # -- producers -------------------------------------------------------------------------

    @initialize(both=st.booleans())
    def consumers_register(self, both: bool) -> None:
        for name in ["first", "second"] if both else ["first"]:
            ops.register(self.control, self.queue, name)
            self.model.registered(name, self.model.newest_tick)

    @rule(number=st.integers(0, 2), isolation=ISOLATION)
    def writer_begins(self, number: int, isolation: str) -> None:
        writer = self.writers[number]
        if not writer.levels:
            begin(writer.conn, isolation)
            # From here on a repeatable read transaction keeps its snapshot; it has no id yet.
            writer.conn.execute("select count(*) from pgq.queue")
            writer.levels.append([])

    @rule(number=st.integers(0, 2))
    def writer_asks_for_the_table(self, number: int) -> None:
        writer = self.writers[number]
        try:
            table = self.current_table(writer.conn)
        except TRY_AGAIN:
            self.failed(writer)
        else:
            self.tables = sorted({*self.tables, table})

    @rule(
        number=st.integers(0, 2),
        way=WAYS_TO_INSERT,
        count=st.integers(1, 3),
        table=st.integers(0, 3),
    )
    def writer_inserts_events(self, number: int, way: str, count: int, table: int) -> None:
        writer = self.writers[number]
        payloads = [f"event {next(self.payload)}" for _ in range(count)]
        try:
            if way == "insert_event":
                payloads = payloads[:1]
                ops.insert(writer.conn, self.queue, payloads[0])
            elif way == "insert_events":
                ids = writer.conn.execute(
                    "select pgq.insert_events(%s, %s, %s)", [self.queue, ["test"] * count, payloads]
                ).fetchall()
                assert ids == sorted(ids)
                assert len(ids) == count
            elif way == "copy":
                ops.copy(writer.conn, self.current_table(writer.conn), payloads)
            else:
                # Some session was told this name, perhaps long ago.
                ops.copy(writer.conn, self.tables[table % len(self.tables)], payloads)
        except TRY_AGAIN:
            self.failed(writer)
            return
        if writer.levels:
            writer.levels[-1] += payloads
        else:
            self.model.committed(payloads)

    @rule(number=st.integers(0, 2))
    def writer_sets_a_savepoint(self, number: int) -> None:
        writer = self.writers[number]
        if writer.levels and len(writer.levels) < 4:
            writer.conn.execute(f"savepoint level_{len(writer.levels)}".encode())
            writer.levels.append([])

    @rule(number=st.integers(0, 2), keep=st.booleans())
    def writer_leaves_a_savepoint(self, number: int, keep: bool) -> None:
        writer = self.writers[number]
        if len(writer.levels) > 1:
            level = writer.levels.pop()
            if keep:
                writer.conn.execute(f"release level_{len(writer.levels)}".encode())
                writer.levels[-1] += level
            else:
                writer.conn.execute(f"rollback to level_{len(writer.levels)}".encode())
                writer.conn.execute(f"release level_{len(writer.levels)}".encode())

    @rule(number=st.integers(0, 2), keep=st.booleans())
    def writer_ends(self, number: int, keep: bool) -> None:
        writer = self.writers[number]
        if writer.levels:
            writer.conn.execute("commit" if keep else "rollback")
            if keep:
                self.model.committed(writer.pending)
            writer.levels.clear()

    @rule(number=st.integers(0, 2))
    def writer_prepares(self, number: int) -> None:
        writer = self.writers[number]
        if writer.levels:
            gid = f"{self.queue}_{next(self.payload)}"
            writer.conn.execute(
                sql.SQL("prepare transaction {}").format(sql.Literal(gid)), prepare=False
            )
            self.prepared[gid] = writer.pending
            writer.levels.clear()

    @precondition(lambda self: self.prepared)
    @rule(keep=st.booleans())
    def prepared_transaction_ends(self, keep: bool) -> None:
        gid = next(iter(self.prepared))
        payloads = self.prepared.pop(gid)
        verb = sql.SQL("commit prepared {}" if keep else "rollback prepared {}")
        self.control.execute(verb.format(sql.Literal(gid)), prepare=False)
        if keep:
            self.model.committed(payloads)

    # -- the ticker ------------------------------------------------------------------------

    @rule()
    def ticker_ticks(self) -> None:
        self.tick(self.control)

    def tick(self, conn: Connection) -> int | None:
        try:
            conn.execute("select pgq.force_tick(%s)", [self.queue])
            tick_id: int | None = ops.value(conn, "select pgq.ticker(%s)", self.queue)
        except TRY_AGAIN:
            return None
        if conn is self.control and tick_id is not None:
            self.model.ticked(tick_id)
        return tick_id

    @rule()
    def daemon_goes_round(self) -> None:
        try:
            self.control.execute("select pgq.ticker_round()")
            newest = self.newest_tick()
        except TRY_AGAIN:
            return
        if newest > self.model.newest_tick:
            self.model.ticked(newest)

    @rule(times=st.integers(1, 3))
    def tables_rotate(self, times: int) -> None:
        for _ in range(times):
            try:
                ops.rotate(self.control, self.queue)
            except TRY_AGAIN:
                return

    @rule()
    def logs_rotate(self) -> None:
        try:
            ops.rotate_logs(self.control)
        except TRY_AGAIN:
            return

    @rule()
    def retried_events_come_back(self) -> None:
        try:
            moved = ops.value(self.control, "select pgq.maint_retry_events()")
        except TRY_AGAIN:
            return
        assert moved == self.model.retried()

    @precondition(lambda self: self.maintenance is None)
    @rule(what=st.sampled_from(["tick", "step1", "step2", "logs"]))
    def ticker_begins_something(self, what: str) -> None:
        conn = self.sessions.maintenance
        conn.execute("begin")
        tick_id = None
        try:
            if what == "tick":
                tick_id = self.tick(conn)
            elif what == "step1":
                conn.execute("select pgq.maint_rotate_tables_step1(%s)", [self.queue])
            elif what == "step2":
                conn.execute("select pgq.maint_rotate_tables_step2()")
            else:
                conn.execute("update pgq.log set log_rotate_bytes = 1, log_carried_bytes = 0")
                conn.execute("select pgq.maint_rotate_logs()")
        except TRY_AGAIN:
            pass
        if conn.info.transaction_status == TransactionStatus.INERROR:
            conn.execute("rollback")
        else:
            self.maintenance = Maintenance(what, len(self.model.log), tick_id)

    @precondition(lambda self: self.maintenance is not None)
    @rule(keep=st.booleans())
    def ticker_ends_it(self, keep: bool) -> None:
        assert self.maintenance is not None
        self.sessions.maintenance.execute("commit" if keep else "rollback")
        if keep and self.maintenance.tick_id is not None:
            self.model.ticked(self.maintenance.tick_id, when=self.maintenance.log_length)
        self.maintenance = None

    # -- consumers -------------------------------------------------------------------------

    @rule(name=CONSUMERS)
    def consumer_registers(self, name: str) -> None:
        if name not in self.model.consumers:
            try:
                tick_id = self.newest_tick()
                ops.register(self.control, self.queue, name)
            except TRY_AGAIN:
                return
            self.model.registered(name, tick_id)

    @rule(name=CONSUMERS, back=st.integers(0, 5))
    def consumer_registers_at_a_tick(self, name: str, back: int) -> None:
        if name in self.model.consumers:
            return
        ticks = sorted(self.model.ticks)
        tick_id = ticks[-1 - back % len(ticks)]
        try:
            ops.value(
                self.control,
                "select pgq.register_consumer_at(%s, %s, %s)",
                self.queue,
                name,
                tick_id,
            )
        except TRY_AGAIN:
            return
        except psycopg.Error as error:
            # Rotation has removed the events behind it, or the tick.
            if error.sqlstate != "PQ008":
                raise
            return
        self.model.registered(name, tick_id)

    @rule(name=CONSUMERS, back=st.integers(0, 5))
    def consumer_is_moved(self, name: str, back: int) -> None:
        if (consumer := self.model.consumers.get(name)) is None:
            return
        ticks = sorted(self.model.ticks)
        tick_id = ticks[-1 - back % len(ticks)]
        try:
            self.control.execute(
                "select pgq.register_consumer_at(%s, %s, %s)", [self.queue, name, tick_id]
            )
        except TRY_AGAIN:
            return
        except psycopg.Error as error:
            if error.sqlstate != "PQ008":
                raise
            return
        consumer.tick, consumer.batch = tick_id, None

    @rule(number=st.integers(0, 1), isolation=ISOLATION, choice=st.integers(0, 40))
    def somebody_asks_where_an_event_is(self, number: int, isolation: str, choice: int) -> None:
        """Whatever sessions do meanwhile, the answer is what the consumers themselves would say."""
        conn = self.reader(number)
        begin(conn, isolation)
        try:
            stored = conn.execute(
                sql.SQL("select distinct ev_id, ev_data from {} order by ev_id").format(self.events)
            ).fetchall()
            if not stored:
                return
            ev_id, data = stored[-1 - choice % len(stored)]
            rows = conn.execute(
                "select consumer, state from pgq.where_is_event(%s, %s)", [self.queue, ev_id]
            ).fetchall()
        except TRY_AGAIN:
            return
        finally:
            conn.execute("rollback")
        said: dict[str | None, str] = dict(rows)
        for consumer in self.model.consumers.values():
            # Without the event itself, of which only a retry is left, more cannot be known.
            unknown = {"unknown"} if said[None] == "not kept" else set[str]()
            assert said[consumer.name] in self.model.where(consumer, data) | unknown
        assert said.keys() == {None, *self.model.consumers}

    @rule(name=CONSUMERS)
    def consumer_unregisters(self, name: str) -> None:
        try:
            removed = ops.value(
                self.control, "select pgq.unregister_consumer(%s, %s)", self.queue, name
            )
        except TRY_AGAIN:
            return
        assert removed == (1 if name in self.model.consumers else 0)
        self.model.consumers.pop(name, None)

    @rule(
        name=CONSUMERS,
        number=st.integers(0, 1),
        how=st.sampled_from(["next_batch", "upto", "custom"]),
        count=st.integers(1, 4),
    )
    def consumer_asks_for_a_batch(self, name: str, number: int, how: str, count: int) -> None:
        if (consumer := self.model.consumers.get(name)) is None:
            return
        try:
            found = self.ask(self.reader(number), consumer, how, count)
        except TRY_AGAIN:
            return
        if found is not None and consumer.batch is None:
            consumer.batch = found

    def ask(self, conn: Connection, consumer: Consumer, how: str, count: int) -> Batch | None:
        """Ask for a batch and compare what it lies between; the model does not change."""
        query: LiteralString
        parameters: list[object] = [self.queue, consumer.name]
        if how == "next_batch":
            query = "select * from pgq.next_batch_info(%s, %s)"
        elif how == "upto":
            query = "select * from pgq.next_batch_upto(%s, %s, %s)"
            parameters.append(count)
        else:
            query = "select * from pgq.next_batch_custom(%s, %s, null, %s, null)"
            parameters.append(count)
        row: Any = conn.execute(query, parameters).fetchone()
        batch_id, end, start = row[:3]
        if consumer.batch is not None:
            assert (batch_id, end) == (consumer.batch.batch_id, consumer.batch.end)
        if batch_id is None:
            if how == "next_batch":
                assert consumer.tick == self.model.newest_tick, "there are ticks to be had"
            return None
        assert start == consumer.tick
        assert end > start
        return Batch(batch_id, end)

    @rule(name=CONSUMERS, number=st.integers(0, 1))
    def consumer_reads(self, name: str, number: int) -> None:
        if (consumer := self.model.consumers.get(name)) is None or consumer.batch is None:
            return
        try:
            self.read(self.reader(number), consumer, consumer.batch)
        except TRY_AGAIN:
            return

    @rule(name=CONSUMERS)
    def consumer_reads_in_slices(self, name: str) -> None:
        """Read by the batch's SQL, on several connections without the batch."""
        if (consumer := self.model.consumers.get(name)) is None or consumer.batch is None:
            return
        try:
            self.read(self.control, consumer, consumer.batch)
            query = ops.value(
                self.control, "select pgq.batch_event_sql(%s)", consumer.batch.batch_id
            )
            slices: list[ops.Row] = []
            for number, conn in enumerate(self.sessions.readers):
                half = f"select * from ({query}) ev where ev_id % 2 = {number}"
                slices += conn.execute(half.encode()).fetchall()
        except TRY_AGAIN:
            return
        assert sorted(slices) == sorted(consumer.batch.rows or [])

    def read(self, conn: Connection, consumer: Consumer, batch: Batch) -> None:
        rows = ops.events(conn, batch.batch_id)
        assert [row[0] for row in rows] == sorted(row[0] for row in rows)
        delivered = sorted((row[5], row[3] or 0) for row in rows)
        expected = self.model.expected(consumer, batch.end)
        assert delivered == expected, "a batch holds other events than were committed"
        if batch.rows is not None:
            assert rows == batch.rows, "an open batch has changed"
        batch.rows = rows

    @rule(name=CONSUMERS, number=st.integers(0, 1), choice=st.integers(0, 20))
    def consumer_retries(self, name: str, number: int, choice: int) -> None:
        consumer = self.model.consumers.get(name)
        if consumer is None or consumer.batch is None or not consumer.batch.rows:
            return
        row = consumer.batch.rows[choice % len(consumer.batch.rows)]
        ev_id, retry, data = row[0], row[3], str(row[5])
        assert retry is None or isinstance(retry, int)
        try:
            taken = ops.value(
                self.reader(number),
                "select pgq.event_retry(%s, %s, -1)",
                consumer.batch.batch_id,
                ev_id,
            )
        except TRY_AGAIN:
            return
        assert taken == (data not in consumer.coming_again)
        consumer.coming_again.setdefault(data, (retry or 0) + 1)

    @rule(name=CONSUMERS, number=st.integers(0, 1))
    def consumer_finishes(self, name: str, number: int) -> None:
        if (consumer := self.model.consumers.get(name)) is None or consumer.batch is None:
            return
        try:
            ops.finish(self.reader(number), consumer.batch.batch_id)
        except TRY_AGAIN:
            return
        self.model.finished(consumer, consumer.batch.end)

    @rule(name=CONSUMERS, number=st.integers(0, 1), retry=st.booleans())
    def consumer_does_it_all(self, name: str, number: int, retry: bool) -> None:
        """Single steps meet seldom enough that batches would mostly be empty."""
        self.consumer_asks_for_a_batch(name, number, "next_batch", 0)
        self.consumer_reads(name, number)
        if retry:
            self.consumer_retries(name, number, 0)
        self.consumer_finishes(name, number)

    @rule(number=st.integers(0, 2), name=CONSUMERS, retry=st.booleans())
    def event_goes_all_the_way(self, number: int, name: str, retry: bool) -> None:
        self.writer_inserts_events(number, "insert_event", 1, 0)
        self.ticker_ticks()
        self.consumer_does_it_all(name, 0, retry)

    @rule(times=st.integers(1, 4))
    def an_hour_passes(self, times: int) -> None:
        """Ticks, consumers that keep up, rotation: as far as dawdling sessions allow it."""
        for _ in range(times):
            self.retried_events_come_back()
            self.ticker_ticks()
            for name in list(self.model.consumers):
                while (consumer := self.model.consumers[name]).tick != self.model.newest_tick:
                    before = consumer.tick
                    self.consumer_does_it_all(name, 0, retry=False)
                    if consumer.tick == before:
                        break
            self.tables_rotate(1)

    @rule(
        number=st.integers(0, 2),
        isolation=ISOLATION,
        hours=st.integers(1, 4),
        way=WAYS_TO_INSERT,
        table=st.integers(0, 3),
    )
    def writer_dawdles(self, number: int, isolation: str, hours: int, way: str, table: int) -> None:
        """Its snapshot is older than rotations when it inserts at last."""
        self.writer_begins(number, isolation)
        self.an_hour_passes(hours)
        self.writer_inserts_events(number, way, 1, table)

    @rule(times=st.integers(2, 4))
    def ticker_is_alone(self, times: int) -> None:
        """Rotation as far as the positions of consumers allow it, which do nothing."""
        for _ in range(times):
            self.ticker_ticks()
            self.tables_rotate(1)

    @precondition(lambda self: not self.old_snapshot)
    @rule(isolation=ISOLATION)
    def somebody_takes_a_snapshot(self, isolation: str) -> None:
        begin(self.sessions.old_reader, isolation)
        self.sessions.old_reader.execute("select 1")
        self.old_snapshot = True

    @precondition(lambda self: self.old_snapshot)
    @rule(name=CONSUMERS, keep=st.booleans())
    def consumer_works_under_that_snapshot(self, name: str, keep: bool) -> None:
        """A whole cycle in one transaction. It is right, or it is refused."""
        conn = self.sessions.old_reader
        consumer = self.model.consumers.get(name)
        self.old_snapshot = False
        if consumer is None:
            conn.execute("rollback")
            return
        try:
            batch = self.ask_under_old_snapshot(conn, consumer)
            if batch is not None:
                rows = sorted((row[5], row[3] or 0) for row in ops.events(conn, batch.batch_id))
                expected = self.model.expected(consumer, batch.end)
                ops.finish(conn, batch.batch_id)
                conn.execute("commit" if keep else "rollback")
                assert rows == expected
                if keep:
                    self.model.finished(consumer, batch.end)
        except TRY_AGAIN:
            pass
        except psycopg.Error as error:
            # It does not know the consumer yet, or sees what rotation has emptied since.
            if error.sqlstate not in ("PQ002", "PQ008"):
                raise
        if conn.info.transaction_status != TransactionStatus.IDLE:
            conn.execute("rollback")

    def ask_under_old_snapshot(self, conn: Connection, consumer: Consumer) -> Batch | None:
        row: Any = conn.execute(
            "select * from pgq.next_batch_info(%s, %s)", [self.queue, consumer.name]
        ).fetchone()
        batch_id, end = row[:2]
        # Its knowledge of the position may be out of date; then finish_batch says so.
        return None if batch_id is None or end not in self.model.ticks else Batch(batch_id, end)

    # -- the end ---------------------------------------------------------------------------

    def teardown(self) -> None:
        """Commit all sessions; then every consumer gets the events of the model, and no more."""
        try:
            self.everybody_ends()
            self.tick(self.control)
            for consumer in self.model.consumers.values():
                while True:
                    batch = self.ask(self.control, consumer, "next_batch", 0)
                    if batch is None:
                        break
                    batch.rows = consumer.batch.rows if consumer.batch else None
                    self.read(self.control, consumer, batch)
                    ops.finish(self.control, batch.batch_id)
                    self.model.finished(consumer, batch.end)
                assert consumer.tick == self.model.newest_tick
        finally:
            self.clean_up()

    def everybody_ends(self) -> None:
        self.sessions.old_reader.execute("rollback")
        if self.maintenance is not None:
            self.ticker_ends_it(keep=True)
        for number in range(len(self.writers)):
            self.writer_ends(number, keep=True)
        while self.prepared:
            self.prepared_transaction_ends(keep=True)

    def clean_up(self) -> None:
        """Clean up, even after a failure, for the next example."""
        for conn in self.sessions.all():
            if conn.info.transaction_status != TransactionStatus.IDLE:
                conn.execute("rollback")
        for (gid,) in self.control.execute("select gid from pg_prepared_xacts").fetchall():
            self.control.execute(
                sql.SQL("rollback prepared {}").format(sql.Literal(gid)), prepare=False
            )
        with self.patience():
            self.control.execute("select pgq.drop_queue(%s, true)", [self.queue])
