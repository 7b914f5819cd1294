"""Times as people read them."""

from __future__ import annotations

import datetime as dt

import pytest
from django.utils import timezone

from django_outbox_lock.admin import shown
from django_outbox_lock.clock import SECOND, to_microseconds
from django_outbox_lock.querysets.parking import behind_key, behind_topic

NOW = to_microseconds(dt.datetime(2026, 11, 30, 12, 0, 0, 999_999, tzinfo=dt.UTC))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (42, "in 42 s"),
        (0, "in 0 s"),
        (-18, "18 s ago"),
        (61, "in 1 min"),
        (-59 * 60, "59 min ago"),
        (47 * 3600, "in 47 h"),
        (-50 * 3600, "2 days ago"),
        (400 * 86400, "in 400 days"),
    ],
)
def test_distances_have_one_unit(seconds: int, text: str) -> None:
    assert shown.distance(seconds * SECOND) == text


@pytest.mark.parametrize(
    ("due_at", "text"),
    [
        (None, shown.NOTHING),
        (NOW - 5 * SECOND, "now"),
        (NOW, "now"),
        (behind_key(-1), "parked: its key waits"),
        (behind_topic("order.paid"), "parked: its topic waits"),
    ],
)
def test_due_says_now_or_why_not(due_at: int | None, text: str) -> None:
    assert shown.due(due_at, NOW) == text


def test_due_later_has_the_moment_on_hovering() -> None:
    text = shown.due(NOW + 42 * SECOND, NOW)
    assert ">in 42 s<" in text
    assert 'title="2026-11-30 12:00:42"' in text


def test_moments_are_in_the_current_time_zone() -> None:
    with timezone.override("Asia/Tokyo"):
        assert shown.moment(NOW) == "2026-11-30 21:00:00"
    assert shown.moment(None) == shown.NOTHING


def test_a_moment_that_no_clock_here_can_tell_is_in_utc() -> None:
    """A row that was written by hand must not cost the whole page."""
    last = dt.datetime.max.replace(tzinfo=dt.UTC)
    with timezone.override("Asia/Tokyo"):
        assert shown.moment(last) == "9999-12-31 23:59:59"


@pytest.mark.parametrize("beyond", [2**63 - 1, -(2**63)])
def test_a_moment_that_no_calendar_has_is_its_number(beyond: int) -> None:
    assert shown.moment(beyond) == str(beyond)


@pytest.mark.parametrize("text", ["short", "x" * shown.SHORT])
def test_short_texts_stay(text: str) -> None:
    assert shown.shortened(text) == text


def test_long_texts_are_whole_on_hovering() -> None:
    text = shown.shortened("<" * 100)
    assert "&lt;" * 59 + "…" in text
    assert f'title="{"&lt;" * 100}"' in text
