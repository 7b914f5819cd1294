"""What SIGTERM and Ctrl-C mean to a command that runs an engine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_outbox_lock.engines.base import Engine

STOPPING = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def stopped_by_signals(engine: Engine) -> Iterator[None]:
    """The first SIGTERM or SIGINT asks the engine to finish, a second one ends the process.

    Not off the main thread, where signals are not to be had. A forked child gets back what was in
    force before.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    listener = _Listener(engine)
    _listeners.append(listener)
    try:
        yield
    finally:
        if listener in _listeners:  # else this is a forked child, which has been given back its own
            _listeners.remove(listener)
            listener.close()


class _Listener:
    """Counts signals on a thread of its own.

    Python runs a signal's handler on the main thread only, which may wait for ever in a database
    driver's C code. The number of the signal, however, is written to a file at once.
    """

    def __init__(self, engine: Engine) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._thread = threading.Thread(target=self._count, name="outbox-signals", daemon=True)
        self._thread.start()
        self._file_before = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)

        def stop(*_: object) -> None:
            if engine.stopping:  # where another library has taken the file for itself
                _end_the_process()
            engine.stop()

        self._before: dict[int, Any] = {number: signal.signal(number, stop) for number in STOPPING}

    def give_back(self) -> None:
        """Put the handlers in force that were there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._file_before)

    def close(self) -> None:
        """Listen no more."""
        self.give_back()
        self._sender.close()
        self._thread.join()
        self._receiver.close()

    def _count(self) -> None:
        heard = 0
        while number := self._receiver.recv(1):
            heard += number[0] in STOPPING
            if heard > 1:
                _end_the_process()


# Both threads may come here with the same signal, and what has hooked ``os._exit`` (coverage's
# does more than leave) need not bear two at once. The same thread may come again, by a third one.
_ending = threading.RLock()


def _end_the_process() -> None:
    with _ending:
        os._exit(1)


class _Forking(threading.local):
    """What this thread had blocked before its fork; None where nothing was held back."""

    mask: set[signal.Signals] | set[int] | None = None


_listeners: list[_Listener] = []
_forking = _Forking()


def _hold_signals_back() -> None:
    """Before a fork: the child could get one while it has the engine's handlers yet."""
    if _listeners:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)


def _let_signals_through() -> None:
    """After it; servers that fork in C may not have announced it."""
    mask, _forking.mask = _forking.mask, None
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _leave_to_the_parent() -> None:
    """In a forked child: its signals are not the engine's, and must not be counted as such."""
    for listener in reversed(_listeners):
        listener.give_back()
    _listeners.clear()
    _let_signals_through()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_hold_signals_back,
        after_in_parent=_let_signals_through,
        after_in_child=_leave_to_the_parent,
    )
