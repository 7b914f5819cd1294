"""Tests of a project that freeze the time: locks live by another clock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from django_outbox_lock import LockTimeout, lock, locks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import WaitUntil

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"])


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    locks.close()


def freeze(monkeypatch: pytest.MonkeyPatch) -> None:
    """As freezegun does it: the monotonic clock stands still, years away."""
    monkeypatch.setattr(time, "monotonic", lambda: 1_900_000_000.0)


def test_a_lock_that_is_held_is_kept_and_a_wait_for_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with lock("nightly-report") as handle, monkeypatch.context() as frozen:
        freeze(frozen)
        handle.progress()
        with pytest.raises(LockTimeout):
            lock("nightly-report", timeout=0.1).__enter__()
        handle.ensure_held()


def test_a_lock_that_was_held_meanwhile_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    """Nor a session, for which the removal of the test database would wait in vain."""
    with monkeypatch.context() as frozen:
        freeze(frozen)
        with lock("nightly-report"):
            pass
    keeper = locks["default"]._keeper
    assert abs(keeper._used_at - time.monotonic()) < 60
    wait_until(lambda: keeper._renewer is None)
