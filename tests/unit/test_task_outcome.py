"""The outcome of a task, from what its handler returned or raised."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pgqpy import DeadLetter, FixedDelay, Retry
from pgqpy.tasks import Move, Task
from pgqpy.tasks._outcome import Failed, Finished, Moved, Released, outcome_of, outcome_of_error
from pgqpy.tasks._statements import jsonb_or_null

NOW = datetime.now(UTC)
TASK = Task(1, 1, "work", 0, 2, NOW, NOW, None, None, None, None, None)


def test_what_a_handler_returns_decides() -> None:
    assert outcome_of(None, jsonb_or_null) == Finished(None)
    assert outcome_of({"a": 1}, jsonb_or_null) == Finished('{"a":1}')
    assert outcome_of(Retry(5), jsonb_or_null) == Released(timedelta(seconds=5))
    given_up = DeadLetter("too old")
    assert outcome_of(given_up, jsonb_or_null) == Failed("too old", None, given_up)
    moved = outcome_of(Move("next", 7), jsonb_or_null)
    assert isinstance(moved, Moved)
    assert (moved.change["queue"], moved.change["payload"]) == ("next", 7)


def test_a_result_that_is_no_json_is_no_reason_to_repeat_the_work() -> None:
    outcome = outcome_of(object(), jsonb_or_null)
    assert isinstance(outcome, Finished)
    assert outcome.result is None
    assert "the result is not kept" in (outcome.note or "")


def test_a_coroutine_that_was_not_awaited_fails_for_good() -> None:
    async def forgotten() -> None: ...

    with pytest.raises(DeadLetter, match="not awaited"):
        outcome_of(forgotten(), jsonb_or_null)


def test_after_an_error_the_policy_decides_by_the_attempt() -> None:
    error = ValueError("no luck")
    outcome = outcome_of_error(error, TASK, FixedDelay(60, attempts=3))
    assert isinstance(outcome, Failed)
    assert (outcome.delay, outcome.raised) == (timedelta(minutes=1), error)
    assert outcome.error.startswith("ValueError: no luck\n\n")
    last = outcome_of_error(error, TASK, FixedDelay(60, attempts=2))
    assert isinstance(last, Failed)
    assert last.delay is None


def test_a_policy_that_fails_costs_no_task() -> None:
    error = ValueError("no luck")
    outcome = outcome_of_error(error, TASK, lambda attempt, error: -1.0)
    assert isinstance(outcome, Failed)
    assert (outcome.delay, outcome.raised) == (timedelta(minutes=1), error)
    assert "negative" in outcome.error


def test_decisions_may_be_raised_as_well() -> None:
    def policy(attempt: int, error: Exception) -> float:
        raise AssertionError

    assert outcome_of_error(Retry(5), TASK, policy) == Released(timedelta(seconds=5))
    assert isinstance(outcome_of_error(Move("next"), TASK, policy), Moved)
