"""When the daemon looks for work: promises about arithmetic, for any sequence of rounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pgqpy_ticker.pace import SHORTEST, Pace, Rest

BUSY, IDLE, SLEEP_AFTER, AT_MOST = 0.003, 0.05, 0.25, 1.0

waits = st.none() | st.floats(min_value=-10, max_value=1e5, allow_nan=False)


def rest(
    pace: Pace,
    now: float,
    *,
    found: bool = False,
    wait: float | None = None,
    took: float = 0.0,
) -> Rest:
    return pace.after_round(
        now,
        took=took,
        found=found,
        wait=wait,
        busy=BUSY,
        idle=IDLE,
        sleep_after=SLEEP_AFTER,
        sleep_at_most=AT_MOST,
    )


def test_a_busy_queue_is_looked_at_every_few_milliseconds() -> None:
    assert rest(Pace(0), 100, found=True) == Rest(BUSY, asleep=False)


def test_what_is_due_before_the_next_poll_is_waited_for_exactly() -> None:
    assert rest(Pace(0), 100, found=True, wait=0.002) == Rest(0.002, asleep=False)


def test_an_idle_database_is_left_to_its_producers_to_wake() -> None:
    assert rest(Pace(0), SLEEP_AFTER, wait=None) == Rest(AT_MOST, asleep=True)


def test_sleep_ends_when_it_is_time_to_look_again() -> None:
    assert rest(Pace(0), 10, wait=0.7) == Rest(0.7, asleep=True)


def test_there_is_no_sleep_for_what_is_due_within_a_poll() -> None:
    assert rest(Pace(0), 10, wait=0.01) == Rest(0.01, asleep=False)


def test_a_round_that_takes_long_is_followed_by_a_pause_of_half_its_time() -> None:
    assert rest(Pace(0), 100, found=True, wait=0.002, took=0.5) == Rest(0.25, asleep=False)


def test_before_sleep_polling_slows_down_with_the_time_since_the_last_event() -> None:
    pace = Pace(0)
    pauses = [rest(pace, quiet).seconds for quiet in (0.001, 0.04, 0.12, 0.24)]
    assert pauses == [BUSY, 0.005, 0.015, 0.03]


def test_after_a_tick_it_polls_fast_again() -> None:
    pace = Pace(0)
    assert rest(pace, 60).asleep
    assert rest(pace, 61, found=True) == Rest(BUSY, asleep=False)


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans(), waits), min_size=1))
def test_the_pause_is_never_endless_never_nothing_and_never_past_what_is_due(
    rounds: list[tuple[float, bool, float | None]],
) -> None:
    pace, now = Pace(0), 0.0
    for elapsed, found, wait in rounds:
        now += elapsed
        pause = rest(pace, now, found=found, wait=wait)
        assert SHORTEST <= pause.seconds <= AT_MOST
        assert wait is None or pause.seconds <= max(wait, SHORTEST)
        assert pause.asleep or pause.seconds <= IDLE
