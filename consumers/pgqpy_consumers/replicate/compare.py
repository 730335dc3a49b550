"""Comparing a copy with its source while both sides go on.

The source is read in one snapshot, S. The target is read at some tick m that comes later. It
should then hold the rows of S; but for keys that were changed between S and m, the result of the
last of these changes. These changes are still in the queue. No session is locked out.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import LiteralString

from psycopg import sql

import pgqpy
from pgqpy_consumers.apply import Latest, apply_all, describe
from pgqpy_consumers.apply._change import Row, change_from
from pgqpy_consumers.apply._merge import stage
from pgqpy_consumers.replicate import _source as catalog
from pgqpy_consumers.replicate._apply import alike, may_silence, silent
from pgqpy_consumers.replicate._digest import Rows
from pgqpy_consumers.replicate._state import NotComparable, Replica, Snapshot, State

#: Seconds between checks of the target's position.
_POLL = 0.02
#: The approximate rows of a piece, and the most pieces.
_PIECE, _PIECES = 16, 131_072

#: The tick of an id, or the newest.
_TICK: LiteralString = """
select t.tick_id, t.tick_snapshot::text
  from pgq.tick t
  join pgq.queue q on q.queue_id = t.tick_queue
 where q.queue_name = %s and t.tick_id = coalesce(%s, t.tick_id)
 order by t.tick_id desc
 limit 1
"""
_PROGRESS: LiteralString = """
select prg_tick from pgq_ext.progress where subconsumer_id = %s and consumer_id = %s
"""

MISSING, EXTRA, DIFFERENT = "missing", "extra", "different"


@dataclass(frozen=True, slots=True)
class Difference:
    """A row of the target that is not as it should be."""

    key: str
    """The values of the key's columns, as PostgreSQL writes a row."""
    kind: str
    """missing, extra or different, as seen from the target."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing a table."""

    replica: Replica
    rows: int
    """The number of rows in the source."""
    tick: int
    """The target was compared as of this tick of the queue."""
    differences: list[Difference]
    repaired: int = 0


@dataclass(frozen=True, slots=True)
class _Tick:
    id: int
    snapshot: str


@dataclass(slots=True)
class _Found:
    """The result of a comparison, with what repairing needs."""

    rows: int
    at: _Tick
    key: list[str]
    columns: list[str]
    differences: list[Difference]
    right: dict[str, Row] = field(default_factory=dict)
    """The correct contents of missing and different rows."""


class Comparer:
    """Compares, and repairs, tables of a running replication."""

    def __init__(
        self, dsn: str, target_dsn: str, queue: str, consumer: str, *, patience: float = 60.0
    ) -> None:
        """``patience``: seconds to wait for the target to follow."""
        self._dsn = dsn
        self._target_dsn = target_dsn
        self._names = (queue, consumer)
        self._patience = patience

    def compare(self, replica: Replica, *, repair: bool = False) -> Comparison:
        """Compare one table; with ``repair``, also correct its rows.

        Raises NotComparable if the table is not in step, or the target makes no progress.
        """
        with (
            pgqpy.connect(self._dsn, autocommit=True) as asking,
            pgqpy.connect(self._dsn, autocommit=True) as source,
            pgqpy.connect(self._target_dsn, autocommit=True) as target,
            source.transaction(),
        ):
            self._check(target, replica)
            before = self._newest(asking)
            source.execute("set transaction isolation level repeatable read read only")
            alike(source)
            [row] = source.execute("select pg_catalog.txid_current_snapshot()::text")
            seen = Snapshot.parse(row[0])
            self._follow(asking, target, seen)
            found = self._compare(asking, source, target, replica, before, seen, repair)
            repaired = 0
            if repair and found.differences:
                repaired = self._repair(asking, target, replica, found)
        return Comparison(replica, found.rows, found.at.id, found.differences, repaired)

    def _check(self, target: pgqpy.Connection, replica: Replica) -> None:
        now = State(target, *self._names).now(replica)
        if now is None or now.waiting or not now.copied:
            raise NotComparable(
                f"table {replica} is {'removed' if now is None else now.state}, so that there is"
                " nothing to compare yet",
                hint="`pgqpy replicate list` shows when it is in step.",
            )

    # --- a point in time

    def _newest(self, conn: pgqpy.Connection) -> _Tick:
        row = conn.execute(_TICK, [self._names[0], None]).fetchone()
        if row is None:
            raise NotComparable(f"queue {self._names[0]!r} has no tick", hint="Start pgqpy ticker.")
        return _Tick(*row)

    def _follow(self, asking: pgqpy.Connection, target: pgqpy.Connection, seen: Snapshot) -> None:
        """Wait until the target has all that the snapshot sees."""
        deadline = time.monotonic() + self._patience
        queue = self._names[0]
        while not Snapshot.parse((tick := self._newest(asking)).snapshot).covers(seen):
            asking.execute("select pgq.force_tick(%s)", [queue])
            self._pause(
                deadline,
                f"queue {queue!r} got no tick within {self._patience:g} s",
                "Keep `pgqpy ticker` running.",
            )
        while (self._progress(target) or 0) < tick.id:
            self._pause(
                deadline,
                f"the target has not come to tick {tick.id} within {self._patience:g} s",
                "Keep `pgqpy run replicate` running while tables are compared.",
            )

    @staticmethod
    def _pause(deadline: float, message: str, hint: str) -> None:
        if time.monotonic() > deadline:
            raise NotComparable(message, hint=hint)
        time.sleep(_POLL)

    def _progress(self, target: pgqpy.Connection) -> int | None:
        row = target.execute(_PROGRESS, self._names).fetchone()
        return None if row is None else int(row[0])

    def _reached(self, asking: pgqpy.Connection, target: pgqpy.Connection) -> _Tick:
        """The tick at which the target's transaction sees the target."""
        tick = self._progress(target)
        row = asking.execute(_TICK, [self._names[0], tick]).fetchone()
        if row is None:
            raise NotComparable(f"tick {tick} is forgotten already", hint="Compare once more.")
        return _Tick(*row)

    def _changes(
        self,
        asking: pgqpy.Connection,
        replica: Replica,
        columns: list[str],
        after: _Tick,
        upto: _Tick,
        seen: Snapshot | None,
    ) -> Latest:
        """The last states of rows changed between two ticks, without changes that S has seen."""
        latest = Latest()
        if after.id >= upto.id:
            return latest
        [row] = asking.execute(
            "select pgq.snapshot_range_sql(%s, %s, %s, %s, %s)",
            [self._names[0], after.id, after.snapshot, upto.id, upto.snapshot],
        )
        query = sql.SQL(
            "select ev_id, ev_txid, ev_type, ev_data, ev_extra1 from ({}) e"
            " where ev_extra1 = {} order by ev_id"
        ).format(sql.SQL(row[0]), str(replica))
        wanted = set(columns)
        for event_id, txid, event_type, data, extra1 in asking.execute(query):
            if seen is not None and seen.sees(txid):
                continue
            change = change_from(event_id, txid, event_type, data, extra1)
            if change is None or change.table != replica.source:
                continue
            if not latest.fits(change):
                raise NotComparable(
                    f"the key of table {replica} was changed just now", hint="Compare once more."
                )
            values = {name: each for name, each in change.values.items() if name in wanted}
            if values and len(values) < len(wanted):
                raise NotComparable(
                    f"table {replica} was altered just now", hint="Compare once more."
                )
            latest.add(change._replace(values=values))
        return latest

    # --- comparing

    def _compare(
        self,
        asking: pgqpy.Connection,
        source: pgqpy.Connection,
        target: pgqpy.Connection,
        replica: Replica,
        before: _Tick,
        seen: Snapshot,
        repair: bool,
    ) -> _Found:
        with target.transaction():
            target.execute("set transaction isolation level repeatable read")
            silent(target, False)
            at = self._reached(asking, target)
            self._check(target, replica)
            relation = catalog.by_names(source, replica.source)
            table = describe(target, *replica.target)
            key = catalog.key(source, relation)
            writable = table.writable(catalog.chosen(source, relation, replica.columns))
            columns = [each.name for each in writable]
            latest = self._changes(asking, replica, columns, before, at, seen)

            only = sql.SQL("" if relation.kind == "p" else "only ")
            there = Rows(source, only + sql.Identifier(*relation.names), key, columns)
            copy = Rows(target, table.identifier, key, columns)
            keys = [each for each in writable if each.name in key]
            changed = Rows(target, stage(target, writable, latest.rows.values()), key, columns)
            gone = Rows(target, stage(target, keys, latest.gone.values(), what="gone"), key, key)
            count = self._count(source, relation.oid)
            overlay: dict[str, tuple[int, int | None]] = {
                each: (piece, None) for each, (piece, _) in gone.piece_of_each(count).items()
            }
            overlay |= changed.piece_of_each(count)
            here, other = there.pieces(count), copy.pieces(count)
            rows = sum(each for each, _ in here.values())
            if latest.truncated:
                here = {}
            pieces = {piece for piece, _ in overlay.values()}
            pieces |= {each for each in {*here, *other} if here.get(each) != other.get(each)}
            right: dict[str, int] = (
                {} if latest.truncated else there.digests(pieces, count) if pieces else {}
            )
            for each, (_, digest) in overlay.items():
                if digest is None:
                    right.pop(each, None)
                else:
                    right[each] = digest
            actual = copy.digests(pieces, count) if pieces else {}
            found = _Found(rows, at, key, columns, _differences(right, actual))
            if repair:
                wrong = {each.key for each in found.differences if each.kind != EXTRA}
                found.right = there.fetch(wrong - overlay.keys()) | changed.fetch(
                    wrong & overlay.keys()
                )
        return found

    @staticmethod
    def _count(source: pgqpy.Connection, oid: int) -> int:
        [row] = source.execute(
            "select sum(c.reltuples)::int8 from pg_catalog.pg_class c where c.oid = %s"
            " or c.oid in (select relid from pg_catalog.pg_partition_tree(%s) where isleaf)",
            [oid, oid],
        )
        return int(min(max(row[0] // _PIECE, 1), _PIECES))

    # --- repairing

    def _repair(
        self,
        asking: pgqpy.Connection,
        target: pgqpy.Connection,
        replica: Replica,
        found: _Found,
    ) -> int:
        """Correct rows, at a point at which no batch can be applied meanwhile.

        A row that changed after the comparison is correct already: a change holds the whole row.
        """
        quiet = may_silence(target)
        with target.transaction():
            state = State(target, *self._names)
            state.own()
            silent(target, quiet)
            self._check(target, replica)
            upto = self._reached(asking, target)
            latest = self._changes(asking, replica, found.columns, found.at, upto, None)
            if latest.truncated:
                return 0
            table = describe(target, *replica.target)
            done: set[str] = set()
            for names, rows in ((found.columns, latest.rows), (found.key, latest.gone)):
                staged = stage(target, table.writable(tuple(names)), rows.values())
                done |= Rows(target, staged, found.key, names).piece_of_each(1).keys()
            wrong = [each for each in found.differences if each.key not in done]

            mended = Latest()
            mended.key_columns = tuple(found.key)
            for each in wrong:
                if each.kind != EXTRA:
                    mended.rows[(each.key,)] = found.right[each.key]
            copy = Rows(target, table.identifier, found.key, found.key)
            extra = copy.fetch([each.key for each in wrong if each.kind == EXTRA])
            mended.gone = {(key,): row for key, row in extra.items()}
            apply_all(target, [(table, mended)], foreign_keys=not quiet)
            return len(wrong)


def _differences(right: dict[str, int], there: dict[str, int]) -> list[Difference]:
    differences = []
    for key in sorted(right.keys() | there.keys()):
        if key not in there:
            differences.append(Difference(key, MISSING))
        elif key not in right:
            differences.append(Difference(key, EXTRA))
        elif right[key] != there[key]:
            differences.append(Difference(key, DIFFERENT))
    return differences
