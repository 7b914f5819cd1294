"""Outcomes leave in the order given, whichever thread settles them, and in whatever order."""

from __future__ import annotations

import threading
import time

import pytest

from django_outbox_lock.backends.publishers.inflight import Batch
from django_outbox_lock.exceptions import TransportDown
from django_outbox_lock.outcomes import Outcome, Retry, Sent


def give_up() -> TransportDown:
    return TransportDown("too late")


def test_outcomes_wait_for_the_earlier_ones() -> None:
    batch = Batch(3)
    later, first, last = Sent(), Retry("first"), Sent()
    batch.settle(1, later)
    settled: list[Outcome] = []
    reader = threading.Thread(target=lambda: settled.extend(batch.outcomes(10, give_up)))
    reader.start()
    batch.settle(2, last)
    assert settled == []
    batch.settle(0, first)
    reader.join(10)
    assert settled == [first, later, last]


def test_failure_comes_after_what_was_decided() -> None:
    batch = Batch(3)
    batch.settle(0, Sent())
    batch.settle(2, Sent())
    batch.fail(TransportDown("cut"))
    outcomes = batch.outcomes(10, give_up)
    assert next(outcomes) == Sent()
    with pytest.raises(TransportDown, match="cut"):
        next(outcomes)


def test_failure_wakes_who_waits() -> None:
    batch = Batch(1)
    threading.Timer(0.05, batch.fail, [TransportDown("cut")]).start()
    began = time.monotonic()
    with pytest.raises(TransportDown, match="cut"):
        next(batch.outcomes(30, give_up))
    assert time.monotonic() - began < 10


def test_wait_is_bounded_for_each_outcome() -> None:
    batch = Batch(2)
    batch.settle(0, Sent())
    outcomes = batch.outcomes(0.05, give_up)
    assert next(outcomes) == Sent()
    with pytest.raises(TransportDown, match="too late"):
        next(outcomes)
