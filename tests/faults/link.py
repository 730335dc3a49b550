"""A link to a server that can be slow, silent, or cut."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeAlias

State: TypeAlias = Literal["up", "slow", "silent", "cut"]

#: Seconds by which a slow link delays each piece.
DELAY = 0.02


class Link:
    """Listens on ``port`` of 127.0.0.1 and passes all on to a socket, as its ``state`` says.

    A silent link keeps what is sent; when it changes, its connections are cut.
    """

    def __init__(self, to: Path) -> None:
        self._to = to
        self._state: State = "up"
        self._open: set[asyncio.StreamWriter] = set()
        self._ready = threading.Event()
        self.port = 0
        self._changed: asyncio.Event

    def turn(self, state: State) -> None:
        """Change the state."""
        self._loop.call_soon_threadsafe(self._turn, state)

    def _turn(self, state: State) -> None:
        before, self._state = self._state, state
        if state == "cut" or before == "silent":
            for writer in self._open:
                writer.transport.abort()
        self._changed.set()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Serve until `end`."""
        self._loop = asyncio.get_running_loop()
        self._changed, self._ended = asyncio.Event(), asyncio.Event()
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            self._ready.set()
            await self._ended.wait()
            self._turn("cut")

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            if self._state != "cut":
                there, back = await asyncio.open_unix_connection(self._to)
                self._open.add(back)
                await asyncio.wait(
                    [
                        asyncio.create_task(self._pass(reader, back)),
                        asyncio.create_task(self._pass(there, writer)),
                    ],
                    return_when=asyncio.FIRST_COMPLETED,
                )
                back.transport.abort()
                self._open.discard(back)
        writer.transport.abort()
        self._open.discard(writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(65536):
                if self._state == "slow":
                    await asyncio.sleep(DELAY)
                while self._state == "silent":
                    await self._changed.wait()
                writer.write(piece)
                await writer.drain()


@contextmanager
def link(to: Path) -> Iterator[Link]:
    """A link for the block."""
    made = Link(to)
    thread = threading.Thread(target=lambda: asyncio.run(made.run()))
    thread.start()
    made._ready.wait()
    try:
        yield made
    finally:
        made.end()
        thread.join()
