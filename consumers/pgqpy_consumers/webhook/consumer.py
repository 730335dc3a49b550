"""The webhook: a consumer that posts events to a URL."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar, Generic, Literal, TypeVar, Unpack
from urllib.parse import quote

import httpx

import pgqpy
from pgqpy.consumer import RunOptions
from pgqpy.consumer.tracked_async import Stopped
from pgqpy.retry import Backoff
from pgqpy_consumers._shared import identity
from pgqpy_consumers.settings import Configured, setting
from pgqpy_consumers.webhook._request import (
    Endpoint,
    EndpointGone,
    Refused,
    Signer,
    envelope,
    key_function,
)

logger = logging.getLogger("pgqpy")


# Long: the keys of the file.
class Webhook(Configured, pgqpy.AsyncTrackedConsumer):
    """Posts each event to a URL, signed; events of one key are sent in order.

    Requests follow the Standard Webhooks specification: `webhook-id` is the same each time
    an event is sent, so that receivers can drop duplicates; `webhook-timestamp` and
    `webhook-signature` prove the sender and the time.

    An event that is not accepted is retried, with growing pauses, and holds back only the later
    events of its key in the batch. After ``attempts`` attempts, or at once for permanent
    answers, it becomes a dead letter, and its key goes on. While the endpoint cannot be
    reached, or says that it is busy, events wait without using up attempts. None is lost; if
    the consumer is killed, at most the events under way are sent twice.
    """

    batch_size = 1_000
    window = 1_000
    """Events of a batch that may wait for others of their key before reading pauses."""
    _without: ClassVar = {"target_dsn": "what was sent is recorded in the queue's database"}

    queue: str = setting("The queue.")
    consumer: str = setting("The consumer's name: one for each endpoint.", default="webhook")
    url: str = setting("Where to.", example="https://partner.example/hooks/orders")
    secrets: tuple[str, ...] = setting(
        "Keys to sign with: whsec_ and 24 to 64 bytes in base64. While receivers change to a "
        "new one, both.",
        default=(),
        example=("${WEBHOOK_SECRET}",),
        secret=True,
        shown=True,
    )
    unsigned: bool = setting(
        "Send without signatures, instead of secrets: receivers cannot verify the sender.",
        default=False,
    )
    key_: str = setting(
        "Events with the same key are sent in order: primary_key (of captured rows), type, "
        "extra1 to extra4, data.FIELD of JSON; id for no order; empty: all are in one order.",
        default="",
        example="data.customer",
    )
    parallel: int = setting(
        "Requests at the same time, for different keys.", default=10, at_least=1
    )
    body_: Literal["envelope", "data", "cloudevents", "cloudevents-binary"] = setting(
        "The body of a request: an envelope of type, timestamp and data; the event's data as "
        "it is; or a CloudEvent, in structured or in binary content mode.",
        default="envelope",
    )
    source: str | None = setting(
        "The source of CloudEvents, for events that have none; without it, pgq: and the queue.",
        default=None,
        example="https://shop.example/orders",
    )
    timeout: float = setting("Seconds that a request may take.", default=20.0)
    attempts: int = setting(
        "The attempts before an event becomes a dead letter.", default=8, at_least=1
    )
    first_pause: float = setting(
        "Seconds before the second attempt; each later pause is twice as long.", default=1.0
    )
    longest_pause: float = setting(
        "The most seconds between two attempts, whatever Retry-After says.", default=300.0
    )
    permanent: tuple[int, ...] = setting(
        "Answers after which an event becomes a dead letter at once.",
        default=(400, 413, 415, 422),
    )
    event_types: tuple[str, ...] | None = setting(
        "Only events of these types.", default=None, example=("order.paid",)
    )
    ca_file: str | None = setting(
        "A file with certificates to trust, instead of the system's.",
        default=None,
        example="/etc/ssl/our_ca.pem",
    )
    headers: Mapping[str, str] = setting(
        "More headers.", default={}, example={"Authorization": "Bearer ${TOKEN}"}
    )

    _told_to_stop: asyncio.Event | None = None

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Raise ValueError if the URL, the key or a secret is none, or settings contradict."""
        url = httpx.URL(config.url)
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError("url must be http://... or https://...")
        key_function(config.key)
        Signer(config.secrets)
        if not config.secrets and not config.unsigned:
            raise ValueError(
                "there are no secrets, so receivers could not verify the sender: "
                "name one in secrets, or set unsigned to true"
            )
        if config.secrets and config.unsigned:
            raise ValueError("unsigned is true, and there are secrets")
        if config.timeout <= 0 or not 0 <= config.first_pause <= config.longest_pause:
            raise ValueError("timeout must be positive, first_pause between 0 and longest_pause")

    def key(self, event: pgqpy.Event) -> str:
        """Events with the same key are sent in order."""
        return key_function(self.key_)(event)

    def body(self, event: pgqpy.Event) -> bytes:
        """The request body for an event. Raises ValueError to make the event a dead letter."""
        if self.body_ == "data":
            return (event.data or "").encode()
        return envelope(event).encode()

    def stop(self) -> None:
        """Stop as every consumer does; requests under way are waited for."""
        super().stop()
        if self._told_to_stop is not None:
            self._told_to_stop.set()

    # --- implementation

    async def process_tracked_batch(
        self, target: pgqpy.AsyncConnection, batch: pgqpy.AsyncBatch
    ) -> None:
        """Send the events that are not sent yet; not to be overridden."""
        # Sent events are recorded on one connection, one statement at a time.
        self._batch, self._memory = batch, target
        await ByKey(self._send_once, window=self.window).run(self._keyed(batch))
        if self.stopping:
            # The batch stays open; its sent events are recorded.
            raise Stopped

    async def _keyed(self, batch: pgqpy.AsyncBatch) -> AsyncIterator[tuple[str, pgqpy.Event]]:
        async for event in self.read_events(batch):
            if self.stopping:
                return
            yield self.key(event), event

    async def _send_once(self, event: pgqpy.Event) -> None:
        """Send an event unless it was sent, and record it."""
        if self.stopping:
            return
        if await self.is_done(self._memory, self._batch, event):
            return
        try:
            await self._send(event)
        except pgqpy.DeadLetter as error:
            await self.fail_event(self._batch, event, error)

    async def _send(self, event: pgqpy.Event) -> None:
        """Send an event and record it, however long it takes, unless told to stop meanwhile. Raises
        DeadLetter, EndpointGone."""
        pauses = Backoff(self.first_pause, self.longest_pause)
        attempt = 0
        while True:
            try:
                # Held until it is recorded: limits how many are sent twice if this process dies.
                async with self._slots:
                    await self.process_tracked_event(self._memory, event)
                    await self.set_done(self._memory, self._batch, event)
                return
            except Refused as error:
                attempt += error.counts
                if error.status in self.permanent:
                    raise pgqpy.DeadLetter(f"refused: {error}") from error
                if attempt >= self.attempts:
                    raise pgqpy.DeadLetter(f"refused {attempt} times: {error}") from error
                pause = min(max(pauses.pause(), error.after), self.longest_pause)
                logger.warning(
                    "event %s was not accepted: %s; again in %.1f s",
                    event.id,
                    error,
                    pause,
                    extra={
                        "queue": self.queue,
                        "consumer": self.consumer,
                        "batch_id": self._batch.id,
                        "event_id": event.id,
                        "attempt": attempt,
                    },
                )
            if not await self._paused(pause):
                return

    async def process_tracked_event(
        self, target: pgqpy.AsyncConnection, event: pgqpy.Event
    ) -> None:
        """Send one request. Raises Refused, EndpointGone, DeadLetter."""
        content = {"content-type": "application/json"}
        try:
            if self.body_.startswith("cloudevents"):
                source = self.source or f"pgq:{quote(self.queue)}"
                binary = self.body_ == "cloudevents-binary"
                content, body = event.to_cloudevent_request(source, binary=binary)
            else:
                body = self.body(event)
        except (ValueError, RecursionError) as error:
            raise pgqpy.DeadLetter(f"no request can be made of it: {error}") from error
        message_id = f"msg_{identity(event, self.queue, self.consumer)}"
        headers = self._signer.headers(message_id, int(time.time()), body)
        await self._endpoint.post(body, {**content, **headers})

    async def _paused(self, seconds: float) -> bool:
        """Wait; False if told to stop."""
        assert self._told_to_stop is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._told_to_stop.wait()
        return not self.stopping

    async def on_error(self, error: Exception, batch: pgqpy.AsyncBatch | None) -> None:
        """Ends `run` when the endpoint is gone."""
        if isinstance(error, EndpointGone):
            raise error

    async def run(self, **options: Unpack[RunOptions]) -> None:
        """Run as every consumer does."""
        async with self._open_endpoint():
            await super().run(**options)

    async def run_once(self) -> bool:
        """Run once as every consumer does."""
        async with self._open_endpoint():
            return await super().run_once()

    @asynccontextmanager
    async def _open_endpoint(self) -> AsyncIterator[None]:
        self._told_to_stop = asyncio.Event()
        self._slots = asyncio.Semaphore(self.parallel)
        self._signer = Signer(self.secrets)
        self._endpoint = Endpoint(
            self.url,
            headers=self.headers,
            timeout=self.timeout,
            connections=self.parallel,
            ca_file=self.ca_file,
        )
        try:
            yield
        finally:
            await self._endpoint.close()


T = TypeVar("T")


class ByKey(Generic[T]):
    """Runs ``process`` for each item; at most ``window`` are waiting or being processed.

    A key whose item takes long delays only its own later items, until the window is full of
    them. The first error ends all.
    """

    def __init__(self, process: Callable[[T], Awaitable[None]], *, window: int) -> None:
        self._process = process
        self._room = asyncio.Semaphore(window)
        self._waiting: dict[str, deque[T]] = {}

    async def run(self, items: AsyncIterator[tuple[str, T]]) -> None:
        """Process all items. Raises the first error of ``process``, when the others have ended."""
        try:
            async with asyncio.TaskGroup() as group:
                async for key, item in items:
                    await self._room.acquire()
                    waiting = self._waiting.get(key)
                    if waiting is not None:
                        waiting.append(item)
                    else:
                        self._waiting[key] = deque([item])
                        group.create_task(self._run_key(key))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _run_key(self, key: str) -> None:
        waiting = self._waiting[key]
        while waiting:
            try:
                await self._process(waiting.popleft())
            finally:
                self._room.release()
        del self._waiting[key]
