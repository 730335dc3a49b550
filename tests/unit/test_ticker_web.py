"""The endpoint over real HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from pgqpy_ticker.health import Pulse, State
from pgqpy_ticker.metrics import ConsumerSeen, Metrics, Observation, OpenTransaction, QueueSeen
from pgqpy_ticker.web import Endpoint

SEEN = Observation(
    (QueueSeen('odd "name"\n', 1.5, 7, 3, 60.0),),
    (ConsumerSeen("q", "c", 2.0, 1.0, 9),),
    (OpenTransaction("prepared", "gid", 400.0), OpenTransaction("prepared", "new", 1.0)),
)


class Site:
    """An endpoint whose health the test decides."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.pulses = {"a": Pulse(), "b": Pulse()}
        self.now = self.pulses["a"].at
        self._endpoint = Endpoint("127.0.0.1:0", self.health, self.metrics.page)
        self.address = self._endpoint.address
        self.close = self._endpoint.close

    def health(self) -> tuple[bool, dict[str, object]]:
        well = all(pulse.healthy(self.now, 10) for pulse in self.pulses.values())
        return well, {name: pulse.report(self.now, 10) for name, pulse in self.pulses.items()}

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        request = urllib.request.Request(f"http://{self.address}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


def test_healthy_is_when_each_database_is_led_or_stood_by_for(site: Site) -> None:
    site.pulses["a"].enter(State.LEADING)
    site.pulses["b"].enter(State.STANDBY)
    status, body = site.get("/healthz")
    assert (status, json.loads(body)["databases"]["b"]["state"]) == (200, "standby")


def test_one_database_away_is_unhealthy_and_named_with_its_reason(site: Site) -> None:
    site.pulses["a"].enter(State.LEADING)
    site.pulses["b"].enter(State.AWAY, "connection refused")
    status, body = site.get("/healthz")
    report = json.loads(body)
    assert (status, report["healthy"]) == (503, False)
    assert report["databases"]["b"]["reason"] == "connection refused"


def test_a_leader_that_has_not_ticked_for_long_is_unhealthy(site: Site) -> None:
    for pulse in site.pulses.values():
        pulse.enter(State.LEADING)
    site.now = site.pulses["a"].at + 11
    assert site.get("/healthz")[0] == 503


def test_other_paths_say_which_there_are(site: Site) -> None:
    status, body = site.get("/")
    assert status == 404
    assert "/metrics" in body


def test_head_answers_without_a_body(site: Site) -> None:
    assert site.get("/metrics", "HEAD") == (200, "")


def test_what_was_observed_is_measured_by_database_queue_and_consumer(site: Site) -> None:
    site.metrics.observations.put("shop", SEEN)
    page = site.get("/metrics")[1].splitlines()
    for line in (
        r'pgqpy_queue_pending_events{database="shop",queue="odd \"name\"\n"} 7.0',
        r'pgqpy_queue_rotations{database="shop",queue="odd \"name\"\n"} 3.0',
        'pgqpy_consumer_lag_seconds{consumer="c",database="shop",queue="q"} 2.0',
        'pgqpy_oldest_transaction_seconds{database="shop",kind="prepared"} 400.0',
        'pgqpy_oldest_transaction_seconds{database="shop",kind="idle"} 0.0',
    ):
        assert line in page


def test_a_database_no_longer_served_leaves_no_numbers(site: Site) -> None:
    site.metrics.serves("shop")
    site.metrics.round("shop", 1, 0.001)
    site.metrics.failed("shop", "tick")
    site.metrics.maintained("shop", "vacuum", 0.1)
    site.metrics.observations.put("shop", SEEN)
    assert "shop" in site.get("/metrics")[1]
    site.metrics.forget("shop")
    assert "shop" not in site.get("/metrics")[1]


def test_ticks_are_counted(site: Site) -> None:
    site.metrics.serves("shop")
    assert 'pgqpy_ticks_total{database="shop"} 0.0' in site.get("/metrics")[1]
    site.metrics.round("shop", 3, 0.001)
    site.metrics.round("shop", 2, 0.001)
    assert 'pgqpy_ticks_total{database="shop"} 5.0' in site.get("/metrics")[1]


def test_a_port_that_is_taken_is_an_error(site: Site) -> None:
    with pytest.raises(OSError, match="in use"):
        Endpoint(site.address, site.health, site.metrics.page)
