"""Spin, the model checker, and the C compiler that its verifiers need: programs, not servers."""

from __future__ import annotations

import shutil
import subprocess
from typing import Self

from tests.servers.base import Server, ServerMissing


class Spin(Server):
    """``start`` only checks that both programs are there."""

    name = "spin"
    title = "Spin"
    apt = ("spin", "gcc", "libc6-dev")
    user = "nobody"

    def installed(self) -> bool:
        return all(shutil.which(program) for program in ("spin", "gcc"))

    def start(self) -> Self:
        if reason := self.missing():
            raise ServerMissing(reason)
        return self

    def prepare(self) -> None:
        """Nothing: it keeps no data here."""

    def command(self) -> list[str]:
        return [shutil.which("spin") or "spin"]

    def ping(self) -> None:
        """Nothing: it answers nobody."""

    @property
    def url(self) -> str:
        return f"file://{self.command()[0]}"

    @property
    def version(self) -> str:
        argv = [*self.command(), "-V"]
        done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30)
        return done.stdout.split()[2]
