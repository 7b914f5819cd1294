"""What every item of the contract stands on."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pytest
from django.db import connections
from django.test import override_settings

from django_outbox_lock import signals
from django_outbox_lock.exceptions import LockUnavailable
from django_outbox_lock.models import Hold
from django_outbox_lock.testing.peer import Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from django.dispatch import Signal

    from django_outbox_lock.backends.locks.base import BaseLockBackend
    from django_outbox_lock.backends.locks.handle import LockHandle

F = TypeVar("F", bound="Callable[..., None]")
T = TypeVar("T")

# What a busy machine may take on top of a bound that the contract states, in seconds.
SLACK = 5.0


def applies(when: Callable[[type[BaseLockBackend]], bool]) -> Callable[[F], F]:
    """The item is collected only for backends whose flags say so."""

    def mark(item: F) -> F:
        item.applies = when  # type: ignore[attr-defined]
        return item

    return mark


def across_processes(cls: type[BaseLockBackend]) -> bool:
    """It shuts out other processes."""
    return cls.across_processes


def on_a_session(cls: type[BaseLockBackend]) -> bool:
    """It lives in a session on a server."""
    return cls.session_bound and cls.across_processes


def on_a_lease(cls: type[BaseLockBackend]) -> bool:
    """It expires by itself."""
    return not cls.session_bound


class Heard:
    """What the lock layer's signals have told since the test began."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.told: dict[Signal, list[dict[str, Any]]] = {}
        for signal in (
            signals.lock_obtained,
            signals.lock_contended,
            signals.lock_released,
            signals.lock_at_risk,
            signals.lock_lost,
            signals.lock_left,
            signals.lock_forced,
        ):
            self.told[signal] = []
            signal.connect(self._hear, weak=False)
            stack.callback(signal.disconnect, self._hear)

    def tokens(self, signal: Signal) -> list[int]:
        """The tokens that one signal has told of."""
        return [told["token"] for told in list(self.told[signal])]

    def _hear(self, signal: Signal, **named: Any) -> None:
        self.told[signal].append(named)


class LockItems:
    """The hooks of the contract and the tools of its items."""

    backend_class: ClassVar[type[BaseLockBackend]]
    """The backend under test, importable by its dotted path."""

    options: ClassVar[Mapping[str, Any]] = {}
    """Its options, apart from ``lease``."""

    using: ClassVar[str] = "default"
    """The database alias of the outbox."""

    def end_session(self, handle: LockHandle) -> None:
        """End the server's session of a held lock, from outside (session locks only)."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _environment(self, transactional_db: None) -> Iterator[None]:
        with self.environment():
            yield

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """What an item needs round it; pytest enters it by itself."""
        with contextlib.ExitStack() as self._stack:
            self.heard = Heard(self._stack)
            self.backend = self.make_backend()
            yield

    def make_backend(self, **options: Any) -> BaseLockBackend:
        """Another instance of the backend: a process of its own, as far as its store can see."""
        backend = self.backend_class(self.using, **{"lease": 30.0, **self.options, **options})
        self._stack.callback(backend.close)
        return backend

    def make_peer(self, *, lease: float = 30.0, **environment: str) -> Peer:
        """Another process with the backend; ``environment`` is added to this one's."""
        options = {**self.options, "lease": lease}
        return self._stack.enter_context(Peer(self.backend_class, self.using, options, environment))

    @property
    def short(self) -> float:
        """A lease, in seconds, whose end a test can wait for."""
        return max(2.0, self.backend_class.minimum_lease)

    @property
    def steady(self) -> float:
        """A lease, in seconds, that a pause of a busy machine does not end."""
        return max(3.0, self.backend_class.minimum_lease)

    @property
    def takeover(self) -> float:
        """Seconds after which the short lease of a silent process is free at the latest."""
        return self.short * self.backend_class.silence + SLACK

    def obtain(
        self, resource: str, backend: BaseLockBackend | None = None, timeout: float = 0.0
    ) -> LockHandle:
        """Obtain what must be free."""
        handle = (backend or self.backend).obtain(resource, timeout=timeout)
        assert handle is not None, f"{resource} could not be obtained"
        return handle

    def in_force(self, **options: Any) -> override_settings:
        """Settings under which ``lock`` and ``single_instance`` use the backend."""
        dotted = f"{self.backend_class.__module__}.{self.backend_class.__qualname__}"
        lock = {"BACKEND": dotted, "OPTIONS": {"lease": 30.0, **self.options, **options}}
        return override_settings(OUTBOX_LOCK={self.using: {"LOCK": lock}})

    def written(self) -> list[int]:
        """What the fenced transactions of the test have left behind."""
        return list(Hold.objects.using(self.using).values_list("order_key", flat=True))


def no_answer(handle: LockHandle) -> bool:
    """In the place of ``prove_once``: nobody knows whether the lock is held."""
    raise LockUnavailable(f"{handle.resource}: the store gives no answer")


def fail() -> None:
    """An error of the work that a lock protects."""
    raise ZeroDivisionError


def wait_until(predicate: Callable[[], object], seconds: float, what: str) -> None:
    """Return when the predicate is true; fail when it is not so in time."""
    deadline = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)


def in_threads(functions: Sequence[Callable[[], T]]) -> list[T]:
    """Run the functions at the same time, each on a thread, and return what they return."""
    barrier = threading.Barrier(len(functions))

    def run(function: Callable[[], T]) -> T:
        try:
            barrier.wait(10)
            return function()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(run, functions))
