"""What a network does to the connections of a proxy; read and changed in the proxy's loop only."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field


@dataclass(slots=True)
class Trap:
    """A fault that strikes once: in the reply to the next request that contains ``request``.

    ``after`` bytes of the reply pass. Then both sides are reset, or, with ``silent``, the
    connection stays open and nothing passes any more.
    """

    after: int
    request: bytes
    silent: bool


@dataclass(slots=True)
class Weather:
    """The faults in force, and what passed."""

    delay: float = 0.0
    drops: bool = False
    resets: bool = False
    flowing: asyncio.Event = field(default_factory=asyncio.Event)
    trap: Trap | None = None
    struck: threading.Event = field(default_factory=threading.Event)
    accepted: int = 0
    sent: int = 0
    received: int = 0
    lost: int = 0

    def clear(self) -> None:
        """Fine again; a trap that has not struck is taken away."""
        self.delay, self.drops, self.resets, self.trap = 0.0, False, False, None
        self.flowing.set()

    def strike(self) -> None:
        self.trap = None
        self.struck.set()
