"""The reader of one shard: claims it, waits for the shards before it, and runs its consumer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any

from pgqpy._runtime.acompat import AsyncWaker, Waker
from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.failure import soon
from pgqpy._runtime.io import PLAIN, AsyncIo
from pgqpy.connection_async import AsyncConnection
from pgqpy.consumer._batch import Stopped
from pgqpy.consumer._settings import Guard, WorkerSettings
from pgqpy.consumer.base_async import AsyncConsumer
from pgqpy.consumer.batch_async import AsyncBatch
from pgqpy.consumer.progress import session_name
from pgqpy.errors import PERMANENT, ConnectionFailed, InvalidShardMap, PgqError, StaleShardMap
from pgqpy.log import logger
from pgqpy.shards._map import Shard
from pgqpy.shards._share import CLAIM, FEWEST, LOCK, NAME, Share, Told, waits

#: Seconds between looks at what another process or another shard has to do first.
_LOOK = 0.5
#: Seconds for which a shard is left to other processes.
_REST = 2.0


class Reader(Told):
    """Reads one shard, until it is stopped, or drained."""

    def __init__(
        self,
        io: AsyncIo,
        shard: Shard,
        make: Callable[[Shard], Any],
        readers: Mapping[str, Reader],
        share: Share,
        options: dict[str, Any],
    ) -> None:
        """``make`` returns the consumer of a shard; ``readers`` are those of all shards of the
        newest map; ``options`` are those of the consumer's `run`."""
        super().__init__(shard, io.either(AsyncWaker, Waker)(), once=options["until_empty"])
        self._io = io
        self._make = make
        self._readers = readers
        self._share = share
        self._options = options
        #: Until then it is left to other processes.
        self._rest_until = 0.0
        self._losses = Backoff(0.1, 5.0)

    async def run(self) -> None:
        """Read until it is stopped or drained. Raises errors that waiting does not cure."""
        try:
            while not self._stopping:
                self._interrupted = False
                try:
                    if await self._read(self.shard):
                        break
                except Exception as error:
                    waits = self._draining or isinstance(error, ConnectionFailed)
                    if self._once or isinstance(error, PERMANENT) or not waits:
                        raise
                    await self._pause(error)
        except Exception as error:
            self.error = error
            if not self._once:
                raise
        finally:
            self.ended = True
            self._waker.close()

    async def _read(self, shard: Shard) -> bool:
        """Claim the shard and read it; True if there is nothing left to do."""
        draining = self._draining
        consumer = self._consumer = self._make(shard)
        async with self._io.block(await self._connect(shard)) as conn:
            try:
                if await self._ready(conn, shard, consumer):
                    logger.info("shard %s is read", shard.name, extra=_fields(shard))
                    self._losses.reset()
                    self._guard(conn, shard, consumer)
                    options = self._options | {"until_empty": draining}
                    await self._io.call(consumer.run, **options, handle_signals=False)
            finally:
                self._share.claimed.discard(shard.name)
        return draining and not self._interrupted

    async def _ready(self, conn: AsyncConnection, shard: Shard, consumer: AsyncConsumer) -> bool:
        """Wait until the shard may be read; False if that is not to be, or not now."""
        while not self._interrupted:
            if not await self._claim(conn, shard, consumer):
                if self._draining:
                    return False
            elif not await self._is_current(conn, shard, consumer):
                if self._once:
                    raise StaleShardMap(f"shard {shard.name!r} has got keys, which the map lacks")
                self._share.stale()
            elif await self._comes_next(shard):
                return not self._interrupted
            await self._io.call(self._waker.wait, _LOOK)
        return False

    async def _is_current(
        self, conn: AsyncConnection, shard: Shard, consumer: AsyncConsumer
    ) -> bool:
        """Whether the map is not older than the keys that the shard has got."""
        for name, gained in await self._io.fetch(conn, _GAINED, [consumer.queue]):
            if name != shard.name:
                raise InvalidShardMap(
                    f"the database of shard {shard.name!r} in the map is that of shard {name!r}",
                    hint="Correct its dsn in the wanted map, and run `pgqpy shards apply` again.",
                )
            if gained > shard.version:
                return False
        return True

    async def _comes_next(self, shard: Shard) -> bool:
        """Whether the consumer has finished the ticks of other shards that come first."""
        for name, tick in shard.after.items():
            other = self._readers.get(name)
            if other is None:
                return False  # a new map is on its way
            over = self._once and other.ended
            what = f"tick {tick} of shard {name!r}, after which shard {shard.name!r} comes"
            consumer = self._make(other.shard)
            names = consumer.queue, consumer.consumer
            try:
                async with self._io.block(await self._connect(other.shard)) as conn:
                    ((done,),) = await self._io.fetch(conn, _FINISHED, [*names, tick])
            except ConnectionFailed as error:
                raise ConnectionFailed(f"{what}: {error.message}", hint=error.hint) from error
            if not done:
                if over:
                    raise PgqError(f"{what}, is not finished, so that was not read")
                return False
        return True

    async def _connect(self, shard: Shard) -> AsyncConnection:
        options = {"autocommit": True, "prepare_threshold": 5}
        return await self._io.connect(PLAIN, shard.dsn, **options)

    # --- sharing with other processes

    async def _claim(self, conn: AsyncConnection, shard: Shard, consumer: AsyncConsumer) -> bool:
        """Whether no other process reads the shard; workers of a group share it anyway."""
        claimed = self._share.claimed
        if shard.name in claimed or isinstance(consumer, WorkerSettings):
            return True
        await self._io.call(self._waker.wait, self._share.turn())
        while (rest := self._rest_until - monotonic()) > 0 and not self._interrupted:
            await self._io.call(self._waker.wait, rest)
        names = f"{consumer.queue}\n{consumer.consumer}"
        ((mine,),) = await self._io.fetch(conn, CLAIM, [LOCK, names])
        name = session_name(consumer.consumer)
        if mine:
            claimed.add(shard.name)
        else:
            name = f"{waits(consumer.consumer)} {len(claimed)}"
        await self._io.fetch(conn, NAME, [name[:63]])
        return bool(mine)

    async def _has_too_many(
        self, conn: AsyncConnection, shard: Shard, consumer: AsyncConsumer
    ) -> bool:
        """Whether a process that waits for this shard should have it."""
        claimed = self._share.claimed
        if shard.name not in claimed or self._once or not self._share.may_look():
            return False
        waiting = f"^{waits(consumer.consumer)} ([0-9]{{1,4}})$"
        ((fewest,),) = await self._io.fetch(conn, FEWEST, [waiting])
        return fewest is not None and len(claimed) - fewest >= 2

    def _guard(self, claim: AsyncConnection, shard: Shard, consumer: AsyncConsumer) -> None:
        """Let the consumer's loop look before each batch, and its log name the shard."""
        consumer._shard_guard = Guard(
            partial(self._wants_batch, shard, consumer),
            partial(self._check_current, claim, shard, consumer),
        )
        fields = consumer.log_fields

        def log_fields(batch: AsyncBatch | None = None) -> dict[str, Any]:
            return fields(batch) | _fields(shard)

        consumer.log_fields = log_fields  # type: ignore[method-assign]

    async def _wants_batch(
        self, shard: Shard, consumer: AsyncConsumer, conn: AsyncConnection
    ) -> bool:
        if await self._has_too_many(conn, shard, consumer):
            self._rest_until = monotonic() + _REST
            self._interrupt()
            return False
        return True

    async def _check_current(
        self, claim: AsyncConnection, shard: Shard, consumer: AsyncConsumer
    ) -> None:
        """Raise Stopped if the map is too old, or the claim lost with its connection."""
        # After the batch was opened: keys that it has are known to the shard's database.
        try:
            current = await self._is_current(claim, shard, consumer)
        except PgqError as error:
            if isinstance(error, PERMANENT):
                raise
            current = False
        if not current:
            self._interrupt()
            raise Stopped

    async def _pause(self, error: Exception) -> None:
        pause = self._losses.pause(error)
        logger.log(
            self._losses.level,
            "shard %s: %s; again %s",
            self.shard.name,
            str(error).partition("\n")[0],
            soon(pause),
            extra=_fields(self.shard) | {"pause": pause},
        )
        await self._io.call(self._waker.wait, pause)


def _fields(shard: Shard) -> dict[str, Any]:
    return {"shard": shard.name}


_GAINED = b"select shard_name, shard_gained from pgq.get_shard_info(%s)"
_FINISHED = b"select pgq.has_finished(%s, %s, %s)"
