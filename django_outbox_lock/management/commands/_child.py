"""A management command in a process of its own, for as long as a lock is held."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

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
_PATIENCE = 2.0


# Programs whose arguments are the name of a management command and its arguments.
_MANAGING = frozenset({"manage.py", "django-admin"})
# After it the interpreter's own options end; it may stand behind the letters of others: -um NAME.
_WHAT_TO_RUN = re.compile(r"(-[^WXcm-]*)[cm]")
_WITH_VALUE = re.compile(r"-[^WXcm-]*[WX]|--check-hash-based-pycs")


def program() -> list[str]:
    """The way in which this process was started, up to the name of its command.

    What is no management command (a worker that calls one from its code) would only be started once
    more: there it is Django's own program, with the settings of the environment.
    """
    started = Path(sys.argv[0])
    interpreter = [sys.executable, *_interpreter_options()]
    if module := _module(started):
        return [*interpreter, "-m", module]
    if started.name in _MANAGING or sys.argv[1:2] == ["runlocked"]:
        return [*interpreter, str(started)]
    return [*interpreter, "-m", "django"]


def _module(started: Path) -> str:
    """What this process was started with after ``-m``, if that takes management commands."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.origin == str(started):
        name = str(spec.name).removesuffix("__main__").removesuffix(".")
    else:
        name = started.parent.name if started.name == "__main__.py" else ""
    return name if name == "django" or sys.argv[1:2] == ["runlocked"] else ""


def _interpreter_options() -> list[str]:
    """Those of Python, such as ``-u`` or ``-X utf8``."""
    options: list[str] = []
    given = iter(sys.orig_argv[1:])
    for option in given:
        last = _WHAT_TO_RUN.match(option)
        if last or not option.startswith("-") or option in {"-", "--"}:
            if last and last[1] != "-":
                options.append(last[1])
            break
        options.append(option)
        if _WITH_VALUE.fullmatch(option):
            options.append(next(given))
    return options


def _output(stream: Any) -> int:
    """The stream's file; a pipe for an object that has none, to be read into it."""
    # Without an output of its own this process may have another file in its place.
    if stream is None or getattr(stream, "closed", False):
        return subprocess.DEVNULL
    try:
        stream.flush()  # what was written before stands before
        return int(stream.fileno())
    except (OSError, ValueError, AttributeError, TypeError):
        return subprocess.PIPE


def _copy(pipe: IO[bytes], stream: Any) -> None:
    with pipe:
        for line in pipe:
            with contextlib.suppress(OSError, ValueError):  # what it does counts, heard or not
                stream.write(line.decode(errors="replace"))


def _input() -> int | None:
    """No terminal: a group in the background is stopped when it reads from it, for ever."""
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return subprocess.DEVNULL
    return None


class Child:
    """Runs ``argv`` to its end; ``handle`` is the lock that must be held meanwhile.

    Signals that this process gets are passed on; when it is stopped by Ctrl-Z, so is the command.
    When the lock is lost, the command is told to end (SIGTERM) and, ``grace`` seconds later, what
    is left of its process group is killed. What it writes goes to ``outputs``, which are this
    process's own if they are not given.
    """

    def __init__(
        self,
        argv: Sequence[str],
        handle: LockHandle,
        *,
        grace: float,
        outputs: tuple[Any, Any] | None = None,
    ) -> None:
        self._argv = argv
        self._outputs = outputs or (sys.stdout, sys.stderr)
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
                stdout=_output(self._outputs[0]),
                stderr=_output(self._outputs[1]),
            )
            try:
                code = self._accompany(process)
            except BaseException:
                # A signal's handler has raised, or there was no thread: the lock ends with us.
                self._end(process)
                raise
        return code if code >= 0 else 128 - code

    def _accompany(self, process: subprocess.Popen[bytes]) -> int:
        copying = self._copy_outputs(process)
        for number in self._early:
            process.send_signal(number)
        ending = threading.Thread(target=self._end_on_loss, args=(process,), daemon=True)
        ending.start()
        code = process.wait()
        if self._handle.lost:
            ending.join()  # what the command has started may be there yet
        for thread in copying:
            thread.join(_PATIENCE)  # what it has left behind may have the pipe still
        return code

    def _copy_outputs(self, process: subprocess.Popen[bytes]) -> list[threading.Thread]:
        pipes = zip((process.stdout, process.stderr), self._outputs, strict=True)
        wanted = [(pipe, stream) for pipe, stream in pipes if pipe is not None]
        threads = [threading.Thread(target=_copy, args=args, daemon=True) for args in wanted]
        for thread in threads:
            thread.start()
        return threads

    @contextlib.contextmanager
    def _passing_signals_on(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers: dict[signal.Signals, Any] = dict.fromkeys(PASSED_ON, self._pass_on)
        handlers[signal.SIGTSTP] = self._stop_too
        for number in list(handlers):
            if signal.getsignal(number) is signal.SIG_IGN:  # under nohup, say: for the command, too
                del handlers[number]
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # how it ended would be forgotten
            handlers[signal.SIGCHLD] = signal.SIG_DFL
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
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
        if self._handle.wait_lost():
            self._end(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        end = time.monotonic() + self._grace
        while process.poll() is None or self._signal_group(0):
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
