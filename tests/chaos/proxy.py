"""A TCP proxy between clients and a server, which does what a bad network does.

Switched at run time from any thread. Every method that sets a fault may also be the head of a
``with`` block, at whose end the network is well again.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, Self, TypeVar

from tests.chaos.link import Link, Stream, reset
from tests.chaos.weather import Trap, Weather
from tests.servers import ports

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

_HOST: Final = "127.0.0.1"
_TIMEOUT: Final = 10.0

T = TypeVar("T")


class Proxy:
    """Forwards a port of its own to ``target``, a port of this machine.

    ``with`` starts it and ends it. Bytes are counted when they pass.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self._reservation = ports.reserve()
        self.port = ports.number(self._reservation)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-proxy")
        self._weather = Weather()
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self.heal()
        return self

    def __exit__(self, *_error: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_TIMEOUT)
        self._loop.close()
        self._reservation.close()

    def through(self, address: str) -> str:
        """A URL or connection string of the server, changed to lead through the proxy."""
        return address.replace(f"{_HOST}:{self.target}", f"{_HOST}:{self.port}")

    # Faults that last

    def heal(self) -> None:
        """End every fault. Held bytes arrive; a connection that has lost some is reset."""
        self._run(self._heal())

    def delay(self, seconds: float) -> AbstractContextManager[None]:
        """Bytes arrive later, each way by ``seconds``, at most by twice that in a stream."""
        return self._set(lambda weather: setattr(weather, "delay", seconds))

    def freeze(self) -> AbstractContextManager[None]:
        """Connections stay open; bytes are held, in both directions, and arrive in the end."""
        return self._set(lambda weather: weather.flowing.clear())

    def blackhole(self) -> AbstractContextManager[None]:
        """Connections stay open and new ones are accepted, but every byte is lost."""
        return self._set(lambda weather: setattr(weather, "drops", True))

    def reset_new(self) -> AbstractContextManager[None]:
        """New connections are accepted and reset; the living are left alone."""
        return self._set(lambda weather: setattr(weather, "resets", True))

    def refuse(self) -> AbstractContextManager[None]:
        """New connections are refused; the living are left alone."""
        self._run(self._refuse())
        return self._healing()

    def down(self) -> AbstractContextManager[None]:
        """As when the server ends in an orderly way: no connection is left and none is made."""
        self._run(self._refuse())
        self.cut(orderly=True)
        return self._healing()

    # Faults of a moment

    def cut(self, *, orderly: bool = False, server: bool = True) -> int:
        """Reset every living connection, or close it with FIN; returns how many there were.

        With ``server=False`` the server is not told: its sides stay open until ``heal``.
        """
        return self._run(self._cut(orderly=orderly, server=server))

    def truncate_reply(self, after: int = 0, *, request: bytes = b"") -> None:
        """Reset the connection after so many bytes of the reply to the next request.

        With 0 bytes: it was applied, but the answer was lost. With ``request``, the next one that
        contains these bytes (within its last KiB, if it comes in pieces) on whatever connection.
        """
        self._arm(Trap(after, request, silent=False))

    def drop_reply(self, *, request: bytes = b"") -> None:
        """The reply to the next such request is lost, and its connection open and silent."""
        self._arm(Trap(0, request, silent=True))

    def wait_struck(self, timeout: float = _TIMEOUT) -> bool:
        """Whether the last ``truncate_reply`` or ``drop_reply`` strikes within the seconds."""
        return self._weather.struck.wait(timeout)

    # What passed

    @property
    def accepted(self) -> int:
        """Connections that were made, since the start."""
        return self._weather.accepted

    @property
    def live(self) -> int:
        """Connections that are open."""
        return len(self._links)

    @property
    def sent(self) -> int:
        """Bytes that passed to the server."""
        return self._weather.sent

    @property
    def received(self) -> int:
        """Bytes that passed to clients."""
        return self._weather.received

    @property
    def lost(self) -> int:
        """Bytes that were thrown away."""
        return self._weather.lost

    # In the loop's thread

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            connection, _ = listener.accept()
            self._weather.accepted += 1
            task = self._loop.create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        near = await asyncio.open_connection(sock=connection)
        try:
            if not self._weather.resets:
                await self._link(near, await asyncio.open_connection(_HOST, self.target))
        except OSError:
            pass
        finally:
            reset(near[1])

    async def _link(self, near: Stream, far: Stream) -> None:
        link = Link(self._weather, near, far)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)

    async def _heal(self) -> None:
        self._weather.clear()
        for link in [link for link in self._links if link.lost]:
            link.end()
        if self._listener is None:
            self._listener = socket.create_server((_HOST, self.port))
            self._listener.setblocking(False)
            self._loop.add_reader(self._listener, self._accept, self._listener)

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    async def _cut(self, *, orderly: bool, server: bool) -> int:
        links = list(self._links)
        for link in links:
            link.end(orderly=orderly) if server else link.cut_off()
        return len(links)

    async def _close(self) -> None:
        await self._refuse()
        await asyncio.sleep(0)  # a task that has not begun could not end its connection
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # From other threads

    def _set(self, change: Callable[[Weather], None]) -> AbstractContextManager[None]:
        async def apply() -> None:
            change(self._weather)

        self._run(apply())
        return self._healing()

    def _arm(self, trap: Trap) -> None:
        async def arm() -> None:
            for link in self._links:
                link.forget()
            self._weather.trap = trap

        self._weather.struck.clear()
        self._run(arm())

    def _healing(self) -> AbstractContextManager[None]:
        return Healing(self.heal)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_TIMEOUT)


class Healing(AbstractContextManager[None]):
    """What the end of a ``with`` block does; without one it does nothing."""

    def __init__(self, heal: Callable[[], None]) -> None:
        self._heal = heal

    def __exit__(self, *_error: object) -> None:
        self._heal()
