"""The two threads that keep handles alive, with a store that does what the test says.

The handles are stand-ins, so that only the keeper is under test; the clock is the real one, and
the leases are short.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from django_outbox_lock.backends.locks.keeper import Keeper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import WaitUntil

LEASE = 2.0
# How late a loss may be noticed on a busy machine, in seconds.
LATE = 2.0


class StandIn:
    """What the keeper asks of a handle."""

    def __init__(self, keeper: Keeper | None = None, lease: float = LEASE) -> None:
        self.resource = "nightly-report"
        self.deadline = time.monotonic() + lease
        self.ended = False
        self.stalled = False
        self.stalled_after = 0.0
        self.reasons: list[str] = []
        self.lost_at: float | None = None
        self.keeper = keeper

    @property
    def lost(self) -> bool:
        if time.monotonic() >= self.deadline:
            self.lose("deadline")
        return self.ended

    @property
    def watch_at(self) -> float:
        return self.deadline

    def watch(self) -> None:
        assert self.lost

    def lose(self, reason: str) -> None:
        if not self.ended:
            self.ended, self.lost_at = True, time.monotonic()
            self.reasons.append(reason)
        if self.keeper is not None:
            self.keeper.discard(self)  # type: ignore[arg-type]

    def extend(self, deadline: float) -> None:
        self.deadline = max(self.deadline, deadline)


class Store:
    """Answers proofs, and counts them."""

    def __init__(self) -> None:
        self.asked: list[StandIn] = []
        self.idled = threading.Event()
        self.answer: Callable[[StandIn], float | None] = lambda _: time.monotonic() + LEASE

    def prove(self, handle: Any) -> float | None:
        self.asked.append(handle)
        return self.answer(handle)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def keeper(store: Store) -> Iterator[Keeper]:
    keeper = Keeper("test", LEASE, store.prove, store.idled.set)
    yield keeper
    keeper.close()


def add(keeper: Keeper, **options: Any) -> StandIn:
    handle = StandIn(keeper, **options)
    keeper.add(handle)  # type: ignore[arg-type]
    return handle


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("test-")]


def test_a_handle_is_kept_for_as_long_as_it_is_proved(keeper: Keeper, store: Store) -> None:
    handle = add(keeper)
    time.sleep(2.5 * LEASE)
    assert not handle.lost
    assert 5 <= len(store.asked) <= 8, "a proof at each third of the lease"


def test_no_is_final(keeper: Keeper, store: Store, wait_until: WaitUntil) -> None:
    store.answer = lambda _: None
    handle = add(keeper)
    wait_until(lambda: handle.ended)
    assert handle.reasons == ["the store says that it is not ours any more"]
    assert keeper.handles() == []


def test_unknown_is_asked_again_sooner(keeper: Keeper, store: Store, wait_until: WaitUntil) -> None:
    """Case 069: an error is no loss; the deadline is."""

    def fail(handle: StandIn) -> float | None:
        raise OSError("no route to host")

    store.answer = fail
    handle = add(keeper)
    wait_until(lambda: handle.ended)
    assert handle.reasons == ["deadline"]
    assert handle.lost_at is not None
    assert 0 <= handle.lost_at - handle.deadline < LATE
    assert len(store.asked) >= 4


def test_an_error_of_any_kind_does_not_end_the_renewals(keeper: Keeper, store: Store) -> None:
    """The commonest fault of renewal threads is to die without a word."""
    answers = iter([ValueError("a driver's bug"), RuntimeError("another")])

    def fail_twice(handle: StandIn) -> float | None:
        if (error := next(answers, None)) is not None:
            raise error
        return time.monotonic() + LEASE

    store.answer = fail_twice
    handle = add(keeper)
    time.sleep(2 * LEASE)
    assert not handle.lost


def test_a_handle_that_raises_does_not_harm_the_others(
    keeper: Keeper, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    class Raising(StandIn):
        def extend(self, deadline: float) -> None:
            raise RuntimeError("in the handle")

    keeper.add(Raising(keeper))  # type: ignore[arg-type]
    other = add(keeper)
    time.sleep(1.5 * LEASE)
    assert not other.lost
    assert "could not be looked after" in caplog.text


def test_the_deadline_passes_while_a_proof_hangs(
    keeper: Keeper, store: Store, wait_until: WaitUntil
) -> None:
    """Dynamolock 446: the watchdog waits for nobody, and the next handle has another renewer."""
    go_on = threading.Event()

    def hang(handle: StandIn) -> float | None:
        if handle is hanging:
            go_on.wait(30)
        return time.monotonic() + LEASE

    store.answer = hang
    hanging = add(keeper)
    wait_until(lambda: hanging.ended)
    assert hanging.lost_at is not None
    assert hanging.lost_at - hanging.deadline < LATE
    successor = add(keeper)
    time.sleep(1.5 * LEASE)
    assert not successor.lost
    go_on.set()
    wait_until(lambda: sorted(threads()) == ["test-renewer", "test-watchdog"], what="one of each")
    assert not successor.lost


def test_no_thread_in_place_of_one_that_hangs(
    keeper: Keeper, store: Store, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a limit of the system: the loss is told all the same, and the one that hangs goes on."""
    go_on = threading.Event()

    def hang(handle: StandIn) -> float | None:
        go_on.wait(30)
        return time.monotonic() + 100

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    store.answer = hang
    hanging = add(keeper, lease=100)
    wait_until(lambda: store.asked == [hanging])
    other = add(keeper, lease=100)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        hanging.lose("test")
    go_on.set()
    wait_until(lambda: other in store.asked, what="the other is proved")
    assert [id(kept) for kept in keeper.handles()] == [id(other)]


def test_a_late_answer_does_not_bring_a_lost_handle_back(
    keeper: Keeper, store: Store, wait_until: WaitUntil
) -> None:
    """Cases of awslabs 116 and redisson 7272: a renewal in flight at the loss is forgotten."""
    go_on = threading.Event()

    def hang(handle: StandIn) -> float | None:
        go_on.wait(30)
        return time.monotonic() + 1000

    store.answer = hang
    handle = add(keeper)
    wait_until(lambda: handle.ended)
    go_on.set()
    wait_until(store.idled.is_set, what="the late renewer ends")
    assert handle.ended
    assert keeper.handles() == []


def test_stalled_work_is_given_up(keeper: Keeper, store: Store, wait_until: WaitUntil) -> None:
    handle = add(keeper)
    handle.stalled_after, handle.stalled = 5.0, True
    wait_until(lambda: handle.ended)
    assert handle.reasons == ["the work showed no progress for 5 s"]
    assert store.asked == []


def test_a_handle_that_ended_before_it_was_kept_is_forgotten(
    keeper: Keeper, store: Store, wait_until: WaitUntil
) -> None:
    """Another thread forced or released it after the grant: a yes must not keep it for ever."""
    late = StandIn(keeper)
    keeper.discard(late)  # type: ignore[arg-type]
    late.ended = True
    keeper.add(late)  # type: ignore[arg-type]
    wait_until(lambda: keeper.handles() == [], timeout=5 * LEASE, what="it is forgotten")
    assert store.asked == []


def test_a_handle_with_little_time_is_watched_at_once(
    keeper: Keeper, wait_until: WaitUntil
) -> None:
    """A grant that came late has less than a lease left, and the watchdog was not due yet.

    The renewer, which comes after a third of the lease, would prove it for as long as you like.
    """
    add(keeper, lease=100)
    late = add(keeper, lease=0.05)
    wait_until(lambda: late.ended)


def test_the_threads_end_when_nothing_is_held(
    keeper: Keeper, store: Store, wait_until: WaitUntil
) -> None:
    handle = add(keeper)
    assert sorted(threads()) == ["test-renewer", "test-watchdog"]
    keeper.discard(handle)  # type: ignore[arg-type]
    wait_until(lambda: not threads(), what="no thread is left")
    assert store.idled.is_set()
    again = add(keeper)
    time.sleep(1.5 * LEASE)
    assert not again.lost


def test_a_long_lease_does_not_keep_what_is_not_needed(wait_until: WaitUntil) -> None:
    """PostgreSQL refuses to drop a test database while the lock's session is open: 5 s at most."""
    store = Store()
    keeper = Keeper("test", 600, store.prove, store.idled.set)
    keeper.discard(add(keeper, lease=600))  # type: ignore[arg-type]
    wait_until(store.idled.is_set, timeout=4.5, what="the renewer ends")
    keeper.close()


def test_close_ends_the_threads(store: Store, wait_until: WaitUntil) -> None:
    """However long they were to wait."""
    keeper = Keeper("test", 600, store.prove, store.idled.set)
    add(keeper, lease=600)
    keeper.close()
    wait_until(lambda: not threads(), what="no thread is left")


def test_many_obtains_start_no_more_threads(keeper: Keeper) -> None:
    for _ in range(200):
        keeper.discard(add(keeper))  # type: ignore[arg-type]
    assert sorted(threads()) == ["test-renewer", "test-watchdog"]


# A thread has ended with the keeper's mutex, as its own do that the interpreter stops.
_ENDS = """
import sys, threading
from django_outbox_lock.backends.locks.keeper import Keeper

keeper = Keeper("test", 60.0, lambda handle: None, lambda: None)
ended_with_it = threading.Thread(target=keeper._changed.acquire)
ended_with_it.start()
ended_with_it.join()

def holds(keeper=keeper, sys=sys):
    try:
        yield
    finally:
        sys.stdout.write("closed: ")
        keeper.discard(object())
        sys.stdout.write("discarded")

held = holds()
next(held)
"""


def test_a_release_at_the_very_end_does_not_hang() -> None:
    """A generator that holds a lock is closed when the keeper's threads are gone already."""
    done = subprocess.run(
        [sys.executable, "-c", _ENDS], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed: discarded", "")
