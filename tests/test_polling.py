"""Pauses, and results that nobody is there to take."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from django_outbox_lock.polling import HandOver, Polling, in_background

if TYPE_CHECKING:
    from tests.conftest import WaitUntil


def test_pauses_grow_and_end_in_time() -> None:
    polling, pauses = Polling(0.3), []
    while not polling.is_over:
        pauses.append(polling.pause())
        time.sleep(pauses[-1])
    assert all(0 <= pause <= 0.3 for pause in pauses)
    assert 3 <= len(pauses) <= 20


def test_no_time_is_one_try() -> None:
    assert Polling(0).is_over
    assert Polling(0).pause() == 0


@pytest.mark.parametrize("wrong", [-1, float("nan")])
def test_a_wrong_timeout_is_named(wrong: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        Polling(wrong)


def test_a_pause_is_at_most_a_second() -> None:
    polling = Polling(1e9)
    assert max(polling.pause() for _ in range(50)) <= 1


def test_a_result_that_is_taken() -> None:
    disposed: list[str] = []
    assert HandOver(lambda: "lock", disposed.append).run() == "lock"
    assert disposed == []


def test_a_result_that_comes_too_late() -> None:
    disposed: list[str] = []
    late: HandOver[str] = HandOver(lambda: "lock", disposed.append)
    late.abandon()
    assert late.run() is None
    assert disposed == ["lock"]


def test_a_result_that_was_left_lying(wait_until: WaitUntil) -> None:
    """The thread was done, the coroutine was cancelled before it took what was made."""
    disposed: list[str] = []
    left = HandOver(lambda: "lock", disposed.append)
    assert left.run() == "lock"
    left.abandon()
    wait_until(lambda: disposed == ["lock"])


def test_nothing_to_dispose_of() -> None:
    empty: HandOver[str] = HandOver(lambda: None, lambda _: pytest.fail("disposed"))
    assert empty.run() is None
    empty.abandon()


def test_in_background() -> None:
    done = threading.Event()
    in_background(done.set, "test-background")
    assert done.wait(10)
