"""The state machine: what may befall three processes that want one resource, and what stays true.

They obtain, write behind the fence, renew, release, stand still and die, while questions and
answers get lost or come late; all on the real classes, with time, threads and faults virtual.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from django.db import OperationalError
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from django_outbox_lock import fence
from django_outbox_lock.exceptions import LockLost, LockUnavailable
from django_outbox_lock.models import Hold
from tests.locks import virtual_rooms as rooms
from tests.locks.virtual_world import LEASE, Fault, InvariantBrokenError, Process, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_outbox_lock.backends.locks.handle import LockHandle

RESOURCE = "nightly-report"
# What a caller of the lock layer has to expect, and RuntimeError: a client library's own fault.
EXPECTED = (LockUnavailable, OperationalError, RuntimeError)

NUMBERS = st.integers(0, 2)
HANDLES = st.integers(0, 2)
SECONDS = st.sampled_from([0.0, 1.0, 4.0, 11.0, 13.0, 20.0])
ERRORS = st.sampled_from([LockUnavailable, OperationalError, RuntimeError, rooms.Busy])
LATE = st.builds(
    Fault,
    seam=st.integers(0, 3),
    late=st.sampled_from(["question", "answer", "answer"]),
    seconds=SECONDS,
    rival=st.booleans(),
    stops=st.booleans(),
)
LOST = st.builds(
    Fault,
    seam=st.integers(0, 3),
    late=st.sampled_from(["question", "answer"]),
    seconds=SECONDS,
    rival=st.booleans(),
    error=ERRORS,
)
WORK = st.sampled_from(["write", "renew", "release"])
FAULTS = st.one_of(st.none(), st.none(), st.none(), LATE, LOST)


class Locking(RuleBasedStateMachine):
    """Three virtual processes and one resource; ``backend`` makes the room under test."""

    backend: type[rooms.VirtualStore | rooms.VirtualLeaseTable]
    enter: Callable[[World], None]

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        type(self).enter(self.world)
        self.leases = rooms.Leases(self.world)
        self.stack = contextlib.ExitStack()
        self.stack.enter_context(rooms.hearing(self.world))
        self.world.processes = [self._start(name) for name in ("one", "two", "three")]
        self.world.rival = self._rival
        self.written = 0

    # What happens; most of the time somebody works.

    @rule(what=WORK, fault=FAULTS)
    def one_works(self, what: str, fault: Fault | None) -> None:
        self._work(self.world.processes[0], what, fault)

    @rule(what=WORK, fault=FAULTS)
    def two_works(self, what: str, fault: Fault | None) -> None:
        self._work(self.world.processes[1], what, fault)

    @rule(what=WORK, fault=FAULTS)
    def three_works(self, what: str, fault: Fault | None) -> None:
        self._work(self.world.processes[2], what, fault)

    @rule(number=NUMBERS, which=HANDLES, what=st.sampled_from(["write", "release", "by id"]))
    def an_old_handle_is_used(self, number: int, which: int, what: str) -> None:
        process = self.world.processes[number]
        handle = process.handles[-1 - which] if which < len(process.handles) else None
        if handle is None or process.paused:
            return
        if what == "write":
            self._write(process, handle)
        elif what == "release":
            self._release(process, handle)
        else:
            self._release_by_id(process)

    @rule(number=NUMBERS, fault=LATE | LOST)
    def the_next_renewal_fails(self, number: int, fault: Fault) -> None:
        self._plan(self.world.processes[number], "renew", fault)

    @rule(number=NUMBERS, what=st.sampled_from(["stop", "continue", "continue", "kill"]))
    def signal(self, number: int, what: str) -> None:
        """The place of a process that is killed is taken by another."""
        process = self.world.processes[number]
        process.paused = what != "continue"
        if what == "kill":
            self.world.processes[number] = self._start(process.name)
        self.world.advance(0)

    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        self.world.advance(seconds)

    @precondition(lambda self: self.world.jobs)
    @rule(which=HANDLES)
    def work_in_background(self, which: int) -> None:
        self.world.run_job(which)

    @rule(upset=st.sampled_from(["force", "empty", -3600.0, -15.0, 15.0, 3600.0]))
    def upset(self, upset: str | float) -> None:
        """What may end a lease early: an operator, a store that forgets, a clock that is set (K24).

        Whoever holds may then be succeeded before its time; but a stale one still writes nothing.
        """
        self.world.excuse_believers()
        if upset == "force":
            self._force()
        elif upset == "empty":
            self.leases.forget()
        else:
            self.world.clock_offset += float(upset)

    # What is always true.

    @invariant()
    def at_most_one_holder(self) -> None:
        assert len(self.world.believers()) <= 1

    @invariant()
    def a_loss_is_told_once(self) -> None:
        assert len(self.world.losses) == len(set(self.world.losses))

    @invariant()
    def a_loss_is_noticed_at_the_deadline(self) -> None:
        """By the watchdog alone, whatever hangs; a process that stands still sees it afterwards."""
        for process in self.world.processes:
            for handle in process.handles:
                in_time = handle.ended or self.world.now <= handle.deadline
                assert in_time or process.paused, f"{handle} was not given up"

    @invariant()
    def what_has_ended_is_forgotten(self) -> None:
        for process in self.world.processes:
            kept = process.backend._held._entries
            assert all(handle and not handle.ended for _, handle in kept.values()), kept

    def teardown(self) -> None:
        try:
            self.nobody_holds_for_ever()
            self.who_goes_on_can_obtain()
            self.every_loss_was_told()
        finally:
            self.stack.close()

    def nobody_holds_for_ever(self) -> None:
        """All processes stop at once; a new one that keeps trying obtains within two leases.

        K24: after the server's clock was set back, a lease that ends too late to be true counts as
        expired at once, and may seem true again when its end comes nearer.
        """
        for process in self.world.processes:
            process.faults.clear()
            process.paused = True
        heir = self._start("heir")
        self._obtain(heir)
        if heir.current is None:
            self.world.advance(2 * LEASE)
            self._obtain(heir)
        assert heir.current is not None, "somebody holds for ever"
        with self.world.acting_as(heir):
            assert heir.current.release()

    def who_goes_on_can_obtain(self) -> None:
        """No process has locked itself out by what befell it."""
        for process in self.world.processes:
            process.paused = False
        self.world.advance(LEASE)
        for process in self.world.processes:
            self._obtain(process)
            assert process.current is not None, f"{process.name} cannot obtain any more"
            with self.world.acting_as(process):
                assert process.current.release()

    def every_loss_was_told(self) -> None:
        while self.world.jobs:
            self.world.run_job(0)
        for process in self.world.processes:
            for handle in process.handles:
                assert handle.lost == (handle.lock_id in self.world.losses)

    # How it is done.

    def _start(self, name: str) -> Process:
        return Process(name, type(self).backend(self.world, self.leases))

    def _obtain(self, process: Process) -> None:
        handle = None
        with self.world.acting_as(process), contextlib.suppress(*EXPECTED):
            handle = process.backend.obtain(RESOURCE)
        if handle is not None:
            process.handles.append(handle)

    def _work(self, process: Process, what: str, fault: Fault | None) -> None:
        """Who holds nothing tries to obtain; who holds goes on."""
        if process.paused:
            return
        if process.current is None:
            self._plan(process, "obtain", fault)
            self._obtain(process)
        elif what == "write":
            self._write(process, process.current)
        elif what == "renew":
            self._plan(process, what, fault)
            self._renew(process, process.current)
        else:
            self._plan(process, what, fault)
            self._release(process, process.current)

    def _release(self, process: Process, handle: LockHandle) -> None:
        succeeded = self.world.last_token > handle.token
        held = False
        with self.world.acting_as(process), contextlib.suppress(*EXPECTED):
            held = handle.release()
        if held and succeeded and handle.lock_id not in self.world.excused:
            raise InvariantBrokenError("released what somebody else had taken over")

    def _release_by_id(self, process: Process) -> None:
        """Whose id is not that of the process's own current handle frees nothing."""
        holds = process.current
        for owner in self.world.processes:
            for handle in owner.handles:
                if handle is not holds:
                    assert process.backend.release(RESOURCE, handle.lock_id) is False
        assert process.current is holds

    def _renew(self, process: Process, handle: LockHandle) -> None:
        with self.world.acting_as(process), contextlib.suppress(*EXPECTED):
            process.backend.renew(handle)

    def _write(self, process: Process, handle: LockHandle) -> None:
        """Whoever tries, also with a handle that is lost: only the last token is accepted."""
        self.written += 1
        with contextlib.suppress(LockLost), fence.held(handle.ticket, using="default"):
            Hold.objects.create(order_key=self.written, head_id=handle.token)
        accepted = Hold.objects.filter(order_key=self.written).exists()
        if accepted and handle.token != self.world.last_token:
            raise InvariantBrokenError("a stale holder's write was accepted")

    def _force(self) -> None:
        operator = self._start("operator")
        with self.world.acting_as(operator):
            if operator.backend.force_release(RESOURCE, self.world.last_token):
                self.world.last_token += 1

    def _rival(self) -> None:
        """Somebody else who runs and holds nothing tries to obtain."""
        for process in self.world.processes:
            if process is not self.world.acting and not process.paused and not process.current:
                self._obtain(process)
                return

    def _plan(self, process: Process, action: str, fault: Fault | None) -> None:
        if fault is not None:
            seams = type(self).backend.seams[action]
            process.faults[seams[fault.seam % len(seams)]] = fault
