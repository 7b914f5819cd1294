"""Chromium: a program whose presence is checked here and which Playwright starts."""

from __future__ import annotations

import shutil
import subprocess
from typing import Self

from tests.servers.base import Server, ServerMissing


class Chromium(Server):
    """``path`` is what Playwright wants as ``executable_path``; ``start`` only checks presence."""

    name = "chromium"
    title = "Chromium"
    apt = ("chromium", "fonts-liberation")
    user = "nobody"

    @property
    def path(self) -> str | None:
        return shutil.which("chromium") or shutil.which("chromium-browser")

    def installed(self) -> bool:
        return self.path is not None

    def start(self) -> Self:
        if reason := self.missing():
            raise ServerMissing(reason)
        return self

    def prepare(self) -> None:
        """Nothing: it keeps no data here."""

    def command(self) -> list[str]:
        return [self.path or "chromium"]

    def ping(self) -> None:
        """Nothing: it answers nobody until Playwright starts it."""

    @property
    def url(self) -> str:
        return f"file://{self.path}"

    @property
    def version(self) -> str:
        argv = [*self.command(), "--version"]
        done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30)
        return done.stdout.strip().removeprefix("Chromium ")
