"""A world in which time, threads and faults are values: for the lock layer's state machine.

The real classes run in it. What they take from outside is replaced: the monotonic clock, threads
(each is one step of its loop at a time), background work (it waits in a queue), the server's clock
and, by ``call``, the way to the store and to the registry.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_outbox_lock.backends.locks.base import BaseLockBackend
    from django_outbox_lock.backends.locks.handle import LockHandle

T = TypeVar("T")

# Whole and dyadic numbers, so that no sum of them is ever rounded.
LEASE = 12.0
EPOCH = 1_700_000_000


class InvariantBrokenError(AssertionError):
    """A promise of the lock layer does not hold."""


class WaitingError(BaseException):
    """The step of a thread has come to a wait; nothing that catches ``Exception`` may stop it."""


@dataclass(eq=False)
class Process:
    """A virtual process with a backend of its own."""

    name: str
    backend: BaseLockBackend
    handles: list[LockHandle] = field(default_factory=list)
    faults: dict[str, Fault] = field(default_factory=dict)
    paused: bool = False

    @property
    def current(self) -> LockHandle | None:
        """The handle that has not ended, if there is one."""
        return next((handle for handle in self.handles if not handle.ended), None)


@dataclass(frozen=True)
class Fault:
    """What befalls the next call at one of a room's seams.

    ``seconds`` pass before the call has its effect (``late`` "question") or after it ("answer"),
    and ``rival``: another process tries to obtain meanwhile. With ``error`` what is late is lost;
    with ``stops`` the process stands still once it has the answer.
    """

    seam: int = 0
    late: str = "answer"
    seconds: float = 0.0
    rival: bool = False
    stops: bool = False
    error: type[Exception] | None = None


@dataclass(eq=False)
class VirtualThread:
    """Stands for ``threading.Thread``: a loop that is run up to its next wait."""

    world: World
    target: Callable[[], None]
    owner: Process | None
    wake_at: float
    busy: bool = False
    ended: bool = False

    def start(self) -> None:
        """The world runs it when its time has come."""


class VirtualCondition:
    """Stands for ``threading.Condition``; only one thing happens at a time here."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: set[VirtualThread] = set()

    def __enter__(self) -> None:
        """Nobody else is there."""

    def __exit__(self, *error: object) -> None:
        """Nobody else is there."""

    def wait(self, timeout: float) -> None:
        thread = self._world.thread
        assert thread is not None
        thread.wake_at = self._world.now + timeout
        self._waiting.add(thread)
        raise WaitingError

    def notify_all(self) -> None:
        for thread in self._waiting:
            thread.wake_at = self._world.now
        self._waiting.clear()


class Threading:
    """What ``keeper`` uses of the module ``threading``."""

    def __init__(self, world: World) -> None:
        self._world = world

    def Thread(self, *, target: Callable[[], None], name: str, daemon: bool) -> VirtualThread:  # noqa: N802
        thread = VirtualThread(self._world, target, self._world.acting, self._world.now)
        self._world.threads.append(thread)
        return thread

    def Condition(self) -> VirtualCondition:  # noqa: N802
        return VirtualCondition(self._world)

    def current_thread(self) -> VirtualThread | None:
        return self._world.thread


class World:
    """One run: its clocks, processes, threads and what was done so far."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.clock_offset = 0.0
        self.processes: list[Process] = []
        self.threads: list[VirtualThread] = []
        self.thread: VirtualThread | None = None
        self.acting: Process | None = None
        self.jobs: list[tuple[Process | None, Callable[[], object]]] = []
        self.last_token = 0
        self.excused: set[str] = set()
        self.losses: list[str] = []
        self.rival: Callable[[], None] = lambda: None

    # What stands for the modules time and threading, and for the server's clock.

    def monotonic(self) -> float:
        return self.now

    def server_now(self) -> int:
        return int((EPOCH + self.now + self.clock_offset) * 1_000_000)

    def in_background(
        self, function: Callable[[], object], name: str, *, or_here: bool = True
    ) -> bool:
        self.jobs.append((self.acting, function))
        return True

    # What makes it go on.

    @contextlib.contextmanager
    def acting_as(self, process: Process | None) -> Iterator[None]:
        before = self.acting
        self.acting = process
        try:
            yield
        finally:
            self.acting = before

    def advance(self, seconds: float) -> None:
        """Let time pass; every thread that wakes meanwhile runs at its time."""
        end = self.now + seconds
        while (thread := self._next_thread(end)) is not None:
            self.now = max(self.now, thread.wake_at)
            self._step(thread)
        self.now = max(self.now, end)

    def run_job(self, number: int) -> None:
        """Run one of the pieces of work that were handed to the background."""
        process, function = self.jobs.pop(number % len(self.jobs))
        # A thread that ends with an error tells it and harms nobody.
        with self.acting_as(process), contextlib.suppress(RuntimeError):
            function()

    def call(self, seam: str, apply: Callable[[], T]) -> T:
        """The way to a server and back, with the fault that was planned for it."""
        fault = self.acting.faults.pop(seam, None) if self.acting else None
        if fault is None:
            return apply()
        if fault.late == "answer":
            result = apply()
        self._meanwhile(fault)
        if fault.error is not None:
            raise fault.error(f"the {fault.late} got lost")
        result = result if fault.late == "answer" else apply()
        if fault.stops and self.acting:
            self.acting.paused = True
        return result

    # What is true of it.

    def believes(self, handle: LockHandle) -> bool:
        """As far as its process can know, the handle holds; looked at without a side effect."""
        return not handle.ended and self.now < handle.deadline

    def believers(self) -> list[LockHandle]:
        handles = (handle for process in self.processes for handle in process.handles)
        return [
            handle
            for handle in handles
            if self.believes(handle) and handle.lock_id not in self.excused
        ]

    def excuse_believers(self) -> None:
        """From now on it is no fault of the lock layer's if these are succeeded early."""
        self.excused.update(handle.lock_id for handle in self.believers())

    def bumped(self, token: int, lock_id: str) -> None:
        """A token was issued; told at the moment at which it was."""
        if token <= self.last_token:
            raise InvariantBrokenError(f"token {token} was issued after {self.last_token}")
        self.last_token = token
        others = [handle for handle in self.believers() if handle.lock_id != lock_id]
        if others:
            raise InvariantBrokenError(f"{others} succeeded although the lease has not passed")

    def _meanwhile(self, fault: Fault) -> None:
        self.advance(fault.seconds)
        if fault.rival:
            self.rival()

    def _next_thread(self, end: float) -> VirtualThread | None:
        ready = (
            thread
            for thread in self.threads
            if not (thread.ended or thread.busy or (thread.owner and thread.owner.paused))
        )
        first = min(ready, key=lambda thread: thread.wake_at, default=None)
        return first if first is not None and first.wake_at <= end else None

    def _step(self, thread: VirtualThread) -> None:
        before, self.thread = self.thread, thread
        thread.busy, thread.wake_at = True, math.inf
        try:
            with self.acting_as(thread.owner), contextlib.suppress(WaitingError):
                thread.target()
                thread.ended = True
        finally:
            self.thread, thread.busy = before, False
