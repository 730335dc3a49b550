"""Times of periodic jobs: each time that the expression names, once, whatever clocks do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgqpy.errors import InvalidTask
from pgqpy.tasks._jobs.periodic import Cron

BERLIN = ZoneInfo("Europe/Berlin")


def due(expression: str, time: datetime, number: int) -> list[str]:
    runs = islice(Cron(expression, "Europe/Berlin").after(time), number)
    return [run.astimezone(BERLIN).strftime("%d %H:%M %z") for run in runs]


SPRING = datetime(2026, 3, 28, 23, 30, tzinfo=BERLIN)
AUTUMN = datetime(2026, 10, 24, 23, 30, tzinfo=BERLIN)


@pytest.mark.parametrize(
    ("time", "expression", "expected"),
    [
        # What the clock skips is due right after.
        (SPRING, "30 2 * * *", ["29 03:00 +0200", "30 02:30 +0200"]),
        (SPRING, "*/30 2 * * *", ["29 03:00 +0200", "30 02:00 +0200"]),
        (SPRING, "0 2,3 * * *", ["29 03:00 +0200", "30 02:00 +0200"]),
        (SPRING, "0 */2 * * *", ["29 00:00 +0100", "29 03:00 +0200", "29 04:00 +0200"]),
        (SPRING, "0 * * * *", ["29 00:00 +0100", "29 01:00 +0100", "29 03:00 +0200"]),
        (SPRING, "30 3 * * SUN", ["29 03:30 +0200", "05 03:30 +0200"]),
        # What it shows twice is due once, but for every hour that passes.
        (AUTUMN, "30 2 * * *", ["25 02:30 +0200", "26 02:30 +0100"]),
        (AUTUMN, "*/30 2 * * *", ["25 02:00 +0200", "25 02:30 +0200", "26 02:00 +0100"]),
        (AUTUMN, "0 */2 * * *", ["25 00:00 +0200", "25 02:00 +0200", "25 04:00 +0100"]),
        (
            AUTUMN,
            "0 * * * *",
            ["25 00:00 +0200", "25 01:00 +0200", "25 02:00 +0200", "25 02:00 +0100"],
        ),
    ],
)
def test_runs_when_clocks_change(time: datetime, expression: str, expected: list[str]) -> None:
    assert due(expression, time, len(expected)) == expected


def test_what_was_due_the_first_time_is_not_due_the_second() -> None:
    for minutes in (1, 29, 31, 59):
        second = datetime(2026, 10, 25, 1, tzinfo=UTC) + timedelta(minutes=minutes)
        assert due("30 2 * * *", second, 1) == ["26 02:30 +0100"]


@pytest.mark.parametrize(
    ("time", "expression", "expected"),
    [
        (SPRING, "15,45 30 2 * * *", ["29 03:00:00 +0200", "30 02:30:15 +0200"]),
        (SPRING, "30 59 * * * *", ["28 23:59:30 +0100", "29 00:59:30 +0100", "29 01:59:30 +0100"]),
        (
            AUTUMN,
            "15,45 30 2 * * *",
            ["25 02:30:15 +0200", "25 02:30:45 +0200", "26 02:30:15 +0100"],
        ),
        (AUTUMN, "*/40 * 2-4/2 * * *", ["25 02:00:00 +0200", "25 02:00:40 +0200"]),
        (
            AUTUMN.replace(day=25, hour=1),
            "30 45 * * * *",
            ["25 01:45:30 +0200", "25 02:45:30 +0200", "25 02:45:30 +0100"],
        ),
    ],
)
def test_with_seconds_first_the_clock_changes_alike(
    time: datetime, expression: str, expected: list[str]
) -> None:
    runs = islice(Cron(expression, "Europe/Berlin").after(time), len(expected))
    assert [run.astimezone(BERLIN).strftime("%d %H:%M:%S %z") for run in runs] == expected


def test_an_interval_follows_elapsed_time() -> None:
    time = datetime(2026, 10, 25, 0, 59, tzinfo=UTC)
    ends = [time + timedelta(seconds=90), time + timedelta(seconds=180)]
    assert [*islice(Cron("@every 90s", "Europe/Berlin").after(time), 2)] == ends


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    expression=st.sampled_from(
        [
            "30 2 * * *",
            "*/20 2 * * *",
            "15 */2 * * *",
            "0 * * * *",
            "59 1-3 * * *",
            "* * * * *",
            "30 0 2 * * *",
            "20 */30 1-3 * * *",
            "10 5 * * * *",
        ]
    ),
    zone=st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"]),
    begin=st.sampled_from([datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 10, 24, tzinfo=UTC)]),
    cut=st.integers(0, 3 * 24 * 60),
)
def test_where_one_process_stops_another_goes_on(
    expression: str, zone: str, begin: datetime, cut: int
) -> None:
    """The runs are the same, from whatever time on they are computed."""
    cron = Cron(expression, zone)
    end = begin + timedelta(days=3)
    middle = begin + timedelta(minutes=cut)
    whole = list(takewhile(lambda run: run <= end, cron.after(begin)))
    assert all(one < other for one, other in pairwise(whole))
    first = [run for run in whole if run <= middle]
    rest = list(takewhile(lambda run: run <= end, cron.after(middle)))
    assert first + rest == whole


def test_what_is_no_expression_or_no_time_zone_is_refused() -> None:
    wrong = ("61 * * * *", "* * *", "0 0 30 2 *", "@daily", "", "* * * * * * *", "a * * * *", None)
    for expression in (*wrong, "@every 0s", "@every 1.5s", "@every 90"):
        with pytest.raises(InvalidTask, match="is no cron expression"):
            Cron(expression)  # type: ignore[arg-type]
    for zone in ("Mars/Olympus", "", None, "../etc/passwd"):
        with pytest.raises(InvalidTask, match="there is no time zone"):
            Cron("* * * * *", zone)  # type: ignore[arg-type]
