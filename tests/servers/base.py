"""What every server can do."""

from __future__ import annotations

import abc
import atexit
import functools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from tests.servers import ports, spawn, tree
from tests.servers.clock import Clock

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping
    from types import TracebackType

Label = Literal["real server", "vendor emulator", "third-party emulator"]


class ServerError(RuntimeError):
    """The server could not be started; the end of its log is in the message."""


class ServerMissing(ServerError):  # a state of the machine, not an error of it
    """The server is not installed; the message says how to install it."""


class Server(abc.ABC):
    """A private server on 127.0.0.1, with a fresh data directory.

    ``stop()``, ``kill()`` and a new ``start()`` keep port and data; ``close()``, the end of a
    ``with`` block and the end of the process remove the data. A runner that is killed takes its
    servers with it. Not thread-safe: one thread at a time calls the methods. With ``clock=True``,
    where a server takes it, its wall clock can be moved by ``shift_clock``.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    label: ClassVar[Label] = "real server"
    apt: ClassVar[tuple[str, ...]]
    user: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    start_timeout: ClassVar[float] = 60.0
    stop_timeout: ClassVar[float] = 20.0

    def __init__(self, *, clock: bool = False) -> None:
        self._clock = Clock() if clock else None
        self._process: spawn.Child | None = None
        self._frozen: list[tree.Process] = []
        self._prepared = False

    # What each server says about itself

    @abc.abstractmethod
    def installed(self) -> bool:
        """Whether everything that ``start`` runs is there."""

    @abc.abstractmethod
    def prepare(self) -> None:
        """Fill ``self.directory``, once, before the first start."""

    @abc.abstractmethod
    def command(self) -> list[str]:
        """The program and its arguments, to run in the foreground."""

    @abc.abstractmethod
    def ping(self) -> None:
        """Return when the server answers a client; raise anything when it does not yet."""

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """Where it listens, in the form that django-environ reads."""

    @property
    @abc.abstractmethod
    def version(self) -> str:
        """The version, as told by the running server."""

    def wall_clock(self) -> float:
        """What the running server takes for the time, in seconds since 1970."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """Variables that the program needs beyond PATH, LANG and HOME."""
        return {}

    def missing(self) -> str | None:
        """One sentence with the line that installs the server; None when it is installed."""
        if self.installed():
            return None
        line = f"apt-get install --yes --no-install-recommends {' '.join(self.apt)}"
        return f"{self.title} is not installed: run `{line}`."

    # Its life

    def start(self) -> Self:
        """Start and wait until a client is answered. Raises ServerMissing or ServerError."""
        if self.running:
            return self
        if reason := self.missing() or (self._clock and self._clock.missing()):
            raise ServerMissing(reason)
        self._prepare_once()
        command = self.command()
        if self._clock:
            command = [*self._clock.prefix(self.directory, self.account), *command]
        self._process = spawn.popen(
            spawn.unprivileged(command, self.account),
            log=self.log,
            cwd=self.directory,
            env=spawn.environment(self.directory, self.environment()),
        )
        self._await_answer(self._process)
        return self

    def stop(self) -> None:
        """End the server in an orderly way, or with SIGKILL after ``stop_timeout`` seconds."""
        if self._process is None:
            return
        self.resume()
        family = tree.family(self._process.pid)
        self._process.send_signal(self.stop_signal)
        try:
            self._process.wait(self.stop_timeout)
        except subprocess.TimeoutExpired:
            family = tree.freeze(self._process.pid)
        self._end(family)

    def kill(self) -> None:
        """Crash: SIGKILL to every process of the server at one moment."""
        if self._process is not None:
            self._end(tree.freeze(self._process.pid))

    def restart(self) -> Self:
        """Stop and start with the same data and port."""
        self.stop()
        return self.start()

    def end(self) -> None:
        """End a server whose data nobody needs any more: the quick way."""
        self.kill()

    def pause(self) -> None:
        """SIGSTOP to every process: connections stay open and nothing answers."""
        if self._process is not None:
            self._frozen = tree.freeze(self._process.pid)

    def resume(self) -> None:
        """SIGCONT after ``pause``."""
        for process in reversed(self._frozen):
            process.send(signal.SIGCONT)
        self._frozen = []

    @property
    def clock_offset(self) -> float:
        """Seconds by which the wall clock was moved from the machine's."""
        return self._clock.offset if self._clock else 0.0

    def shift_clock(self, seconds: float) -> None:
        """Set the wall clock to the machine's time plus ``seconds``, also of a later start.

        Nothing that waits for a period is moved: the monotonic clock stays. Returns when
        ``wall_clock`` has followed, and raises ServerError if it does not.
        """
        if self._clock is None:
            raise ServerError(f"{self.title} was made without clock=True")
        self._clock.shift(seconds)
        if self.running and not self._clock.followed_by(self.wall_clock):
            raise ServerError(f"{self.title} does not follow the clock that it was given")

    def close(self) -> None:
        """End, remove all files and give the port back."""
        self.end()
        self._prepared = False
        atexit.unregister(self._close_in)
        if "directory" in vars(self):
            shutil.rmtree(vars(self).pop("directory"))
        if "_reservation" in vars(self):
            vars(self).pop("_reservation").close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # What can be asked

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def port(self) -> int:
        """The same for the life of the object; nobody else can be given it."""
        return ports.number(self._reservation)

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    def log_tail(self, lines: int = 30) -> str:
        """The last lines that the server wrote."""
        if "directory" not in vars(self) or not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def processes(self) -> list[tree.Process]:
        """The living processes of the server."""
        return tree.family(self._process.pid) if self._process else []

    @functools.cached_property
    def account(self) -> spawn.Account | None:
        """The user that the server runs as; None for the present one."""
        return spawn.account(self.user)

    @functools.cached_property
    def directory(self) -> Path:
        """The server's private directory, made when it is first asked for."""
        directory = Path(tempfile.mkdtemp(prefix=f"outbox-{self.name}-"))
        spawn.give(directory, self.account)
        return directory

    @functools.cached_property
    def _reservation(self) -> socket.socket:
        return ports.reserve()

    # How it is done

    def _prepare_once(self) -> None:
        if not self._prepared:
            atexit.register(self._close_in, os.getpid())
            self.prepare()
            self._prepared = True

    def _close_in(self, pid: int) -> None:
        # A forked child also runs this at its exit; the server is not its own.
        if pid == os.getpid():
            self.close()

    def _await_answer(self, process: spawn.Child) -> None:
        deadline = time.monotonic() + self.start_timeout
        while (status := process.poll()) is None:
            try:
                return self.ping()
            except Exception as error:  # every driver has its own errors
                if time.monotonic() > deadline:
                    self.kill()
                    raise self._failed(f"gave no answer in {self.start_timeout} s") from error
            time.sleep(0.02)
        self._process = None
        raise self._failed(f"ended with status {status}")

    def _failed(self, what: str) -> ServerError:
        return ServerError(f"{self.title} {what}. The end of its log:\n{self.log_tail()}")

    def _end(self, family: list[tree.Process]) -> None:
        tree.end(family)
        if self._process is not None:
            self._process.wait(self.stop_timeout)
            if self._clock:
                self._clock.forget(self._process.pid)
        self._process = None
        self._frozen = []
