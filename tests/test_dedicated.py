"""A session of its own is closed, whichever thread does it and whenever."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from django_outbox_lock.dedicated import LockSession
from django_outbox_lock.testing.lock_items.base import in_threads

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"])


class Late:
    """A mutex; once, something happens when all is done but its release."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self._mutex = threading.RLock()
        self._happens = [happens]

    def acquire(self, *, timeout: float) -> bool:
        return self._mutex.acquire(timeout=timeout)

    def release(self) -> None:
        if self._happens:
            self._happens.pop()()
        self._mutex.release()


def test_a_session_that_is_closed_at_the_very_end_of_a_turn() -> None:
    """Who closes does not wait, and the user has looked for the last time: one of them does it."""
    session = LockSession("default", {}, lambda _: "1")
    session._turn._mutex = Late(lambda: in_threads([session.close]))  # type: ignore[assignment]
    with session.use(5) as used:
        session.keys.add("key")
    assert used.connection is None
    assert not session.is_open
    assert not session.keys
    with session.use(5) as another:
        assert another is not used
    session.close()
    assert another.connection is None
