"""Whoever reads the log hears what failed, and why."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError

from django_outbox_lock.exceptions import TransportDown
from django_outbox_lock.models import TopicState
from django_outbox_lock.outcomes import Rejected, Retry

if TYPE_CHECKING:
    import pytest

    from django_outbox_lock.envelope import Envelope
    from tests.engines.conftest import Outbox


def said(log: pytest.LogCaptureFixture, level: int) -> list[str]:
    """What the engines have said at this level since it was asked last."""
    records = [r for r in log.records if r.levelno == level and r.name.endswith("engines")]
    log.clear()
    return [record.getMessage() for record in records]


def test_a_death_is_told_with_its_reason(
    outbox: Outbox, package_log: pytest.LogCaptureFixture
) -> None:
    outbox.write(1, 2)
    outbox.behave = lambda _: Rejected("no such\naccount")
    outbox.sweeper().tick()
    (line,) = said(package_log, logging.WARNING)
    number = outbox.row(1).pk
    words = f"The first, number {number}: rejected: no such account"
    assert line == f"Dead messages on 'default': 2. {words}"


def test_a_retry_is_told_with_its_reason(
    outbox: Outbox, package_log: pytest.LogCaptureFixture
) -> None:
    outbox.write(1)
    outbox.behave = lambda _: Retry("busy")
    outbox.sweeper().tick()
    told = said(package_log, logging.INFO)
    assert any(line.endswith(f"The first, number {outbox.row(1).pk}: busy") for line in told)


def test_a_topic_without_a_route_is_told_once(
    outbox: Outbox, package_log: pytest.LogCaptureFixture
) -> None:
    outbox.configure(ROUTES={"t": "default"})
    sweeper = outbox.sweeper()
    for payload in (1, 2):
        outbox.write(payload, topic="u")
        sweeper.tick()
    (line,) = said(package_log, logging.WARNING)
    assert line == (
        "The messages of topic 'u' on 'default' wait: No route leads from here for this topic."
    )


def test_an_outage_is_told_when_it_begins_and_when_it_is_over(
    outbox: Outbox, package_log: pytest.LogCaptureFixture
) -> None:
    def down(envelope: Envelope) -> Any:
        raise TransportDown("no route to amqp://user:secret@broker")

    outbox.write(1)
    outbox.behave = down
    sweeper = outbox.sweeper()
    for _ in range(2):
        sweeper.tick()
        TopicState.objects.update(open_until=1)
    (line,) = said(package_log, logging.WARNING)
    assert line.startswith("The messages of topic 't' on 'default' wait: ")
    assert "secret" not in line
    outbox.behave = None
    for _ in range(3):
        sweeper.tick()
    assert outbox.sent == [1]
    assert said(package_log, logging.WARNING) == ["The messages of topic 't' on 'default' go on."]


def test_a_trouble_with_the_database_is_one_line(
    outbox: Outbox, package_log: pytest.LogCaptureFixture
) -> None:
    """PostgreSQL shows the statement below the error, and points at a place in it."""
    error = DatabaseError('relation "x" does not exist\nLINE 1: SELECT x\n               ^\n')
    outbox.sweeper()._report(error)
    (line,) = said(package_log, logging.WARNING)
    words = 'DatabaseError: relation "x" does not exist LINE 1: SELECT x ^'
    assert line == f"OutboxSweeper on 'default': {words}"
