"""The demo's data and plan: all flights, once each, the same every time."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from examples.demo.flights import (
    BulkCorrection,
    Flight,
    Step,
    expected_events,
    load_airlines,
    load_flights,
    make_plan,
)
from examples.demo.results import Commit, Delivery, Measurements, percentile


@pytest.fixture(scope="module")
def flights() -> list[Flight]:
    return load_flights()


def test_the_data_are_all_flights_of_2013_in_order_of_departure(flights: list[Flight]) -> None:
    assert len(flights) == 336_776
    assert [flight.id for flight in flights] == list(range(1, 336_777))
    assert all(a.scheduled <= b.scheduled for a, b in itertools.pairwise(flights))
    assert {flight.carrier for flight in flights} == set(load_airlines())
    # From the documentation of the data set.
    assert sum(flight.arr_delay is None for flight in flights) == 9_430


def test_a_plan_inserts_every_flight_once_and_is_reproducible(flights: list[Flight]) -> None:
    flights = flights[:20_000]
    plan = make_plan(flights)
    assert plan == make_plan(flights)
    steps = [step for step in plan if isinstance(step, Step)]
    inserted = Counter(flight.id for step in steps for flight in step.flights)
    assert inserted == Counter(flight.id for flight in flights)
    assert [step.due for step in plan] == sorted(step.due for step in plan)


def test_a_plan_has_everything_that_a_queue_must_survive(flights: list[Flight]) -> None:
    plan = make_plan(flights[:100_000])
    steps = [step for step in plan if isinstance(step, Step)]
    assert any(step.first_rolls_back for step in steps)
    assert any(step.savepoint_rolls_back for step in steps)
    assert any(step.lingers for step in steps)
    assert any(step.delays for step in steps)
    assert any(step.cancelled for step in steps)
    assert sum(isinstance(step, BulkCorrection) for step in plan) == 1
    assert expected_events(plan) > 100_000
    # Rows are corrected or deleted only after their insert.
    for step in steps:
        ids = {flight.id for flight in step.flights}
        assert ids.issuperset(id_ for id_, _ in step.delays)
        assert ids.issuperset(step.cancelled)


@pytest.mark.parametrize(("percent", "value"), [(50, 50), (99, 99), (100, 100), (1, 1), (0, 1)])
def test_a_percentile_is_the_smallest_value_that_enough_do_not_exceed(
    percent: float, value: int
) -> None:
    values = list(range(1, 101))
    random.Random(1).shuffle(values)
    assert percentile(values, percent) == value


def test_measurements_follow_from_the_two_logs() -> None:
    measured = Measurements(
        commits=[Commit(1, 10.0, 100), Commit(2, 11.0, 0), Commit(3, 12.0, 300)],
        deliveries=[Delivery(10.25, 100, [1]), Delivery(14.0, 300, [3])],
        ranges=[],
        rollbacks=0,
        ticks=2,
        rotations=0,
    )
    assert measured.events == 400
    assert measured.events_in_per_second() == 200
    assert measured.events_out_per_second() == 100
    assert measured.latencies() == [(10.0, 0.25), (12.0, 2.0)]
