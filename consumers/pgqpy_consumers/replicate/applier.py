"""Changes of replicated tables brought into the target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pgqpy
from pgqpy_consumers.apply import ApplyError, Change, Latest, Table, apply_all, describe
from pgqpy_consumers.replicate.session import may_silence, silent
from pgqpy_consumers.replicate.state import Replica


class Applier:
    """Knows the target's tables. One for each thread."""

    def __init__(self) -> None:
        self._tables: dict[int, Table] = {}
        self._may_silence: bool | None = None

    def prepare(self, target: pgqpy.Connection) -> None:
        """Prepare a transaction that has begun, so that values and triggers are as they must be."""
        if self._may_silence is None:
            self._may_silence = may_silence(target)
        silent(target, self._may_silence)

    def table(self, target: pgqpy.Connection, replica: Replica) -> Table:
        """The target's table as it was when it was looked at. Raises TableMissing."""
        found = self._tables.get(replica.id)
        if found is None:
            found = self._tables[replica.id] = describe(target, *replica.target)
        return found

    def forget(self, replica: Replica) -> None:
        """Look at the table again."""
        self._tables.pop(replica.id, None)

    def apply(
        self, target: pgqpy.Connection, changes: Iterable[tuple[Replica, Change]]
    ) -> dict[int, Exception]:
        """Apply what can be applied; the tables that cannot, by their ids, with the reason.

        All or nothing of each table. What has nothing to do with a table is raised.
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
                # It may have been altered since it was looked at.
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
    """All changes of a table at once, unless its key was altered between them."""
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
