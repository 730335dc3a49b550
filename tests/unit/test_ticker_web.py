"""The endpoint over real HTTP."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pgqpy_ticker import Database, web
from pgqpy_ticker.observe import few
from pgqpy_ticker.served import (
    ConsumerSeen,
    Observation,
    QueueSeen,
    Served,
    State,
    TaskQueueSeen,
)
from pgqpy_ticker.web import Endpoint
from tests.fixtures.fix_client import PATIENCE

SEEN = Observation(
    (QueueSeen('odd "name"\n', 1.5, 7, 3, 60.0),),
    (ConsumerSeen("q", "c", 2.0, 1.0, 9),),
    {"prepared": 400.0, "idle": 0.0},
    (TaskQueueSeen("mails", 1, 2, 3, 4, 5, 6.0, *range(7, 16)),),
)


class Site:
    """An endpoint for two databases whose state the test decides."""

    def __init__(self) -> None:
        self.shop, self.stock = (
            Served(Database(name=n, dsn="", healthy_within=PATIENCE)) for n in ("shop", "stock")
        )
        self.served = [self.shop, self.stock]
        self._endpoint = Endpoint("127.0.0.1:0", lambda: self.served)
        self.address = self._endpoint.address
        self.close = self._endpoint.close

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        request = urllib.request.Request(f"http://{self.address}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
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
    site.shop.enter(State.LEADING)
    site.stock.enter(State.STANDBY)
    status, body = site.get("/healthz")
    assert (status, json.loads(body)["databases"]["stock"]["state"]) == (200, "standby")
    # One that is away is named with its reason.
    site.stock.enter(State.AWAY, "connection refused")
    status, body = site.get("/healthz")
    report = json.loads(body)
    assert (status, report["healthy"]) == (503, False)
    assert report["databases"]["stock"]["reason"] == "connection refused"
    # A leader has not ticked for long.
    site.stock.enter(State.LEADING)
    assert site.get("/healthz")[0] == 200
    site.stock.heartbeat -= PATIENCE + 1
    assert site.get("/healthz")[0] == 503


def test_a_leader_whose_maintenance_fails_is_unhealthy_and_says_what_fails(site: Site) -> None:
    for served in site.served:
        served.enter(State.LEADING)
    site.shop.fail(("shop.tidy_up", "orders"), "division by zero")
    status, body = site.get("/healthz")
    report = json.loads(body)["databases"]["shop"]
    failing = {"operation": "shop.tidy_up", "argument": "orders", "error": "division by zero"}
    assert (status, report["failing"]) == (503, [failing])
    site.shop.mend(("shop.tidy_up", "orders"))
    assert site.get("/healthz")[0] == 200


def test_other_paths_say_which_there_are_and_head_answers_without_a_body(site: Site) -> None:
    status, body = site.get("/")
    assert status == 404
    assert "/metrics" in body
    assert site.get("/metrics", "HEAD") == (200, "")


def samples(site: Site) -> dict[tuple[str, ...], float]:
    """The values of the page by name and labels, as Prometheus reads it."""
    families = text_string_to_metric_families(site.get("/metrics")[1])
    return {
        (each.name, *each.labels.values()): each.value
        for family in families
        for each in family.samples
    }


def test_what_was_observed_is_measured_by_database_queue_and_consumer(site: Site) -> None:
    site.shop.observation = SEEN
    found = samples(site)
    assert found["pgqpy_queue_pending_events", "shop", 'odd "name"\n'] == 7
    assert found["pgqpy_queue_rotations", "shop", 'odd "name"\n'] == 3
    assert found["pgqpy_consumer_lag_seconds", "c", "shop", "q"] == 2
    assert found["pgqpy_oldest_transaction_seconds", "shop", "prepared"] == 400
    assert found["pgqpy_oldest_transaction_seconds", "shop", "idle"] == 0
    assert found["pgqpy_task_queue_tasks", "shop", "mails", "held"] == 4
    assert found["pgqpy_task_operations_total", "shop", "deleted", "mails"] == 15


def test_names_beyond_the_first_thousand_are_one_with_the_sum_and_the_greatest_age() -> None:
    seen = few(ConsumerSeen("q", f"c{n:04}", float(n), 1.0, n) for n in range(1500))
    assert len(seen) == 1000
    assert seen[998] == ConsumerSeen("q", "c0998", 998.0, 1.0, 998)
    assert seen[999] == ConsumerSeen("_OTHER", "_OTHER", 1499.0, 1.0, sum(range(999, 1500)))


def test_a_database_no_longer_served_leaves_no_numbers(site: Site) -> None:
    site.shop.fail(("tick", None), "away")
    site.shop.ran("vacuum", 0.1)
    site.shop.observation = SEEN
    assert "shop" in site.get("/metrics")[1]
    site.served = [site.stock]
    assert "shop" not in site.get("/metrics")[1]


def test_ticks_are_counted_from_the_start(site: Site) -> None:
    assert samples(site)["pgqpy_ticks_total", "shop"] == 0
    site.shop.ticks += 3
    assert samples(site)["pgqpy_ticks_total", "shop"] == 3


def test_durations_are_counted_up_to_each_bound(site: Site) -> None:
    for seconds in (0.0005, 0.004, 0.3, 7):
        site.shop.rounds.observe(seconds)
    found = samples(site)
    counts = [
        found["pgqpy_ticker_round_seconds_bucket", "shop", bound]
        for bound in ("0.0005", "0.002", "0.005", "0.5", "5.0", "+Inf")
    ]
    assert counts == [1, 1, 2, 3, 3, 4]
    assert found["pgqpy_ticker_round_seconds_count", "shop"] == 4
    assert found["pgqpy_ticker_round_seconds_sum", "shop"] == pytest.approx(7.3045)


def slow(site: Site) -> socket.socket:
    """A client that never ends its request."""
    host, _, port = site.address.rpartition(":")
    connection = socket.create_connection((host, int(port)), PATIENCE)
    connection.sendall(b"GET /healthz")
    return connection


def test_slow_clients_keep_few_threads_and_no_other_client_out(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "MOST", 4)
    monkeypatch.setattr(web, "LONGEST", 600)
    monkeypatch.setattr(web._Handler, "timeout", 600)
    # Their threads end after the next clients have come.
    monkeypatch.setattr(web._Handler, "finish", lambda handler: time.sleep(0.05))
    before = threading.active_count()
    with ExitStack() as stack:
        clients = [stack.enter_context(slow(site)) for _ in range(4 * web.MOST)]
        assert clients[0].recv(1) == b""
        assert threading.active_count() <= before + 2 * web.MOST
        assert site.get("/healthz")[0] == 503


def test_a_client_that_sends_a_byte_now_and_then_is_ended(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "LONGEST", 0.3)

    def trickle(client: socket.socket) -> None:
        for _ in range(1000):
            client.sendall(b"x")
            time.sleep(0.01)

    with slow(site) as client, pytest.raises(OSError, match=r"reset|Broken pipe"):
        trickle(client)


def test_a_port_that_is_taken_is_an_error(site: Site) -> None:
    with pytest.raises(OSError, match="in use"):
        Endpoint(site.address, list)
