"""Delays double, stop at the cap, and never shrink by more than the jitter."""

from __future__ import annotations

import pytest

from django_outbox_lock.retry import Backoff


def test_delays_double_up_to_the_cap() -> None:
    backoff = Backoff(base=1.5, cap=20, jitter=0)
    assert [backoff.delay(attempt) for attempt in (1, 2, 3, 4, 5, 9, 100_000)] == [
        1.5,
        3.0,
        6.0,
        12.0,
        20.0,
        20.0,
        20.0,
    ]


def test_jitter_spreads_and_shortens_by_its_share_at_most() -> None:
    drawn = {Backoff(base=10, cap=10, jitter=0.5).delay(1) for _ in range(200)}
    assert len(drawn) > 100
    assert min(drawn) >= 5
    assert max(drawn) <= 10


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base": 0}, "base must be above 0"),
        ({"base": -1}, "base must be above 0"),
        ({"base": float("nan")}, "base must be above 0"),
        ({"base": 5, "cap": 4}, r"at most cap \(4\)"),
        ({"jitter": 1.5}, "jitter must be between 0 and 1, not 1.5"),
        ({"jitter": -0.1}, "jitter must be between 0 and 1"),
    ],
)
def test_impossible_delays_are_refused(options: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Backoff(**options)
