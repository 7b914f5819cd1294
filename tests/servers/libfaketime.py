"""libfaketime: a library whose presence is checked here and which ``clock=True`` loads."""

from __future__ import annotations

import subprocess
from typing import Self

from tests.servers import clock
from tests.servers.base import Server, ServerMissing


class Libfaketime(Server):
    """``start`` only checks presence."""

    name = "libfaketime"
    title = "libfaketime"
    apt = clock.PACKAGES
    user = "nobody"

    def installed(self) -> bool:
        return clock.installed()

    def start(self) -> Self:
        if reason := self.missing():
            raise ServerMissing(reason)
        return self

    def prepare(self) -> None:
        """Nothing: it keeps no data."""

    def command(self) -> list[str]:
        return []

    def ping(self) -> None:
        """Nothing: it answers nobody."""

    @property
    def url(self) -> str:
        return f"file://{clock.library()}"

    @property
    def version(self) -> str:
        argv = ["dpkg-query", "--show", "--showformat=${Version}", "libfaketime"]
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout
