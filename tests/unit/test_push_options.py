"""Options of a job's push that it cannot have are refused at once, with what it can have."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pgqpy.errors import InvalidTask
from pgqpy.tasks import TaskApp


def job() -> None: ...


@pytest.mark.parametrize(
    ("option", "said", "hint"),
    [
        ({"nope": 1}, "no option 'nope' for pushing job", "There are queue, tenant, at"),
        *(
            ({name: value, "unique_key": "k"}, f"{name} is {value!r}", "more than 0 seconds")
            for name in ("timeout", "unique_for")
            for value in (0, -1, math.inf, math.nan, "soon", 10**15)
        ),
        *(
            ({"max_attempts": value}, f"max_attempts is {value}", "a whole number from 1")
            for value in (0, True, 1.5)
        ),
        ({"priority": True}, "priority True", "a whole number between"),
    ],
)
def test_invalid_options_are_refused(option: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(InvalidTask, match=said) as refused:
        TaskApp("mails").task(job).options(**option)
    assert hint in str(refused.value.hint)


def test_a_job_is_not_made_with_an_option_that_there_is_not() -> None:
    with pytest.raises(InvalidTask, match="no option 'prioriti' for the job job") as refused:
        TaskApp("mails").task(prioriti=5)(job)  # type: ignore[call-overload]
    assert "There are name, aliases, " in str(refused.value.hint)


def test_a_job_cannot_be_made_with_an_infinite_lease() -> None:
    with pytest.raises(InvalidTask, match="the lease of job is inf"):
        TaskApp("mails").task(lease=math.inf)(job)
