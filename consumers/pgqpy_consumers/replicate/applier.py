"""Applying changes of replicated tables to the target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pgqpy
from pgqpy_consumers.apply import ApplyError, Change, Latest, Table, apply_all, describe
from pgqpy_consumers.replicate.session import may_silence, silent
from pgqpy_consumers.replicate.state import Replica


class Applier:
    """Applies changes, and caches descriptions of the target's tables. One for each thread."""

    def __init__(self) -> None:
        self._tables: dict[int, Table] = {}
        self._may_silence: bool | None = None

    def prepare(self, target: pgqpy.Connection) -> None:
        """Prepare a transaction that has begun: formats of values, and no triggers if allowed."""
        if self._may_silence is None:
            self._may_silence = may_silence(target)
        silent(target, self._may_silence)

    def table(self, target: pgqpy.Connection, replica: Replica) -> Table:
        """The cached description of the target's table. Raises TableMissing."""
        found = self._tables.get(replica.id)
        if found is None:
            found = self._tables[replica.id] = describe(target, *replica.target)
        return found

    def forget(self, replica: Replica) -> None:
        """Remove the table from the cache."""
        self._tables.pop(replica.id, None)

    def apply(
        self, target: pgqpy.Connection, changes: Iterable[tuple[Replica, Change]]
    ) -> dict[int, Exception]:
        """Apply the changes of each table; returns the errors of tables that failed, by their ids.

        A table gets all of its changes or none. Errors unrelated to a table are raised.
        """
        rounds = _rounds(changes)
        failed: dict[int, Exception] = {}
        looked_again: set[int] = set()
        while True:
            try:
                with target.transaction():
                    for work in rounds:
                        self._apply_round(target, work, failed)
            except _Failure as failure:
                replica = failure.replica
                # The table may have been altered since it was cached.
                self.forget(replica)
                if replica.id in looked_again:
                    failed[replica.id] = failure.error
                looked_again.add(replica.id)
            else:
                return failed

    def _apply_round(
        self, target: pgqpy.Connection, work: _Round, failed: dict[int, Exception]
    ) -> None:
        found: list[tuple[Table, Latest]] = []
        replicas: dict[int, Replica] = {}
        for replica, latest in work.values():
            if replica.id in failed:
                continue
            try:
                table = self.table(target, replica)
            except pgqpy.PgqError as error:
                raise _Failure(replica, error) from error
            replicas[table.oid] = replica
            found.append((table, latest))
        try:
            apply_all(target, found, foreign_keys=not self._may_silence)
        except ApplyError as error:
            raise _Failure(replicas[error.table.oid], error) from error


class _Failure(Exception):
    def __init__(self, replica: Replica, error: Exception) -> None:
        super().__init__(replica, error)
        self.replica = replica
        self.error = error


_Round = dict[int, tuple[Replica, Latest]]


def _rounds(changes: Iterable[tuple[Replica, Change]]) -> Sequence[_Round]:
    """Group all changes of a table, unless its key was altered between them."""
    rounds: list[_Round] = [{}]
    for replica, change in changes:
        if replica.columns is not None and change.values:
            wanted = {*replica.columns, *change.key_columns}
            change = change._replace(  # noqa: PLW2901
                values={name: change.values[name] for name in change.values if name in wanted}
            )
        _, latest = rounds[-1].setdefault(replica.id, (replica, Latest()))
        if not latest.fits(change):
            rounds.append({})
            _, latest = rounds[-1].setdefault(replica.id, (replica, Latest()))
        latest.add(change)
    return rounds
