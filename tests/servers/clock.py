"""The wall clock of one server, moved while it runs by Debian's libfaketime.

The monotonic clock is left alone, as when a machine's clock is set by hand or stepped by NTP.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.servers import cache, spawn

if TYPE_CHECKING:
    from collections.abc import Callable

# The variant for threads: it also turns a wait until a moment of the moved clock into a wait
# until the right moment.
_NAME: Final = "faketime/libfaketimeMT.so.1"
_SHARED: Final = Path("/dev/shm")
_FOLLOW_TIMEOUT: Final = 10.0
# Some servers tell the time in whole seconds, and a second late.
_TOLERANCE: Final = 2.5
PACKAGES: Final = ("libfaketime", "gcc", "libc6-dev")
_WAITS: Final = Path(__file__).with_name("unfaked.c")
_VARIABLES: Final = {
    "FAKETIME_NO_CACHE": "1",
    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    # Debian's build sets it for old versions of glibc; here every timed wait would return at once.
    "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    "NO_FAKE_STAT": "1",
}


class Clock:
    """How far one server's wall clock is from the machine's, written to a file that it reads."""

    def __init__(self) -> None:
        self.offset = 0.0
        self._file: Path | None = None

    def missing(self) -> str | None:
        """One sentence with the line that installs libfaketime; None when it is installed."""
        if installed():
            return None
        line = f"apt-get install --yes --no-install-recommends {' '.join(PACKAGES)}"
        return f"libfaketime, or the compiler for its correction, is not installed: run `{line}`."

    def prefix(self, directory: Path, account: spawn.Account | None) -> list[str]:
        """What stands before the server's command, so that it alone loads the library."""
        self._file = directory / "clock"
        self._write()
        spawn.give(self._file, account)
        variables = {
            # libc before every other allocator, which may ask for the time while it initialises.
            "LD_PRELOAD": f"{_correction()} {library()} libc.so.6",
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            **_VARIABLES,
        }
        return ["env", *(f"{name}={value}" for name, value in variables.items())]

    def shift(self, seconds: float) -> None:
        """Be ahead of the machine's clock by ``seconds``, or behind it by a negative number."""
        self.offset = seconds
        if self._file:
            self._write()

    def followed_by(self, now: Callable[[], float]) -> bool:
        """Whether ``now`` tells the moved time, waiting for it for a while."""
        deadline = time.monotonic() + _FOLLOW_TIMEOUT
        while abs(now() - time.time() - self.offset) > _TOLERANCE:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def forget(self, pid: int) -> None:
        """Remove what the library of a killed process leaves in shared memory."""
        for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
            with suppress(FileNotFoundError):
                (_SHARED / name).unlink()

    def _write(self) -> None:
        assert self._file is not None
        # In one write to the same file: a reader must never find it absent or empty.
        with self._file.open("r+" if self._file.exists() else "w") as file:
            file.write(f"{self.offset:+020.6f}\n")


def installed() -> bool:
    return library() is not None and shutil.which("gcc") is not None


def library() -> Path | None:
    """The file to load; None where the package is not installed."""
    return next(iter(sorted(Path("/usr/lib").glob(f"*/{_NAME}"))), None)


def _correction() -> Path:
    """The library made of unfaked.c, which says what it corrects."""
    recipe = _WAITS.read_text() + platform.machine()
    return cache.made_once("unfaked", recipe, _compile) / "unfaked.so"


def _compile(directory: Path) -> None:
    argv = ["gcc", "-shared", "-fPIC", "-O2", "-o", str(directory / "unfaked.so"), str(_WAITS)]
    subprocess.run(argv, check=True, timeout=60)
