"""One client's connection through the proxy."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.weather import Trap, Weather

_CHUNK: Final = 65536
_TAIL: Final = 1024
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Link:
    """The client's stream and ours to the server.

    A link that has lost a byte lets nothing pass any more: no network gives a stream with a hole.
    Then, and while the weather withholds bytes, neither side learns of the other's end either.
    """

    def __init__(self, weather: Weather, near: Stream, far: Stream) -> None:
        self.weather = weather
        self.near, self.far = near, far
        self.lost = False
        self.trapped: Trap | None = None
        self._tail = b""
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Forward both ways until both sides have ended, or ``end``."""
        both = asyncio.gather(
            self._forward(self.near[0], self.far[1], self._request),
            self._forward(self.far[0], self.near[1], self._reply),
        )
        both.add_done_callback(lambda _: self._ended.set())
        try:
            await self._ended.wait()
            self.end(orderly=True)
            await self._flushed()
        finally:
            self.end()
            both.cancel()
            with suppress(asyncio.CancelledError):
                await both

    def end(self, *, orderly: bool = False) -> None:
        """Close both sides: with RST, or with FIN after what was written."""
        for _, writer in (self.near, self.far):
            if not writer.is_closing():
                writer.close() if orderly else reset(writer)
            elif not orderly:
                writer.transport.abort()
        self._ended.set()

    def cut_off(self) -> None:
        """Reset the client's side; the server's stays open, and silent."""
        self.lost = True
        reset(self.near[1])

    def forget(self) -> None:
        """What was asked before is no part of a request that is watched for."""
        self._tail = b""

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        relay: Callable[[bytes], bytes],
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                if await self._may_pass():
                    writer.write(relay(data))
                    await writer.drain()
                else:
                    self.weather.lost += len(data)
        if not await self._may_pass():
            await self._ended.wait()
        elif reader.exception():
            self.end()
        else:
            with suppress(OSError):
                writer.write_eof()

    async def _flushed(self) -> None:
        for _, writer in (self.near, self.far):
            with suppress(OSError):
                await writer.wait_closed()

    async def _may_pass(self) -> bool:
        if self.weather.delay:
            await asyncio.sleep(self.weather.delay)
        await self.weather.flowing.wait()
        self.lost = self.lost or self.weather.drops
        return not self.lost

    def _request(self, data: bytes) -> bytes:
        self.weather.sent += len(data)
        seen, self._tail = self._tail + data, (self._tail + data)[-_TAIL:]
        trap = self.weather.trap
        if trap and trap.request in seen:
            self.trapped = trap
        return data

    def _reply(self, data: bytes) -> bytes:
        trap = self.weather.trap
        if trap and trap is self.trapped:
            data = self._spring(trap, data)
        self.weather.received += len(data)
        return data

    def _spring(self, trap: Trap, data: bytes) -> bytes:
        passing = data[: trap.after]
        trap.after -= len(passing)
        if trap.after == 0:
            self.weather.lost += len(data) - len(passing)
            self.lost = True
            self.weather.strike()
            if not trap.silent:
                asyncio.get_running_loop().call_soon(self.end)
        return passing


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST at once; what was not sent yet is thrown away."""
    connection: socket.socket | None = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
