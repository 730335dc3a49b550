"""Webhooks, against a real HTTP server that fails at times."""

from __future__ import annotations

import asyncio
import base64
import gzip
import itertools
import json
import os
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from cloudevents.core.v1.event import CloudEvent

import pgqpy
from pgqpy_consumers.webhook import EndpointGone, Signer, Webhook
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_client import PATIENCE, Tick
from tests.fixtures.fix_db import Connection
from tests.fixtures.hook_server import Answer, HookServer, Request

SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()

Put = Callable[..., None]
Kill = Callable[..., None]
Hook = Callable[..., Webhook]


@pytest.fixture
def hooks() -> Iterator[HookServer]:
    """An HTTP server on loopback."""
    made = HookServer()
    yield made
    made.close()


@pytest.fixture
def put(conn: Connection, queue: str, tick: Tick) -> Put:
    """``put({...}, {...})``: events with these data, in a batch of their own."""
    conn.execute("select pgq.register_consumer(%s, 'webhook')", [queue])

    def put_now(*datas: object) -> None:
        for data in datas:
            conn.execute("select pgq.insert_event(%s, 'order.paid', %s)", [queue, json.dumps(data)])
        tick()

    return put_now


@pytest.fixture
def hook(dsn: str, queue: str, hooks: HookServer) -> Hook:
    """``hook(...)``: one that runs in this process, with these settings."""

    def make(kind: type[Webhook] = Webhook, /, **settings: Any) -> Webhook:
        usual: dict[str, Any] = {
            "dsn": dsn,
            "queue": queue,
            "url": hooks.url,
            "first_pause": 0.0,
            "timeout": PATIENCE,
            "unsigned": "secrets" not in settings,
        }
        return kind.from_config(Webhook.Config(**usual | settings))

    return make


def run(webhook: Webhook) -> None:
    asyncio.run(webhook.run(until_empty=True))


def dead_letters(conn: Connection) -> list[str]:
    return [r for (r,) in conn.execute("select dl_reason from pgq.dead_letter order by 1")]


def test_a_request_is_signed_and_says_what_happened_and_when(
    put: Put, hook: Hook, hooks: HookServer
) -> None:
    put({"id": 1, "name": "Änn"})
    old = "whsec_" + base64.b64encode(b"o" * 24).decode()
    run(hook(secrets=(SECRET, old), headers={"X-Shop": "17"}))
    (request,) = hooks.taken
    body = json.loads(request.body)
    assert body["type"] == "order.paid"
    assert body["data"] == {"id": 1, "name": "Änn"}
    assert body["timestamp"].endswith("+00:00")
    assert request.headers["content-type"] == "application/json"
    assert request.headers["x-shop"] == "17"
    # A receiver knows one of the two.
    for secret in (SECRET, old):
        message_id, timestamp, signatures = (
            request.headers[f"webhook-{name}"] for name in ("id", "timestamp", "signature")
        )
        again = Signer([secret]).headers(message_id, int(timestamp), request.body)
        assert again["webhook-signature"] in signatures.split(" ")
    assert abs(int(timestamp) - time.time()) < PATIENCE


def test_a_cookie_that_an_endpoint_sets_is_not_sent_back(
    put: Put, hook: Hook, hooks: HookServer
) -> None:
    put(1, 2)
    hooks.answer = lambda request: Answer(headers=(("set-cookie", "theirs=1; path=/"),))
    run(hook(headers={"Cookie": "ours=1"}))
    assert [request.headers["cookie"] for request in hooks.taken] == ["ours=1"] * 2
    put(3, 4)
    run(hook())
    assert [request.headers.get("cookie") for request in hooks.taken[2:]] == [None] * 2


def test_a_captured_row_says_which_table_changed_how(
    conn: Connection, queue: str, put: Put, tick: Tick, hook: Hook, hooks: HookServer
) -> None:
    conn.execute("create table item (id int primary key, note text)")
    conn.execute("select pgq.capture_table('item', %s)", [queue])
    conn.execute("insert into item values (1, 'x')")
    tick()
    run(hook(key="primary_key"))
    body = json.loads(hooks.taken[0].body)
    assert body["type"] == "public.item.insert"
    assert body["data"] == {"id": 1, "note": "x"}
    # The data can be sent as it is.
    put({"a": 1})
    run(hook(body="data"))
    assert hooks.taken[1].body == b'{"a": 1}'


def test_events_are_sent_as_cloudevents_in_both_content_modes(
    conn: Connection, queue: str, put: Put, hook: Hook, hooks: HookServer
) -> None:
    given = CloudEvent({"type": "paid", "source": "/shop", "subject": "ü"}, b"\0")
    for settings in ({"body": "cloudevents", "source": "/here"}, {"body": "cloudevents-binary"}):
        pgqpy.Producer(queue).insert_event(conn, given)
        put({"a": 1})
        run(hook(**settings))
    sent = [from_http_event(HTTPMessage(r.headers, r.body)) for r in hooks.taken]
    assert [each.get_attributes() for each in sent[::2]] == [given.get_attributes()] * 2
    # The library reads bytes without a type as text.
    assert [each.get_data() for each in sent] == [b"\0", {"a": 1}, "\0", {"a": 1}]
    assert [each.get_source() for each in sent[1::2]] == ["/here", f"pgq:{queue}"]
    assert [each.get_type() for each in sent[1::2]] == ["order.paid"] * 2
    assert hooks.taken[0].headers["content-type"] == "application/cloudevents+json"


def test_a_key_that_fails_holds_back_itself_and_no_other(
    conn: Connection, put: Put, hook: Hook, hooks: HookServer
) -> None:
    put(*({"key": "ab"[n % 2], "n": n} for n in range(10)))

    refusals = itertools.count()

    def answer(request: Request) -> Answer:
        if request.data == {"key": "a", "n": 0}:
            # Until all of the other key's are there; those may be quicker than the first attempt.
            others = [data for data in hooks.data if data["key"] == "b"]
            return Answer(500 if next(refusals) == 0 or len(others) < 5 else 200)
        return Answer()

    hooks.answer = answer
    run(hook(key="data.key", attempts=1_000_000, first_pause=0.01, longest_pause=0.01))
    assert [d["n"] for d in hooks.data if d["key"] == "a"] == [0, 2, 4, 6, 8]
    assert [d["n"] for d in hooks.data[:5]] == [1, 3, 5, 7, 9]
    assert dead_letters(conn) == []
    # The same event is known by its id.
    tries = [r for r in hooks.requests if r.data["n"] == 0]
    assert len(tries) > 1
    assert len({r.headers["webhook-id"] for r in tries}) == 1


def test_requests_for_different_keys_are_under_way_at_once_but_not_more_than_allowed(
    put: Put, hook: Hook, hooks: HookServer
) -> None:
    put(*range(12))
    inside: list[int] = []
    most: list[int] = []

    def answer(request: Request) -> Answer:
        inside.append(request.data)
        # The first ones wait for each other, so that they must be here together.
        hooks.wait_until(lambda: len(hooks.requests) >= 3)
        most.append(len(inside))
        inside.remove(request.data)
        return Answer()

    hooks.answer = answer
    run(hook(key="id", parallel=3))
    assert sorted(hooks.data) == list(range(12))
    assert max(most) <= 3


def test_retry_after_is_obeyed_up_to_the_longest_pause(
    conn: Connection, put: Put, hook: Hook, hooks: HookServer
) -> None:
    put("x", "y")
    times: defaultdict[str, list[float]] = defaultdict(list)

    def answer(request: Request) -> Answer:
        times[request.data].append(time.monotonic())
        if len(times[request.data]) > 1:
            return Answer()
        return Answer(429, (("Retry-After", "1" if request.data == "x" else "86400"),))

    hooks.answer = answer
    run(hook(longest_pause=1.5))
    for data, at_least in (("x", 1.0), ("y", 1.5)):
        first, second = times[data]
        assert second - first >= at_least
    # Without a key all are in one order.
    assert hooks.data == ["x", "y"]


def test_a_busy_endpoint_costs_no_attempts(
    conn: Connection, put: Put, hook: Hook, hooks: HookServer
) -> None:
    put(429, 503)
    hooks.answer = lambda request: Answer(200 if len(hooks.requests) % 4 == 0 else request.data)
    run(hook(attempts=1))
    assert hooks.data == [429, 503]
    assert dead_letters(conn) == []


def test_an_endpoint_that_is_away_costs_no_attempts(
    conn: Connection, put: Put, hook: Hook, hooks: HookServer
) -> None:
    put("x")
    hooks.stop()
    tries = 0

    class Counts(Webhook):
        async def process_tracked_event(
            self, target: pgqpy.AsyncConnection, event: pgqpy.Event
        ) -> None:
            nonlocal tries
            tries += 1
            await super().process_tracked_event(target, event)

    each = hook(Counts, attempts=1, longest_pause=0.01)

    async def main() -> None:
        running = asyncio.create_task(each.run(until_empty=True))
        # Its attempts fail, and it continues trying.
        while tries < 3:
            assert not running.done()
            await asyncio.sleep(0.01)
        hooks.start()
        await asyncio.wait_for(running, PATIENCE)

    try:
        asyncio.run(main())
    finally:
        if not hooks.taken:
            hooks.start()
    assert hooks.data == ["x"]
    assert dead_letters(conn) == []


def test_what_is_not_taken_in_the_end_becomes_a_dead_letter_and_its_key_goes_on(
    conn: Connection, put: Put, hook: Hook, hooks: HookServer
) -> None:
    refusals = {
        1: (Answer(400, body="bad"), "refused: 400 Bad Request: bad"),
        2: (Answer(404), "refused 2 times: 404 Not Found"),
        3: (Answer(422), "refused: 422 Unprocessable Entity"),
        4: (Answer(500, body="oh\nno"), "refused 2 times: 500 Internal Server Error: oh no"),
        5: (Answer(500, body="x" * 100_000), "refused 2 times: 500 Internal Server Error: xxxx"),
    }
    put(0, *refusals, 6)
    hooks.answer = lambda request: refusals.get(request.data, (Answer(),))[0]
    run(hook(attempts=2))
    assert hooks.data == [0, 6]
    reasons = conn.execute("select dl_reason from pgq.dead_letter order by ev_data").fetchall()
    for (said,), (_, reason) in zip(reasons, refusals.values(), strict=True):
        assert said.startswith(reason)
        assert len(said) < 600


_DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("body", "key", "field", "text"),
    [
        ("data", "data.customer", "ev_data", f'{{"customer": {_DEEP}}}'),
        ("data", "primary_key", "ev_type", '{"op": "INSERT", "pkey": [{}]}'),
        ("envelope", "", "ev_data", _DEEP),
        ("cloudevents", "", "ev_data", _DEEP),
        ("cloudevents", "", "ev_extra4", f'{{"specversion": "1.0", "x": {_DEEP}}}'),
        ("cloudevents", "", "ev_extra4", '{"specversion": "1.0", "data_base64": 5}'),
        ("cloudevents", "", "ev_extra4", '{"specversion": "1.0", "source": null}'),
        ("cloudevents-binary", "", "ev_extra4", '{"specversion": "1.0", "ü": 5}'),
        ("cloudevents-binary", "", "ev_extra4", '{"specversion": "1.0", "datacontenttype": 5}'),
        ("cloudevents-binary", "", "ev_extra4", '{"specversion": "1.0", "datacontenttype": "ü"}'),
    ],
)
def test_no_event_stops_those_after_it(
    conn: Connection,
    queue: str,
    put: Put,
    hook: Hook,
    hooks: HookServer,
    body: str,
    key: str,
    field: str,
    text: str,
) -> None:
    event = {"ev_type": "t", "ev_data": "{}", "ev_extra4": None} | {field: text}
    conn.execute(
        "select pgq.insert_event(%s, %s, %s, 'public.item', null, null, %s)",
        [queue, *event.values()],
    )
    put("after")
    run(hook(body=body, key=key, attempts=1))
    # Events of different keys are sent side by side.
    assert any(b"after" in request.body for request in hooks.taken)
    assert len(hooks.taken) + len(dead_letters(conn)) == 2


def test_an_answer_is_not_decompressed(
    conn: Connection, put: Put, hook: Hook, hooks: HookServer
) -> None:
    put(1)
    bomb = gzip.compress(gzip.compress(bytes(100_000_000), 1))
    hooks.answer = lambda request: Answer(400, (("Content-Encoding", "gzip, gzip"),), bomb)
    tracemalloc.start()
    try:
        run(hook())
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()
    assert len(dead_letters(conn)) == 1
    assert hooks.requests[0].headers["accept-encoding"] == "identity"


def test_redirects_are_not_followed(
    conn: Connection, put: Put, hook: Hook, hooks: HookServer
) -> None:
    put(1)
    elsewhere = HookServer()
    try:
        hooks.answer = lambda request: Answer(307, (("Location", elsewhere.url),))
        run(hook(attempts=1, secrets=(SECRET,)))
        assert elsewhere.requests == []
    finally:
        elsewhere.close()
    assert dead_letters(conn) == ["refused 1 times: 307 Temporary Redirect"]


def test_an_endpoint_that_is_gone_ends_it_and_nothing_is_lost(
    conn: Connection, put: Put, hook: Hook, hooks: HookServer
) -> None:
    put(1, 2)
    hooks.answer = lambda request: Answer(410, body="moved out")
    each = hook()
    with pytest.raises(EndpointGone, match=r"the endpoint is gone \(410\): moved out"):
        # Not until empty: it would go on after any other error.
        asyncio.run(asyncio.wait_for(each.run(), PATIENCE))
    hooks.answer = lambda request: Answer()
    run(each)
    assert hooks.data == [1, 2]
    assert dead_letters(conn) == []


def test_an_answer_that_does_not_come_costs_an_attempt(
    conn: Connection, put: Put, hook: Hook, hooks: HookServer
) -> None:
    put(1, 2)

    def answer(request: Request) -> Answer:
        if request.data == 1:
            hooks.wait_until(lambda: 2 in hooks.data)
        return Answer()

    hooks.answer = answer
    each = hook(attempts=2, timeout=0.5)
    send = each.process_tracked_event

    async def patient(target: pgqpy.AsyncConnection, event: pgqpy.Event) -> None:
        if event.data == "2":
            # This answer comes, though perhaps not so soon.
            each._endpoint._timeout = PATIENCE
            each._endpoint._client.timeout = httpx.Timeout(PATIENCE)
        await send(target, event)

    each.process_tracked_event = patient  # type: ignore[method-assign]
    run(each)
    (reason,) = dead_letters(conn)
    assert reason.startswith("refused 2 times: ")
    assert 2 in hooks.data


def test_a_stop_leaves_what_waits_for_the_next_run(
    conn: Connection, put: Put, hook: Hook, hooks: HookServer
) -> None:
    put(*({"key": "ab"[n % 2], "n": n} for n in range(6)))
    hooks.answer = lambda request: Answer(500 if request.data["n"] == 2 else 200)
    each = hook(key="data.key", first_pause=3600.0, longest_pause=3600.0)

    async def main() -> None:
        running = asyncio.create_task(each.run())
        # It has failed once, and waits for an hour.
        await asyncio.to_thread(
            hooks.wait_until, lambda: len(hooks.requests) == 5 and len(hooks.taken) == 4
        )
        each.stop()
        await asyncio.wait_for(running, PATIENCE)

    asyncio.run(main())
    assert sorted(d["n"] for d in hooks.data) == [0, 1, 3, 5]
    hooks.answer = lambda request: Answer()
    run(each)
    # Sent events are remembered.
    assert sorted(d["n"] for d in hooks.data) == [0, 1, 2, 3, 4, 5]
    assert [d["n"] for d in hooks.data if d["key"] == "a"] == [0, 2, 4]


KILLS = 3
PARALLEL = 4


@pytest.mark.slow
def test_killed_it_loses_nothing_keeps_the_order_and_sends_only_what_was_under_way_twice(
    conn: Connection, put: Put, hooks: HookServer, kill: Kill
) -> None:
    count = 100
    put(*({"key": n % 7, "n": n} for n in range(count)))
    calls = itertools.count(1)

    def answer(request: Request) -> Answer:
        call = next(calls)
        time.sleep(0.005)
        return {
            3: Answer(500),
            5: Answer(503, (("Retry-After", "0"),)),
            8: Answer(None),
            9: Answer(None, taken=True),
        }.get(call % 17, Answer())

    hooks.answer = answer

    def taken(number: int) -> None:
        hooks.wait_until(lambda: len(hooks.taken) >= number)

    kill(
        "webhook",
        f'url = "{hooks.url}"\nkey = "data.key"\nparallel = {PARALLEL}\nfirst_pause = 0.01\n'
        'secrets = ["${HOOK_SECRET}"]\n',
        *(partial(taken, n * 20) for n in range(1, KILLS + 1)),
        env=os.environ | {"HOOK_SECRET": SECRET},
    )
    doubtful = next(calls) // 17 + 1
    assert {d["n"] for d in hooks.data} == set(range(count))
    assert len(hooks.data) <= count + KILLS * PARALLEL + doubtful
    assert dead_letters(conn) == []
    # In order, if one drops what one has already.
    for key in range(7):
        first = list(dict.fromkeys(d["n"] for d in hooks.data if d["key"] == key))
        assert first == sorted(first)
    assert len({r.headers["webhook-id"] for r in hooks.taken}) == count


def test_settings_that_make_no_sense_are_refused(hook: Hook) -> None:
    for wrong, said in (
        ({"url": "ftp://x/y"}, "url must be http"),
        ({"url": "partner.example"}, "url must be http"),
        ({"key": "customer"}, "key is 'customer'; it may be"),
        ({"secrets": ("x",)}, "secret"),
        ({"secrets": ("",)}, "secret"),
        ({"secrets": ("whsec_",)}, "secret"),
        ({"secrets": ()}, "there are no secrets.*unsigned"),
        ({"unsigned": False}, "there are no secrets.*unsigned"),
        ({"unsigned": True, "secrets": (SECRET,)}, "unsigned is true"),
        ({"parallel": 0}, "at least 1"),
        ({"first_pause": 10.0, "longest_pause": 1.0}, "between 0 and longest_pause"),
    ):
        with pytest.raises(ValueError, match=said):
            hook(**wrong)


def test_it_does_not_start_unsigned_unless_that_was_asked_for(
    cli: Cli,
    put: Put,
    hooks: HookServer,
    queue: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put({"id": 1})
    file = tmp_path / "hook.toml"
    settings = f'queue = "{queue}"\nurl = "{hooks.url}"\n'
    from_environment = 'secrets = ["${HOOK_SECRET}"]'
    for line, secret, said in (
        ("", SECRET, "there are no secrets"),
        ("secrets = []", SECRET, "there are no secrets"),
        (from_environment, None, "HOOK_SECRET, which is not set"),
        (from_environment, "", "HOOK_SECRET, which is empty"),
        (from_environment, " ", "a secret is no base64"),
    ):
        monkeypatch.delenv("HOOK_SECRET", raising=False)
        if secret is not None:
            monkeypatch.setenv("HOOK_SECRET", secret)
        file.write_text(settings + line)
        assert said in cli.fails("run", "webhook", str(file), "--until-empty", exit_code=2)
        assert hooks.requests == []
    file.write_text(settings + "unsigned = true")
    cli.ok("run", "webhook", str(file), "--until-empty")
    [request] = hooks.requests
    assert "webhook-signature" not in request.headers
