"""The URL that receives the requests, and the meaning of its answers."""

from __future__ import annotations

import asyncio
import email.utils
import ssl
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus

import httpx

from pgqpy import PgqError

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
        self,
        message: str,
        *,
        status: int | None = None,
        after: float = 0.0,
        counts: bool = True,
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
            headers=dict(headers),
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
    async for piece in answer.aiter_bytes():
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
    except ValueError:
        return 0.0
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return max(0.0, at.timestamp() - datetime.fromtimestamp(time.time(), UTC).timestamp())
