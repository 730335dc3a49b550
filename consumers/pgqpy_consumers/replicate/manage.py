"""Adding tables to a replication, and removing them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import LiteralString

from psycopg import sql
from psycopg.rows import dict_row

import pgqpy
from pgqpy.errors import comes_from
from pgqpy_consumers.apply import describe
from pgqpy_consumers.replicate import _sequences as sequences
from pgqpy_consumers.replicate import _source as catalog
from pgqpy_consumers.replicate._source import Relation
from pgqpy_consumers.replicate._state import IN_STEP, Replica, ReplicaError, State

_NEWEST: LiteralString = """
select max(t.tick_id) from pgq.tick t join pgq.queue q on q.queue_id = t.tick_queue
 where q.queue_name = %s
"""
_REGISTERED: LiteralString = "select last_tick from pgq.get_consumer_info(%s, %s)"


class Manager:
    """The actions of `pgqpy replicate`, on connections to both databases in autocommit."""

    def __init__(
        self, source: pgqpy.Connection, target: pgqpy.Connection, queue: str, consumer: str
    ) -> None:
        self._source = source
        self._target_dsn = target.info.dsn
        self._queue = queue
        self.state = State(target, queue, consumer)

    def add(
        self,
        name: str,
        *,
        target: str | None = None,
        columns: list[str] | None = None,
        overwrite: bool = False,
    ) -> Relation:
        """Capture a table of the source and have it copied; or add a sequence.

        ``target`` is its name in the target, if it differs. Without ``overwrite`` the target's
        table must be empty. Raises ReplicaError, NoPrimaryKey, and what `describe` and capturing
        raise.
        """
        relation = catalog.find(self._source, name)
        names = relation.names
        if target is not None:
            names = _parse(self._source, target, relation.schema)
        if relation.kind == "S":
            if sequences.position(self.state.conn, names) is None:
                raise ReplicaError(
                    f"the target database has no sequence {'.'.join(names)}",
                    hint="Create it there.",
                )
            if not sequences.add(self.state, relation.names, names):
                raise ReplicaError(f"sequence {relation} is replicated already")
            return relation
        if relation.kind not in ("r", "p"):
            raise ReplicaError(
                f"{relation} is neither a table nor a sequence", hint="Nothing else can be copied."
            )
        key = catalog.key(self._source, relation)
        wanted = catalog.chosen(self._source, relation, columns)
        with comes_from(self._target_dsn):
            self._check_target(relation, names, key, wanted, overwrite)
        # Captured first: a table in the target's list must have its changes in the queue.
        if catalog.is_branch(self._source, self._queue):
            catalog.check_replicated(self._source, self._queue, relation, wanted)
        else:
            self._capture(relation, key, None if columns is None else list(wanted))
        with comes_from(self._target_dsn), self.state.conn.transaction():
            id_ = self.state.add(relation.names, names, None if columns is None else list(wanted))
            if id_ is None:
                raise ReplicaError(
                    f"table {'.'.join(relation.names)} is replicated already",
                    hint="`pgqpy replicate list` shows how; remove it first to change that.",
                )
            self._add_owned_sequences(relation, names, wanted, id_)
        return relation

    def _check_target(
        self,
        relation: Relation,
        names: tuple[str, str],
        key: Sequence[str],
        wanted: tuple[str, ...],
        overwrite: bool,
    ) -> None:
        """Raises an error if the copy cannot be stored there."""
        table = describe(self.state.conn, *names)
        table.writable(wanted)
        if frozenset(key) not in table.keys:
            names_of_key = catalog.quoted(self._source, key)
            raise ReplicaError(
                f"table {table} of the target has no unique index on ({names_of_key}), the"
                " source's primary key",
                hint=f"ALTER TABLE {table} ADD PRIMARY KEY ({names_of_key})",
            )
        [(has_rows,)] = self.state.conn.execute(
            sql.SQL("select exists (select from {})").format(table.identifier)
        )
        if has_rows and not overwrite:
            raise ReplicaError(
                f"table {table} of the target is not empty",
                hint="Empty it, or say --overwrite: what is in it is then replaced by the copy.",
            )

    def remove(self, name: str) -> bool:
        """Stop replicating; the copy stays as it is. False if the capture had to stay.

        The capture stays if other consumers read the queue. Raises ReplicaError.
        """
        names = self._names(name)
        if sequences.remove(self.state, names):
            return True
        with self.state.conn.transaction():
            self.state.own()
            replica = self.state.table(names)
            self.state.remove(replica)
        # Releasing waits for sessions that read the table, and writers wait behind it.
        self.state.interrupt_copy(replica)
        [others] = self._source.execute(
            "select count(*) from pgq.get_consumer_info(%s) where consumer_name <> %s",
            self.state.names,
        )
        if others[0]:
            return False
        # The table may be gone, and its capture with it.
        self._source.execute(
            "select pgq.release_table(r.oid, c.queue_name)"
            "  from pg_catalog.to_regclass(%s) r (oid), pgq.capture_info(r.oid) c"
            " where r.oid is not null and c.queue_name = %s",
            [sql.Identifier(*names).as_string(self._source), self._queue],
        )
        return True

    def copy_again(self, name: str) -> None:
        """Replace the copy by a new one. Raises ReplicaError."""
        with self.state.conn.transaction():
            self.state.own()
            self.state.copy_again(self.state.table(self._names(name)))

    def reverse(self, go_on: Callable[[], None]) -> int:
        """Have the source follow the target, whose queue has become the root; returns the tick.

        Nothing is copied: both show the same at that tick, to which the target has come. ``go_on``
        is called until it has; it raises an error to end that. It can be run again if it was
        interrupted. Raises ReplicaError.
        """
        source, target, state = self._source, self.state.conn, self.state
        queue, consumer = state.names
        if not catalog.is_branch(source, queue) or catalog.is_branch(target, queue):
            raise ReplicaError(
                f"queue {queue!r} of the target is not the root of the source's",
                hint="First `pgqpy node takeover` in the target's database. If dsn and target_dsn"
                " are exchanged already, it is reversed.",
            )
        tables, found = state.tables(), sequences.sequences(state)
        if not tables and not found:
            return self._end_reverse()
        for each in tables:
            if each.state != IN_STEP:
                raise ReplicaError(
                    f"table {each} is {each.state}", hint="Let it come in step, or remove it."
                )
        if target.execute(_REGISTERED, state.names).fetchone():
            raise ReplicaError(
                f"another consumer {consumer!r} reads the queue of the target",
                hint="Give each replication of a queue a consumer of its own.",
            )
        [newest] = source.execute(_NEWEST, [queue])
        while (tick := state.progress() or 0) < newest[0]:
            go_on()
        back = State(source, queue, consumer)
        with source.transaction():
            for each in tables:
                back.add(each.target, each.source, each.columns, state=IN_STEP)
            for sequence in found:
                sequences.add(back, sequence.target, sequence.source)
            source.execute("select pgq_ext.set_last_tick(%s, %s, %s)", [consumer, queue, tick])
        with target.transaction():
            state.own()
            reverse = Manager(target, source, queue, consumer)
            for each in tables:
                relation = catalog.by_names(target, each.target)
                reverse._capture(relation, catalog.key(target, relation), each.columns)
                state.remove(each)
            for sequence in found:
                sequences.remove(state, sequence.source)
            pgqpy.Admin(target).register_consumer_at(queue, consumer, tick)
        pgqpy.Admin(source).unregister_consumer(queue, consumer)
        return tick

    def _end_reverse(self) -> int:
        """End what was interrupted after the tables had changed sides. Raises ReplicaError."""
        queue, consumer = self.state.names
        row = self.state.conn.execute(_REGISTERED, self.state.names).fetchone()
        if row is None:
            raise ReplicaError(
                f"consumer {consumer!r} replicates no table", hint="Add one: pgqpy replicate add."
            )
        if not pgqpy.Admin(self._source).unregister_consumer(queue, consumer):
            raise ReplicaError(
                f"the replication of queue {queue!r} is reversed already",
                hint="Exchange dsn and target_dsn in the configuration, and run replicate.",
            )
        return int(row[0])

    def replica(self, name: str) -> Replica:
        """One of the tables. Raises ReplicaError."""
        return self.state.table(self._names(name))

    def check_queue(self) -> None:
        """Raises QueueNotFound."""
        pgqpy.Admin(self._source).get_queue_info(self._queue)

    def what_is_wrong(self, replica: Replica) -> str | None:
        """The reason why no changes arrive, if the source shows one."""
        try:
            relation = catalog.by_names(self._source, replica.source)
            if catalog.is_branch(self._source, self._queue):
                catalog.check_replicated(self._source, self._queue, relation, ())
                return None
        except ReplicaError as error:
            return error.message
        captured = self._source.execute(
            "select from pgq.capture_info(%s::oid::regclass) where queue_name = %s and enabled",
            [relation.oid, self._queue],
        ).fetchone()
        return None if captured is not None else f"it is not captured into {self._queue} any more"

    def _names(self, name: str) -> tuple[str, str]:
        """Schema and name; for a missing table, as they are written."""
        try:
            return catalog.find(self._source, name).names
        except ReplicaError:
            return _parse(self._source, name)

    def _capture(
        self, relation: Relation, key: Sequence[str], columns: Sequence[str] | None
    ) -> None:
        with self._source.cursor(row_factory=dict_row) as cursor:
            found = cursor.execute(
                "select * from pgq.capture_info(%s::oid::regclass) where queue_name = %s",
                [relation.oid, self._queue],
            ).fetchone()
        if found is None:
            self._source.execute(
                "select pgq.capture_table(%s::oid::regclass, %s, format => 'jsontriga',"
                " columns => %s)",
                [relation.oid, self._queue, columns],
            )
            return
        lacking = set(columns or catalog.columns(self._source, relation))
        if found["columns"] is not None:
            lacking -= {*found["columns"], *found["key"]}
        else:
            lacking &= set(found["exclude"] or ())
        for wrong, what in (
            (found["format"] != "jsontriga", f"in the format {found['format']}, not jsontriga"),
            (found["condition"] is not None, "with a condition"),
            (len(found["operations"]) < 4, f"for {', '.join(found['operations'])} only"),
            (bool(lacking), f"without {', '.join(sorted(lacking))}"),
            (set(found["key"]) != set(key), "with another key than the primary key"),
            (found["key_changes"] != "split", "so that keys must not change"),
            (not found["enabled"], "but its triggers are disabled"),
        ):
            if wrong:
                raise ReplicaError(
                    f"table {relation} is captured into queue {self._queue!r} {what}",
                    hint=f"Capture it for that: pgqpy capture add {shlex.quote(str(relation))}"
                    f" {shlex.quote(self._queue)} --format jsontriga --replace",
                )

    def _add_owned_sequences(
        self, relation: Relation, names: tuple[str, str], columns: Sequence[str], id_: int
    ) -> None:
        there = sequences.owned(self.state.conn, names)
        for column, sequence in sequences.owned(self._source, relation.names).items():
            if column in columns and column in there:
                sequences.add(self.state, sequence, there[column], id_)


def _parse(conn: pgqpy.Connection, name: str, schema: str = "public") -> tuple[str, str]:
    [(parts,)] = conn.execute("select pg_catalog.parse_ident(%s)", [name])
    return (schema, parts[0]) if len(parts) == 1 else (parts[-2], parts[-1])
