"""The registry joined with what a store shows: pure, so that every state can be had."""

from __future__ import annotations

import datetime as dt

import pytest

from django_outbox_lock import registry
from django_outbox_lock.holder import Holder, LockState
from django_outbox_lock.registry import Live, View

VIEW = View("postgresql", store_key=lambda name: f"key of {name}", arbiter=lambda _: "postgresql:1")


def holder(state: LockState = LockState.HELD, **changes: object) -> Holder:
    given = {
        "resource": "nightly",
        "backend": "postgresql:1",
        "session_id": "7",
        **changes,
        "state": state,
    }
    return Holder(**given)  # type: ignore[arg-type]


def states(rows: list[Holder], live: list[Live] | None) -> list[str]:
    return [row.state for row in registry.join(rows, live, VIEW)]


def test_both_say_held() -> None:
    assert states([holder()], [Live("key of nightly", "7")]) == ["held"]


def test_a_store_without_sessions() -> None:
    assert states([holder()], [Live("key of nightly")]) == ["held"]


def test_the_store_knows_nothing_of_it() -> None:
    assert states([holder()], []) == ["stale"]


def test_somebody_else_has_it() -> None:
    assert states([holder()], [Live("key of nightly", "8")]) == ["stale", "foreign"]


@pytest.mark.parametrize("state", [LockState.FREE, LockState.EXPIRED])
def test_a_row_that_nobody_holds(state: LockState) -> None:
    assert states([holder(state)], []) == [state]
    assert states([holder(state)], [Live("key of nightly", "7")]) == [state, "foreign"]


def test_a_lock_that_no_row_accounts_for() -> None:
    (row,) = registry.join([], [Live("42", "7", "10.0.0.1", "psql", 4711)], VIEW)
    assert (row.state, row.resource, row.backend) == (LockState.FOREIGN, "42", "postgresql")
    assert (row.host, row.application, row.pid) == ("10.0.0.1", "psql", 4711)


def test_a_store_that_could_not_be_asked() -> None:
    rows = [holder(), holder(LockState.FREE), holder(LockState.EXPIRED)]
    assert states(rows, None) == ["not verified", "free", "expired"]


def test_another_backends_row() -> None:
    """Its lease tells by itself; a session-bound one only its own store could verify."""
    soon = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    assert states([holder(backend="mysql:x")], []) == ["not verified"]
    assert states([holder(backend="lease", expires_at=soon)], []) == ["held"]


def test_a_holder_in_one_line() -> None:
    """For errors and logs: who, since when, until when."""
    moment = dt.datetime(2030, 1, 1, 12, 0, 5, tzinfo=dt.UTC)
    line = str(holder(host="web-1", pid=7, application="manage.py x", token=3, acquired_at=moment))
    assert line == "manage.py x (pid 7) on web-1 since 2030-01-01 12:00:05, session-bound, token 3"
    assert "until 12:00:05" in str(holder(expires_at=moment))
    assert "a process (pid None) on unknown host" in str(holder())
