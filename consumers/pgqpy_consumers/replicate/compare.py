"""Comparing a copy with its source while both sides go on.

The source is read in one snapshot, S. The target is read at some tick m that comes later. It
should then hold the rows of S; but for keys that were changed between S and m, the result of the
last of these changes. These changes are still in the queue. No session is locked out.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import LiteralString, NamedTuple

from psycopg import sql

import pgqpy
from pgqpy_consumers.apply import Latest, apply_all, describe
from pgqpy_consumers.apply._change import Row, change_from
from pgqpy_consumers.apply._merge import stage
from pgqpy_consumers.replicate import _source as catalog
from pgqpy_consumers.replicate._apply import may_silence, silent
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


class _Tick(NamedTuple):
    id: int
    snapshot: str


class Comparer:
    """Compares, and repairs, tables of a running replication, one after the other."""

    #: Sees the newest ticks of the source, while ``_source`` keeps one snapshot.
    _asking: pgqpy.Connection
    _source: pgqpy.Connection
    _target: pgqpy.Connection

    def __init__(
        self, dsn: str, target_dsn: str, queue: str, consumer: str, *, patience: float = 60.0
    ) -> None:
        """``patience``: seconds to wait for the target to follow."""
        self._dsn = dsn
        self._target_dsn = target_dsn
        self._queue, self._consumer = queue, consumer
        self._patience = patience

    def compare(self, replica: Replica, *, repair: bool = False) -> Comparison:
        """Compare one table; with ``repair``, also correct its rows.

        Raises NotComparable if the table is not in step, or the target makes no progress.
        """
        with (
            pgqpy.connect(self._dsn, autocommit=True) as self._asking,
            pgqpy.connect(self._dsn, autocommit=True) as self._source,
            pgqpy.connect(self._target_dsn, autocommit=True) as self._target,
        ):
            self._replica = replica
            self._state = State(self._target, self._queue, self._consumer)
            self._check()
            before = self._newest()
            # The correct contents of missing and different rows, for a repair.
            self._right: dict[str, Row] = {}
            with catalog.reading(
                self._source, self._queue, replica.source, before.id, self._check
            ) as snapshot:
                seen = Snapshot.parse(snapshot)
                self._follow(seen)
                found = self._compare(before, seen, repair)
            if repair and found.differences:
                return replace(found, repaired=self._repair(found))
            return found

    def _check(self) -> None:
        now = self._state.now(self._replica)
        if now is None or now.waiting or not now.copied:
            raise NotComparable(
                f"table {self._replica} is {'removed' if now is None else now.state}, so that"
                " there is nothing to compare yet",
                hint="`pgqpy replicate list` shows when it is in step.",
            )

    # --- a point in time

    def _tick(self, tick: int | None) -> _Tick | None:
        row = self._asking.execute(_TICK, [self._queue, tick]).fetchone()
        return None if row is None else _Tick(*row)

    def _newest(self) -> _Tick:
        tick = self._tick(None)
        if tick is None:
            raise NotComparable(f"queue {self._queue!r} has no tick", hint="Start pgqpy ticker.")
        return tick

    def _follow(self, seen: Snapshot) -> None:
        """Wait until the target has all that the snapshot sees."""
        deadline = time.monotonic() + self._patience

        def pause(message: str, hint: str) -> None:
            if time.monotonic() > deadline:
                raise NotComparable(f"{message} within {self._patience:g} s", hint=hint)
            time.sleep(_POLL)

        while not Snapshot.parse((tick := self._newest()).snapshot).covers(seen):
            self._asking.execute("select pgq.force_tick(%s)", [self._queue])
            pause(f"queue {self._queue!r} got no tick", "Keep `pgqpy ticker` running.")
        while (self._state.progress() or 0) < tick.id:
            pause(
                f"the target has not come to tick {tick.id}",
                "Keep `pgqpy run replicate` running while tables are compared.",
            )

    def _reached(self) -> _Tick:
        """The tick at which the target's transaction sees the target."""
        progress = self._state.progress()
        tick = self._tick(progress)
        if tick is None:
            raise NotComparable(f"tick {progress} is forgotten already", hint="Compare once more.")
        return tick

    def _changes(
        self, columns: Collection[str], after: _Tick, upto: _Tick, seen: Snapshot | None
    ) -> Latest:
        """The last states of rows changed between two ticks, without changes that S has seen."""
        latest = Latest()
        if after.id >= upto.id:
            return latest
        [row] = self._asking.execute(
            "select pgq.snapshot_range_sql(%s, %s, %s, %s, %s)", [self._queue, *after, *upto]
        )
        query = sql.SQL(
            "select ev_id, ev_txid, ev_type, ev_data, ev_extra1 from ({}) e"
            " where ev_extra1 = {} order by ev_id"
        ).format(sql.SQL(row[0]), str(self._replica))
        for event in self._asking.execute(query):
            change = change_from(*event)
            if change is None or change.table != self._replica.source:
                continue
            if seen is not None and seen.sees(change.txid):
                continue
            if not latest.fits(change):
                raise NotComparable(
                    f"the key of table {self._replica} was changed just now",
                    hint="Compare once more.",
                )
            values = {name: each for name, each in change.values.items() if name in columns}
            if values and len(values) < len(columns):
                raise NotComparable(
                    f"table {self._replica} was altered just now", hint="Compare once more."
                )
            latest.add(change._replace(values=values))
        return latest

    # --- comparing

    def _compare(self, before: _Tick, seen: Snapshot, repair: bool) -> Comparison:
        source, target = self._source, self._target
        with target.transaction():
            target.execute("set transaction isolation level repeatable read")
            silent(target, False)
            at = self._reached()
            self._check()
            relation = catalog.by_names(source, self._replica.source)
            table = describe(target, *self._replica.target)
            self._key = key = catalog.key(source, relation)
            writable = table.writable(catalog.chosen(source, relation, self._replica.columns))
            self._columns = columns = [each.name for each in writable]
            latest = self._changes(columns, before, at, seen)

            only = sql.SQL("" if relation.kind == "p" else "only ")
            there = Rows(source, only + sql.Identifier(*relation.names), key, columns)
            copy = Rows(target, table.identifier, key, columns)
            keys = [each for each in writable if each.name in key]
            changed = Rows(target, stage(target, writable, latest.rows.values()), key, columns)
            gone = Rows(target, stage(target, keys, latest.gone.values(), what="gone"), key, key)
            count = self._count(relation.oid)
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
            differences = _differences(right, actual)
            if repair:
                wrong = {each.key for each in differences if each.kind != EXTRA}
                self._right = there.fetch(wrong - overlay.keys())
                self._right |= changed.fetch(wrong & overlay.keys())
        self._at = at
        return Comparison(self._replica, rows, at.id, differences)

    def _count(self, oid: int) -> int:
        [row] = self._source.execute(
            "select sum(c.reltuples)::int8 from pg_catalog.pg_class c where c.oid = %s::oid"
            " or c.oid in (select relid from pg_catalog.pg_partition_tree(%s) where isleaf)",
            [oid, oid],
        )
        return int(min(max(row[0] // _PIECE, 1), _PIECES))

    # --- repairing

    def _repair(self, found: Comparison) -> int:
        """Correct rows, at a point at which no batch can be applied meanwhile. A row that changed
        after the comparison is correct already: a change holds the whole row."""
        target, key = self._target, self._key
        quiet = may_silence(target)
        with target.transaction():
            self._state.own()
            silent(target, quiet)
            self._check()
            latest = self._changes(self._columns, self._at, self._reached(), None)
            if latest.truncated:
                return 0
            table = describe(target, *self._replica.target)
            done: set[str] = set()
            for names, rows in ((self._columns, latest.rows), (key, latest.gone)):
                staged = stage(target, table.writable(tuple(names)), rows.values())
                done |= Rows(target, staged, key, names).piece_of_each(1).keys()
            wrong = [each for each in found.differences if each.key not in done]

            mended = Latest()
            mended.key_columns = tuple(key)
            for each in wrong:
                if each.kind != EXTRA:
                    mended.rows[(each.key,)] = self._right[each.key]
            copy = Rows(target, table.identifier, key, key)
            extra = copy.fetch([each.key for each in wrong if each.kind == EXTRA])
            mended.gone = {(key,): row for key, row in extra.items()}
            apply_all(target, [(table, mended)], foreign_keys=not quiet)
            return len(wrong)


def _differences(right: dict[str, int], there: dict[str, int]) -> list[Difference]:
    differences = []
    for key in sorted(right.keys() | there.keys()):
        if right.get(key) != there.get(key):
            kind = MISSING if key not in there else EXTRA if key not in right else DIFFERENT
            differences.append(Difference(key, kind))
    return differences
