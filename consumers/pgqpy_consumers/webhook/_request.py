"""The request for an event: its body, its signature, the key that orders requests; and its URL."""

from __future__ import annotations

import asyncio
import base64
import binascii
import email.utils
import hashlib
import hmac
import json
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from decimal import Decimal
from http import HTTPStatus
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx

from pgqpy import Event, PgqError
from pgqpy.formats import is_json

# --- the body


def envelope(event: Event) -> str:
    """Type, time and data of an event, as JSON. Raises ValueError if a row's format is unknown."""
    written = _written({"type": event.full_type, "timestamp": event.time.isoformat()})
    return f'{written[:-1]},"data":{_data(event)}}}'


def _data(event: Event) -> str:
    """The event's own JSON, unchanged: decoding would lose digits of numbers."""
    if event.data is None:
        return "null"
    if is_json(event.data):
        return event.data
    return _written(event.row() if event.operation else event.data)


def _written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- the key: events with the same key are sent in order

Key = Callable[[Event], str]

_FIELDS = ("id", "type", "primary_key", "extra1", "extra2", "extra3", "extra4")


def key_function(text: str) -> Key:
    """The function that computes the key a setting describes; see `Webhook`.

    Raises ValueError for an unknown setting. All events without the field have the same key:
    they stay in order.
    """
    if not text:
        return lambda event: ""
    if text == "primary_key":
        return _or_none(
            lambda event: f"{event.table} {_text(event.key)}" if event.operation else ""
        )
    if text in _FIELDS:
        return lambda event: str(getattr(event, text) or "")
    if re.fullmatch(r"data(\.[^.]+)+", text):
        path = text.split(".")[1:]
        return _or_none(lambda event: _text(_field(event, path)))
    raise ValueError(f"key is {text!r}; it may be {', '.join(_FIELDS)}, or data.FIELD")


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=_number)


def _number(value: Decimal) -> object:
    # Equal numbers are one key, however many zeros they are written with.
    if abs(value.adjusted()) > _LONGEST_NUMERIC:
        return str(value)  # All of its zeros would fill the memory.
    plain = f"{value:f}"
    if "." in plain:
        plain = plain.rstrip("0").rstrip(".")
    return plain if "." in plain or len(plain) > _LONGEST_INT else int(plain)


_LONGEST_INT = 4_300
#: The most digits that PostgreSQL has before the point; behind it are fewer.
_LONGEST_NUMERIC = 131_072


def _or_none(key: Key) -> Key:
    def tolerant(event: Event) -> str:
        try:
            return key(event)
        except (ValueError, KeyError, TypeError, RecursionError):
            return ""

    return tolerant


def _field(event: Event, path: list[str]) -> object:
    value = event.json()
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


# --- the signature by Standard Webhooks: "v1," and HMAC-SHA256 of "id.timestamp.body" in base64

PREFIX = "whsec_"


class Signer:
    """Signs with each of several secrets, so that a secret can be replaced while requests go on."""

    def __init__(self, secrets: Sequence[str]) -> None:
        """A secret is ``whsec_`` and 24 to 64 bytes in base64. Raises ValueError."""
        self._keys = [_secret_key(secret) for secret in secrets]

    def headers(self, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
        """The three headers; ``timestamp`` is in seconds since 1970."""
        signed = f"{message_id}.{timestamp}.".encode() + body
        signatures = [
            f"v1,{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"
            for key in self._keys
        ]
        headers = {"webhook-id": message_id, "webhook-timestamp": str(timestamp)}
        return headers | ({"webhook-signature": " ".join(signatures)} if signatures else {})


def _secret_key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        raise ValueError("a secret is no base64, such as whsec_MfKQ...") from None
    if not 24 <= len(key) <= 64:
        raise ValueError(f"a secret has {len(key)} bytes; it must have 24 to 64")
    return key


# --- the URL that receives requests, and the meaning of its answers

#: The most characters of an answer that a reason quotes.
QUOTED = 500

#: Answers by which the endpoint says "not now".
BUSY = frozenset({408, 425, 429, 502, 503, 504})


class EndpointGone(PgqError):
    """The endpoint answered 410: it accepts no requests any more."""

    default_hint = "Nothing is lost: correct the URL and start again, or unregister the consumer."


class Refused(Exception):
    """A request was not accepted.

    ``status`` is None if there was no answer. ``after`` is the number of seconds that the endpoint
    asked to wait. ``counts``: whether the event may be to blame; it is not if the endpoint
    cannot be reached, or says that it is busy.
    """

    def __init__(
        self, message: str, *, status: int | None = None, after: float = 0.0, counts: bool = True
    ) -> None:
        super().__init__(message)
        self.status = status
        self.after = after
        self.counts = counts


class Endpoint:
    """Sends requests over connections that are kept open. Redirects are not followed."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout: float,
        connections: int,
        ca_file: str | None = None,
    ) -> None:
        """``timeout`` is in seconds, for a whole request."""
        self._url = url
        self._timeout = timeout
        self._client = httpx.AsyncClient(
            # Nothing is decompressed: a few bytes could become gigabytes.
            headers={"accept-encoding": "identity", **headers},
            # Nor does an endpoint choose what later requests hold.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            timeout=timeout,
            limits=httpx.Limits(max_connections=connections),
            follow_redirects=False,
            verify=ssl.create_default_context(cafile=ca_file),
        )

    async def post(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a request. Raises Refused unless the answer is 2xx, EndpointGone if it is 410."""
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._client.stream(
                    "POST", self._url, content=body, headers=dict(headers)
                ) as answer,
            ):
                if answer.is_success:
                    return
                said = await _beginning(answer)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Refused(f"no connection: {error}", counts=False) from error
        except (httpx.HTTPError, TimeoutError) as error:
            what = str(error) or f"no answer in {self._timeout:g} s"
            raise Refused(f"{type(error).__name__}: {what}") from error
        status = answer.status_code
        if status == HTTPStatus.GONE:
            raise EndpointGone(f"the endpoint is gone (410): {said}")
        raise Refused(
            f"{status} {answer.reason_phrase}: {said}".rstrip(": "),
            status=status,
            after=retry_after(answer.headers.get("retry-after")),
            counts=status not in BUSY,
        )

    async def close(self) -> None:
        await self._client.aclose()


async def _beginning(answer: httpx.Response) -> str:
    """The beginning of the answer, on one line; an answer may be of any length."""
    said = b""
    async for piece in answer.aiter_raw():
        said += piece
        if len(said) >= QUOTED:
            break
    return " ".join(said[:QUOTED].decode("utf-8", "replace").split())


def retry_after(value: str | None) -> float:
    """The seconds that a Retry-After header asks for; 0 if it cannot be read."""
    if value is None:
        return 0.0
    if value.strip().isascii() and value.strip().isdigit():
        return float(value)
    try:
        at = email.utils.parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return 0.0
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return max(0.0, at.timestamp() - time.time())
