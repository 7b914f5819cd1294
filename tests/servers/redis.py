"""Redis as packaged by Debian or Ubuntu."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

from tests.servers import wire
from tests.servers.base import Server

if TYPE_CHECKING:
    from collections.abc import Mapping


class Redis(Server):
    """``settings`` are configuration directives beyond the defaults.

    What was answered is on the disk: the append-only file is synced before every reply.
    """

    name = "redis"
    title = "Redis"
    apt = ("redis-server",)
    user = "redis"

    def __init__(self, settings: Mapping[str, str] | None = None, *, clock: bool = False) -> None:
        super().__init__(clock=clock)
        self.settings = dict(settings or {})

    def installed(self) -> bool:
        return shutil.which("redis-server") is not None

    def prepare(self) -> None:
        """Nothing: it makes its files itself."""

    def command(self) -> list[str]:
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.directory),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            **self.settings,
        }
        flags = [part for name, value in settings.items() for part in (f"--{name}", value)]
        return ["redis-server", *flags]

    def ping(self) -> None:
        # While it still reads its file, it answers with an error.
        if wire.redis(self.port, "PING") != ["PONG"]:
            raise ConnectionError("Redis is loading")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def version(self) -> str:
        (text,) = wire.redis(self.port, "INFO server")
        found = re.search(r"^redis_version:(\S+)", text, re.MULTILINE)
        return found[1] if found else "unknown"

    def wall_clock(self) -> float:
        seconds, microseconds = wire.redis(self.port, "TIME")
        return int(seconds) + int(microseconds) / 1_000_000
