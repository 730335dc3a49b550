"""Statements that report outcomes of tasks to the server: one for each kind of outcome."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import ConnectionInfo

from pgqpy._runtime.failure import storable
from pgqpy._runtime.io import Call
from pgqpy.errors import TaskConflict
from pgqpy.tasks import _statements as sql
from pgqpy.tasks._outcome import Failed, Finished, Moved, Outcome, Released, without_result
from pgqpy.tasks._worker.leases import Claim, versions

#: Any server takes a result of this many characters, if its encoding has them.
_SMALL = 10_000


@dataclass(eq=False, slots=True)
class Completion:
    """A claim, and the outcome of its task."""

    claim: Claim
    outcome: Outcome


def lost_ids(error: TaskConflict) -> list[int]:
    """Return the tasks that another worker has; none if another task prevents the outcome."""
    return [each["id"] for each in error.conflicts if each["reason"] != "collision"]


class Completions:
    """Statements for outcomes, and the meaning of their answers."""

    def __init__(
        self, claimant: str, info: ConnectionInfo, completed: Iterable[Completion]
    ) -> None:
        """``info`` gives the server's encoding: it may lack characters that an error quotes."""
        self._claimant = claimant
        self._info = info
        self.all = list(completed)
        self._kinds = {
            kind: [each for each in self.all if isinstance(each.outcome, kind)]
            for kind in {type(each.outcome) for each in self.all}
        }

    def calls(self) -> list[Call]:
        """Return the statements. The one for moves fails as a whole if a task is lost."""
        return [self._call(kind, completed) for kind, completed in self._kinds.items()]

    def may_be_refused(self) -> bool:
        """Whether the server may refuse some result, for its encoding or its size."""
        unicode = self._info.parameter_status("server_encoding") == "UTF8"
        return any(
            len(result) > _SMALL or not (unicode or result.isascii())
            for each in self._kinds.get(Finished, ())
            if isinstance(each.outcome, Finished) and (result := each.outcome.result) is not None
        )

    def drop_results(self, error: Exception) -> None:
        """Drop results that the server refuses; tasks are finished without."""
        for each in self._kinds.get(Finished, ()):
            if isinstance(each.outcome, Finished) and each.outcome.result is not None:
                each.outcome = without_result(error)

    @property
    def one_finished(self) -> tuple[Claim, str | None] | None:
        """Return a claim and its result, if the only outcome is that its task was done."""
        match self.all:
            case [Completion(claim=claim, outcome=Finished(result=result, note=None))]:
                return claim, result
        return None

    def failed(self, answers: Iterable[list[Any]]) -> Iterator[tuple[Claim, Failed, Sequence[Any]]]:
        """Yield failed tasks, each with whether it went to an error queue, to which, and why."""
        for (kind, completed), rows in zip(self._kinds.items(), answers, strict=True):
            known = {row[0]: row[1:] for row in rows} if kind is Failed else {}
            for each in completed:
                if isinstance(each.outcome, Failed) and each.claim.task.id in known:
                    yield each.claim, each.outcome, known[each.claim.task.id]

    def lost(self, answers: Iterable[list[Any]]) -> Iterator[Completion]:
        """Yield tasks that the worker had lost, from the rows of the statements."""
        for (kind, completed), rows in zip(self._kinds.items(), answers, strict=True):
            ids = {row[0] for row in rows}
            if kind is Finished or kind is Released:
                yield from (each for each in completed if each.claim.task.id in ids)
            elif kind is Failed:
                yield from (each for each in completed if each.claim.task.id not in ids)

    def _call(self, kind: type[Outcome], completed: list[Completion]) -> Call:
        claims = [each.claim for each in completed]
        outcomes: list[Any] = [each.outcome for each in completed]
        arguments: list[Any] = [self._claimant, *versions(claims)]
        encoding = self._info.parameter_status("server_encoding") or ""
        if kind is Finished:
            results = [outcome.result for outcome in outcomes]
            return sql.FINISH_MANY, [*arguments, _if_any(results), _notes(outcomes, encoding)]
        if kind is Released:
            delays = [outcome.delay for outcome in outcomes]
            return sql.RELEASE, [*arguments, delays, _notes(outcomes, encoding)]
        if kind is Failed:
            return sql.FAIL_MANY, [
                *arguments,
                [storable(outcome.error, encoding) for outcome in outcomes],
                [outcome.delay for outcome in outcomes],
                [outcome.delay is None for outcome in outcomes],
            ]
        assert kind is Moved
        changes = [
            {"id": claim.task.id, "version": claim.version, **outcome.change}
            for claim, outcome in zip(claims, outcomes, strict=True)
        ]
        change = sql.changes_json(changes)
        return sql.MODIFY, [self._claimant, None, change, None, None, False, False]


def _notes(outcomes: list[Any], encoding: str) -> list[Any] | None:
    return _if_any([outcome.note and storable(outcome.note, encoding) for outcome in outcomes])


def _if_any(values: list[Any]) -> list[Any] | None:
    return values if any(value is not None for value in values) else None
