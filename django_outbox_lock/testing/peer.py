"""Another process that locks: for tests that kill it, stop it, or look at it from outside."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

from django.db import connections

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from django_outbox_lock.backends.locks.base import BaseLockBackend

_MAIN = (
    "import django; django.setup(); from django_outbox_lock.testing import peer_main; "
    "peer_main.main()"
)
_DATABASE_KEYS = ("NAME", "HOST", "PORT", "USER", "PASSWORD")


class Peer:
    """A Python process with the same settings and databases, and a lock backend of its own.

    It does one thing at a time, see ``peer_main.Actor``. ``environment`` is added to that of this
    process. The process dies with the ``with`` block.
    """

    def __init__(
        self,
        backend: type[BaseLockBackend],
        using: str,
        options: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._start = {
            "backend": f"{backend.__module__}.{backend.__qualname__}",
            "using": using,
            "options": dict(options),
            "databases": {
                alias: {key: connections[alias].settings_dict[key] for key in _DATABASE_KEYS}
                for alias in connections
            },
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})},
        )
        self._send(self._start)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def do(self, verb: str, *args: Any, timeout: float = 30.0) -> Any:
        """Have the process do something and return what came of it.

        An error comes back as its class's name behind an exclamation mark, ``"!LockLost"``.
        Raises ``TimeoutError`` when there is no answer for ``timeout`` seconds.
        """
        self.start(verb, *args)
        return self.answer(timeout)

    def start(self, verb: str, *args: Any) -> None:
        """``do`` without waiting for the answer."""
        self._send({"do": verb, "args": args})

    def answer(self, timeout: float = 30.0) -> Any:
        """The answer to what was started."""
        stdout = self._process.stdout
        if stdout is None or not select.select([stdout], [], [], timeout)[0]:
            raise TimeoutError(f"The other process gave no answer for {timeout:g} s.")
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"The other process ended with status {self._process.wait(10)}.")
        return json.loads(line)

    def go_on(self) -> None:
        """The line that ``mark_slowly`` waits for."""
        self._send({})

    def kill(self) -> None:
        """SIGKILL: it has no chance to say goodbye to anybody."""
        self._process.kill()
        self._process.wait(10)

    def stop(self) -> None:
        """SIGSTOP: it stands still, with all its connections open."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after ``stop``."""
        self._process.send_signal(signal.SIGCONT)

    def _send(self, message: Mapping[str, Any]) -> None:
        stdin = self._process.stdin
        if stdin is not None:
            stdin.write(json.dumps(message) + "\n")
            stdin.flush()
