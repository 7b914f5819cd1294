"""Every order of events that Hypothesis thinks of, and rooms that are wrong on purpose.

A machine that finds nothing proves nothing: so each wrong room must be caught.
"""

from __future__ import annotations

import functools
import logging
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from django_outbox_lock import fence
from tests.locks import virtual_rooms as rooms
from tests.locks.virtual_machine import Locking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXAMPLES = int(os.environ.get("STATE_MACHINE_EXAMPLES", "0"))


def search(machine: type[Locking], examples: int, *, shrink: bool) -> None:
    """Run the machine; with STATE_MACHINE_EXAMPLES longer, and another way each time."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES or examples,
            stateful_step_count=40,
            derandomize=not EXAMPLES,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture
def machine(
    django_db_blocker: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[Callable[[type[Any]], type[Locking]]]:
    """A function that makes the machine for a room."""
    caplog.set_level(logging.CRITICAL, logger="django_outbox_lock")  # else all of it is kept
    with django_db_blocker.unblock(), rooms.registry(monkeypatch) as connection:

        def make(room: type[Any]) -> type[Locking]:
            enter = functools.partial(rooms.enter, connection=connection, monkeypatch=monkeypatch)
            return type("Machine", (Locking,), {"backend": room, "enter": staticmethod(enter)})

        yield make


@pytest.mark.parametrize("room", [rooms.VirtualStore, rooms.VirtualLeaseTable])
def test_the_promises_hold(room: type[Any], machine: Callable[[type[Any]], type[Locking]]) -> None:
    search(machine(room), 100, shrink=True)


@pytest.mark.parametrize("room", [rooms.BlindRelease, rooms.BlindBump, rooms.LateDeadline])
def test_a_wrong_room_is_caught(
    room: type[Any], machine: Callable[[type[Any]], type[Locking]]
) -> None:
    with pytest.raises(AssertionError):
        search(machine(room), 1000, shrink=False)


def test_a_fence_that_is_open_is_caught(
    machine: Callable[[type[Any]], type[Locking]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "check", lambda *_args, **_named: None)
    with pytest.raises(AssertionError, match="a stale holder's write was accepted"):
        search(machine(rooms.VirtualStore), 1000, shrink=False)
