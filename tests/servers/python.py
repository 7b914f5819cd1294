"""Servers that are Python programs of this environment."""

from __future__ import annotations

import sys
from importlib.metadata import version
from importlib.util import find_spec
from typing import ClassVar

from tests.servers.emulator import Emulator


class PythonServer(Emulator):
    """``distribution`` is what brings it, ``module`` what that is imported as."""

    apt = ()
    distribution: ClassVar[str]
    module: ClassVar[str]

    def installed(self) -> bool:
        return find_spec(self.module) is not None

    def missing(self) -> str | None:
        if self.installed():
            return None
        line = "pip install --group test"
        return f"{self.title} is not installed: run `{line}` ({self.distribution} is in it)."

    def program(self) -> list[str]:
        return [sys.executable]

    def prepare(self) -> None:
        """Nothing: it makes its files itself."""

    @property
    def version(self) -> str:
        return version(self.distribution)
