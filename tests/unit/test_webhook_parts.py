"""The parts of a webhook: signatures, keys, lanes, Retry-After."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from pgqpy import Event
from pgqpy_consumers.webhook._request import Signer, envelope, key_function, retry_after
from pgqpy_consumers.webhook.consumer import ByKey


def event(type_: str = "t", data: str | None = None, extra1: str | None = None) -> Event:
    return Event(7, datetime(2026, 1, 1, tzinfo=UTC), 1, 0, type_, data, extra1)


def test_the_signature_is_that_of_the_specifications_own_example() -> None:
    signer = Signer(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])
    headers = signer.headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_all_secrets_sign_and_without_one_nothing_does() -> None:
    first, second = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
    both = Signer([first, f"whsec_{second}"]).headers("m", 1, b"x")["webhook-signature"]
    alone = [Signer([each]).headers("m", 1, b"x")["webhook-signature"] for each in (first, second)]
    assert both.split(" ") == alone
    assert "webhook-signature" not in Signer([]).headers("m", 1, b"x")


def test_a_secret_that_is_none_is_refused_without_being_quoted() -> None:
    short = base64.b64encode(b"short").decode()
    for secret, said in (("no base64!", "no base64"), (short, "has 5 bytes")):
        with pytest.raises(ValueError, match=said) as raised:
            Signer([secret])
        assert secret not in str(raised.value)


@pytest.mark.parametrize(
    ("data", "sent"),
    [
        (None, "null"),
        ('{"n": 1.10, "big": 12345678901234567890.123, "é": [null]}', None),
        ("1e400", None),
        ("NaN", '"NaN"'),
        ('{"a": -Infinity}', '"{\\"a\\": -Infinity}"'),
        ("☃ no JSON", '"☃ no JSON"'),
        ("", '""'),
    ],
)
def test_the_envelope_has_the_data_to_the_letter_if_it_is_json(
    data: str | None, sent: str | None
) -> None:
    said = envelope(event("made", data))
    assert said.startswith('{"type":"made","timestamp":"2026-01-01T00:00:00+00:00","data":')
    assert said.partition('"data":')[2] == f"{data if sent is None else sent}}}"
    json.loads(said)


def test_the_envelope_of_a_captured_row_has_the_row_in_whatever_format() -> None:
    of_json = event('{"op":"UPDATE","table":["s","t"],"pkey":["id"]}', '{"id":1,"p":1.50}', "s.t")
    assert envelope(of_json).startswith('{"type":"s.t.update",')
    assert envelope(of_json).endswith('"data":{"id":1,"p":1.50}}')
    assert envelope(event("I:id", "id=1&p=1.50&n", "s.t")).endswith(
        '"data":{"id":"1","p":"1.50","n":null}}'
    )


KEYS = {
    "": "",
    "id": "7",
    "type": "t",
    "extra1": "shop",
    "extra2": "",
    "data.customer": '"ann"',
    "data.address.zip": "[1]",
    "data.none.at.all": "null",
    "primary_key": "",
}


def test_the_key_is_a_field_of_the_event_or_of_its_data() -> None:
    made = event(data='{"customer": "ann", "address": {"zip": [1]}}', extra1="shop")
    assert {text: key_function(text)(made) for text in KEYS} == KEYS
    # Data that is no JSON has the key of all such.
    assert key_function("data.customer")(event(data="no json")) == ""
    for text in ("extra5", "data", "data.", "data..x", "customer"):
        with pytest.raises(ValueError, match="it may be id, type"):
            key_function(text)


def test_the_key_of_a_captured_row_is_its_tables_and_its_primary_key() -> None:
    kind = '{"op":"INSERT","table":["public","item"],"pkey":["id"]}'
    made = event(kind, data='{"id":1,"note":"x"}', extra1="public.item")
    assert key_function("primary_key")(made) == 'public.item {"id": 1}'


def test_equal_numbers_of_captured_rows_are_one_key() -> None:
    def keys(number: str) -> list[str]:
        kind = '{"op":"INSERT","table":["public","item"],"pkey":["price"]}'
        made = event(kind, data=f'{{"price": {number}}}', extra1="public.item")
        return [key_function(name)(made) for name in ("primary_key", "data.price")]

    assert keys("12.5") == keys("12.50") == keys("0.125e2") != keys("12.51")
    assert keys("12") == keys("12.00") == keys("12.0") != keys("-12")
    assert keys("1e999999999999") != keys("1e-999999999999")
    assert keys("1" * 5000) == keys(f"{'1' * 5000}.0") != keys("1" * 5001)


def test_retry_after_is_seconds_or_a_date() -> None:
    assert retry_after("120") == 120
    later = format_datetime(datetime.fromtimestamp(time.time() + 100, UTC), usegmt=True)
    assert 90 < retry_after(later) <= 100
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert retry_after("soon") == retry_after(None) == retry_after("²") == 0
    assert retry_after("Wed, 21 Oct 2015 07:28:00 +99999999999999") == 0


async def _items(*items: tuple[str, int]) -> AsyncIterator[tuple[str, int]]:
    for item in items:
        yield item


def test_lanes_keep_the_order_of_a_key_and_let_others_pass() -> None:
    async def main() -> list[int]:
        done: list[int] = []
        gate = asyncio.Event()

        async def process(item: int) -> None:
            if item == 1:
                await gate.wait()
            if item == 5:
                gate.set()
            done.append(item)

        lanes = ByKey(process, window=10)
        await lanes.run(_items(("a", 1), ("b", 2), ("a", 3), ("b", 4), ("c", 5)))
        return done

    done = asyncio.run(main())
    assert sorted(done) == [1, 2, 3, 4, 5]
    assert done.index(1) > done.index(5)
    assert done.index(3) > done.index(1)
    assert done.index(4) > done.index(2)


def test_a_full_window_stops_the_reading() -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        gate = asyncio.Event()

        async def items() -> AsyncIterator[tuple[str, int]]:
            for number in range(10):
                seen.append(f"read {number}")
                yield "same", number

        async def process(item: int) -> None:
            if item == 0:
                # As far as it ever gets.
                for _ in range(100):
                    await asyncio.sleep(0)
                seen.append("first done")
            gate.set()

        await ByKey(process, window=3).run(items())
        return seen

    seen = asyncio.run(main())
    assert seen.index("first done") == 4, seen
    assert len(seen) == 11


def test_the_first_error_ends_all_lanes() -> None:
    async def main() -> None:
        async def process(item: int) -> None:
            if item == 1:
                raise RuntimeError("one")
            await asyncio.Event().wait()

        await ByKey(process, window=10).run(_items(("a", 0), ("b", 1), ("a", 2)))

    with pytest.raises(RuntimeError, match="one"):
        asyncio.run(main())
