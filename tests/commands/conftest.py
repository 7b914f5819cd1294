"""Commands whose reader goes away."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    RunUnread = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_unread(database_urls: Callable[[], dict[str, str]]) -> RunUnread:
    """A function that runs manage.py with its output in a pipe that nobody reads: ``| head -0``."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        reading, writing = os.pipe()
        os.close(reading)
        try:
            return subprocess.run(
                [sys.executable, str(ROOT / "manage.py"), *arguments],
                env={**os.environ, **database_urls(), **environment},
                stdout=writing,
                stderr=subprocess.PIPE,
                cwd=ROOT,
                text=True,
                timeout=60,
                check=False,
            )
        finally:
            os.close(writing)

    return run
