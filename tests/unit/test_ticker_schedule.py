"""Schedule of the daemon's rounds: promises about arithmetic, for any sequence of rounds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqpy_ticker import Database
from pgqpy_ticker.schedule import (
    BURST,
    LONG_PAUSE,
    PAUSE,
    ROUNDS,
    SHORTEST,
    Budget,
    Pause,
    Schedule,
)

BUSY, IDLE, SLEEP_AFTER, AT_MOST = 0.002, 0.05, 0.25, 1.0
DATABASE = Database(
    name="", dsn="", poll_busy=BUSY, poll_idle=IDLE, sleep_after=SLEEP_AFTER, sleep_at_most=AT_MOST
)

waits = st.none() | st.floats(min_value=-10, max_value=1e5, allow_nan=False)


def rest(schedule: Schedule, now: float, **round_: Any) -> Pause:
    """The pause after a round, in which nothing was found or done unless it is said."""
    about: dict[str, Any] = {
        "found": False,
        "limited": False,
        "wait": None,
        "took": 0.0,
        "work": 0.0,
    } | round_
    return schedule.after_round(now, **about, database=DATABASE)


FOUND: dict[str, Any] = {"found": True}
#: Time since the last event, what the round was like, and the pause after it.
PAUSES: dict[str, tuple[float, dict[str, Any], Pause]] = {
    "busy: every few milliseconds": (100, FOUND, Pause(BUSY, asleep=False)),
    "due before that": (100, FOUND | {"wait": 0.002}, Pause(0.002, asleep=False)),
    "idle: until a producer wakes it": (SLEEP_AFTER, {}, Pause(AT_MOST, asleep=True)),
    "asleep until it is time to look": (10, {"wait": 0.7}, Pause(0.7, asleep=True)),
    "no sleep for what is due soon": (10, {"wait": 0.01}, Pause(0.01, asleep=False)),
    "long: half its time": (100, FOUND | {"took": 0.5, "wait": 0.002}, Pause(0.25, asleep=False)),
    "much work": (100, FOUND | {"took": 0.02, "work": 0.01}, Pause(0.01 * PAUSE, asleep=False)),
    "queues wait for their turn anyway": (
        100,
        FOUND | {"limited": True, "work": 0.005},
        Pause(0.005 * LONG_PAUSE, asleep=False),
    ),
    "but not if it is little work": (
        100,
        FOUND | {"limited": True, "work": 0.0001},
        Pause(BUSY, asleep=False),
    ),
}


@pytest.mark.parametrize("case", PAUSES)
def test_the_pause_after_a_round(case: str) -> None:
    now, about, pause = PAUSES[case]
    assert rest(Schedule(0), now, **about) == pause


def test_a_round_that_others_held_up_does_not_count_as_work() -> None:
    schedule = Schedule(0)
    rest(schedule, 100, found=True, work=0.001)
    assert rest(schedule, 100, found=True, work=0.5) == Pause(0.001 * PAUSE, asleep=False)
    for _ in range(ROUNDS):
        pause = rest(schedule, 100, found=True, work=0.5)
    assert pause == Pause(0.5 * PAUSE, asleep=False)


def test_one_busy_queue_is_ticked_in_every_round_and_a_round_may_always_make_a_tick() -> None:
    budget = Budget(0)
    for number in range(1, 10_000):
        assert budget.early(number * BUSY, 0.0016) >= 1
        budget.spend(1, 0.0016)

    budget = Budget(0)
    budget.spend(1_000_000, 1)
    assert budget.early(0, 1) == 1


@given(
    st.lists(st.tuples(st.floats(0.001, 2), st.integers(0, 1_000)), min_size=1),
    st.floats(0.0005, 0.001),
)
def test_ticks_of_many_queues_keep_their_distance_on_average(
    rounds: list[tuple[float, int]], spacing: float
) -> None:
    budget, now, made = Budget(0), 0.0, 0
    for elapsed, due in rounds:
        now += elapsed
        ticks = min(due, budget.early(now, spacing))
        budget.spend(ticks, spacing)
        made += ticks
        assert made * spacing <= now + BURST + spacing


def test_before_sleep_polling_slows_down_with_the_time_since_the_last_event() -> None:
    schedule = Schedule(0)
    pauses = [rest(schedule, quiet).seconds for quiet in (0.001, 0.04, 0.12, 0.24)]
    assert pauses == [BUSY, 0.005, 0.015, 0.03]
    assert rest(schedule, 60).asleep
    assert rest(schedule, 61, found=True) == Pause(BUSY, asleep=False)


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans(), waits), min_size=1))
def test_the_pause_is_never_endless_never_nothing_and_never_past_what_is_due(
    rounds: list[tuple[float, bool, float | None]],
) -> None:
    schedule, now = Schedule(0), 0.0
    for elapsed, found, wait in rounds:
        now += elapsed
        pause = rest(schedule, now, found=found, wait=wait)
        assert SHORTEST <= pause.seconds <= AT_MOST
        assert wait is None or pause.seconds <= max(wait, SHORTEST)
        assert pause.asleep or pause.seconds <= IDLE
