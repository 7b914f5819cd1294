"""A management command in a process of its own, for as long as a lock is held."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from django_outbox_lock.steady import time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django_outbox_lock.backends.locks.handle import LockHandle

PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_TICK = 0.05


def program() -> list[str]:
    """The way in which this process was started, up to the name of its command."""
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return [sys.executable, "-m", started.parent.name]
    return [sys.executable, str(started)]


def _inherited(stream: TextIO | None) -> int | None:
    """Without an output of its own this process may have another file in its place."""
    return subprocess.DEVNULL if stream is None else None


def _input() -> int | None:
    """No terminal: a group in the background is stopped when it reads from it, for ever."""
    return None if sys.stdin is not None and not sys.stdin.isatty() else subprocess.DEVNULL


class Child:
    """Runs ``argv`` to its end; ``handle`` is the lock that must be held meanwhile.

    Signals that this process gets are passed on; when it is stopped by Ctrl-Z, so is the command.
    When the lock is lost, the command is told to end (SIGTERM) and, ``grace`` seconds later, what
    is left of its process group is killed.
    """

    def __init__(self, argv: Sequence[str], handle: LockHandle, *, grace: float) -> None:
        self._argv = argv
        self._handle = handle
        self._grace = grace
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []

    def run(self) -> int:
        """Return the exit code; 128 + n if signal n ended the command."""
        with self._passing_signals_on():
            # A group of its own: Ctrl-C must reach it once, and its own children die with it.
            process = self._process = subprocess.Popen(
                self._argv,
                process_group=0,
                stdin=_input(),
                stdout=_inherited(sys.stdout),
                stderr=_inherited(sys.stderr),
            )
            for number in self._early:
                process.send_signal(number)
            ending = threading.Thread(target=self._end_on_loss, args=(process,), daemon=True)
            ending.start()
            code = process.wait()
            if self._handle.lost:
                ending.join()  # what the command has started may be there yet
        return code if code >= 0 else 128 - code

    @contextlib.contextmanager
    def _passing_signals_on(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._pass_on) for number in PASSED_ON}
        before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._stop_too)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _pass_on(self, number: int, _: object) -> None:
        if self._process is None:
            self._early.append(number)
        else:
            self._process.send_signal(number)

    def _stop_too(self, number: int, _: object) -> None:
        """Stop with the command: it must not go on while nobody here renews the lock."""
        self._signal_group(signal.SIGSTOP)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # returns when we are continued
        signal.signal(number, self._stop_too)
        if self._process is not None and self._handle.lost:
            self._process.terminate()  # before it can do anything else
        self._signal_group(signal.SIGCONT)

    def _end_on_loss(self, process: subprocess.Popen[bytes]) -> None:
        if not self._handle.wait_lost():
            return
        process.terminate()
        end = time.monotonic() + self._grace
        while self._signal_group(0):
            if time.monotonic() >= end:
                self._signal_group(signal.SIGKILL)
                return
            time.sleep(_TICK)

    def _signal_group(self, number: int) -> bool:
        """Whether anybody was left, of the command and of what it has started, to be told."""
        if self._process is None:
            return False
        try:
            os.killpg(self._process.pid, number)
        except OSError:  # nobody, or nobody whom we may tell
            return False
        return True
