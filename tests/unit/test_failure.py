"""What becomes of a failure: the error decides, or else the policy."""

from __future__ import annotations

import logging
from datetime import timedelta

import psycopg
import pytest

from pgqpy import DeadLetter, FixedDelay, Retry
from pgqpy._runtime.failure import Failure, decide, decide_anyway, is_outage
from pgqpy.errors import InvalidName, RetryTransaction

POLICY = FixedDelay(3, attempts=2)
ERROR = ValueError("why")


def test_the_error_decides_or_else_the_policy_and_only_a_retry_does_not_count() -> None:
    assert decide(Retry(60), 9, None).delay == timedelta(minutes=1)
    assert not decide(Retry(60), 9, None).counts
    assert decide(DeadLetter("no"), 1, None).delay is None
    assert decide(ERROR, 1, POLICY) == Failure(ERROR, timedelta(seconds=3))
    assert decide(ERROR, 2, POLICY) == Failure(ERROR, None)
    assert decide(ERROR, 1, POLICY).counts
    with pytest.raises(ValueError, match="why"):
        decide(ERROR, 1, None)


@pytest.mark.parametrize("delay", [-1, timedelta(days=40_000), "soon"])
def test_a_delay_that_makes_no_sense_is_an_error_or_a_retry_in_a_minute(
    delay: float, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match="delay"):
        decide(ERROR, 1, lambda attempt, error: delay)
    with pytest.raises(ValueError, match="delay"):
        decide(Retry(delay), 1, None)
    failure = decide_anyway(ERROR, 1, lambda attempt, error: delay, "task 7")
    assert failure.delay == timedelta(minutes=1)
    assert isinstance(failure.error, ValueError)
    assert [record.getMessage() for record in caplog.records] == [
        "task 7 failed, and the retry policy, too"
    ]


def test_outages_are_transient_errors_and_those_that_the_user_names() -> None:
    assert is_outage(psycopg.OperationalError("gone"))
    assert is_outage(RetryTransaction("again", sqlstate="40001"))
    assert is_outage(ConnectionError(), (OSError,))
    assert not is_outage(ERROR, (OSError,))
    assert not is_outage(InvalidName("none", sqlstate="PQ003"))
    assert not is_outage(Retry(1), (Exception,))


def test_the_log_has_a_warning_for_a_retry_and_a_traceback_for_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    try:
        raise ERROR
    except ValueError as error:
        decide(error, 1, POLICY).log("row 1", 1, {"queue": "q"})
        decide(error, 2, POLICY).log("row 1", 2, {"queue": "q"}, end="is lost")
    given_up = Failure(DeadLetter("on purpose"), None)
    given_up.log("row 1", 1, {})
    retried, ended, meant = caplog.records
    assert retried.getMessage() == "row 1 failed in attempt 1, again in 3.0 s: ValueError: why"
    assert (retried.levelno, retried.exc_info) == (logging.WARNING, None)
    assert retried.__dict__["pause"] == 3.0
    assert ended.getMessage() == "row 1 is lost after attempt 2: ValueError: why"
    assert (ended.levelno, ended.__dict__["attempt"]) == (logging.ERROR, 2)
    assert ended.exc_info
    assert not meant.exc_info
    assert "Traceback" in Failure(ended.exc_info[1], None).described()  # type: ignore[arg-type]
    assert given_up.described() == "on purpose"
