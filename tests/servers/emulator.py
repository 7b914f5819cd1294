"""Servers that stand for another: programs of this environment or of a package manager."""

from __future__ import annotations

import abc
import functools
from pathlib import Path
from typing import ClassVar

from tests.servers import spawn
from tests.servers.base import Label, Server


class Emulator(Server):
    """Run as nobody; as the present user where its program lies in a home that is closed."""

    label: ClassVar[Label] = "third-party emulator"
    user = "nobody"

    @abc.abstractmethod
    def program(self) -> list[str]:
        """The executable and the file that it runs."""

    @functools.cached_property
    def account(self) -> spawn.Account | None:
        files = (Path(part) for part in self.program() if part.startswith("/"))
        open_to_all = all(map(spawn.reachable, files))
        return spawn.account(self.user) if open_to_all else None
