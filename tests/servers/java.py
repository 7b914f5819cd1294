"""Servers that are a jar, found by an environment variable or where its maker puts it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tests.servers import wire
from tests.servers.emulator import Emulator

if TYPE_CHECKING:
    from collections.abc import Iterable


class JavaServer(Emulator):
    """``variable`` names the environment variable that gives the jar; ``hint`` how to get one."""

    label = "vendor emulator"
    apt = ("default-jre-headless",)
    variable: ClassVar[str]
    hint: ClassVar[str]

    def places(self) -> Iterable[Path]:
        """Where the jar may lie when the variable is not set."""
        return ()

    @property
    def jar(self) -> Path | None:
        """The jar of the variable, or the first that is found; None when there is none."""
        given = os.environ.get(self.variable)
        candidates = [Path(given)] if given else self.places()
        return next((path.resolve() for path in candidates if path.is_file()), None)

    def installed(self) -> bool:
        return self.jar is not None and shutil.which("java") is not None

    def missing(self) -> str | None:
        """One sentence: first the jar is needed, which no package of Debian brings."""
        if self.jar is None:
            return f"{self.title} is not installed: {self.hint}."
        return super().missing()

    def program(self) -> list[str]:
        return [shutil.which("java") or "java", str(self.jar)]

    def prepare(self) -> None:
        """Nothing: it keeps its data in memory."""

    def ping(self) -> None:
        wire.http(self.port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"
