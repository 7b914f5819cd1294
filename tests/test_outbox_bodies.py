"""What was put in comes out, byte for byte, on every database."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import transaction

from django_outbox_lock.models import OutboxMessage
from django_outbox_lock.outbox import Draft, publish, publish_many
from tests.test_outbox import body_of

MEGABYTES = 5 * 1024 * 1024


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("payload", "body"),
    [
        (b"", b""),
        (bytes(range(256)), bytes(range(256))),
        (b"\0" * 1000, b"\0" * 1000),
        (b"'\"\\%s%%\r\n", b"'\"\\%s%%\r\n"),
        (None, b"null"),
        (0, b"0"),
        ([], b"[]"),
        ({}, b"{}"),
        ("a\0b", rb'"a\u0000b"'),
        ("\U0001f600 %s 'é\\", '"\U0001f600 %s \'é\\\\"'.encode()),
        ({"id": 2**53 + 1, "n": 10**30}, b'{"id":9007199254740993,"n":1' + b"0" * 30 + b"}"),
        ([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)], b'["2026-01-01T00:00:00.000000+00:00"]'),
    ],
)
def test_the_body_comes_back_identical(payload: object, body: bytes) -> None:
    """Cases 103 and 107, on every database."""
    with transaction.atomic():
        alone = publish("order.created", payload)
        [first, second] = publish_many([Draft("order.created", payload)] * 2)
    assert body_of(alone) == body_of(first) == body_of(second) == body


@pytest.mark.django_db
@pytest.mark.parametrize("pattern", [bytes(range(256)), b"\0", b"'"], ids=["all", "nul", "quote"])
def test_the_largest_body_goes_through(pattern: bytes) -> None:
    """Five megabytes that escaping makes twice as large, under the server's default limits."""
    body = (pattern * MEGABYTES)[:MEGABYTES]
    with transaction.atomic():
        message_id = publish("order.created", body)
    assert body_of(message_id) == body


@pytest.mark.django_db
def test_text_comes_back_identical() -> None:
    topic, key, header = "t\U0001f600é%s", "Key 'é\" ", "\U0001f600 日本語 \\ %s"
    with transaction.atomic():
        publish(topic, {}, key=key, headers={"z": header, "a": ""}, correlation_id=key)
    row = OutboxMessage.objects.get()
    assert (row.topic, row.key, row.correlation_id) == (topic, key, key)
    assert row.headers == '{"z":"\U0001f600 日本語 \\\\ %s","a":""}'


@pytest.mark.django_db
def test_the_longest_text_of_every_column_fits() -> None:
    wide = "\U0001f600"
    with transaction.atomic():
        publish(
            wide * 100,
            b"",
            key=wide * 127,
            headers={"h": "é" * 30_000},
            content_type="x" * 100,
            correlation_id=wide * 100,
            causation_id="é" * 200,
        )
    row = OutboxMessage.objects.get()
    assert (row.topic, row.key, row.causation_id) == (wide * 100, wide * 127, "é" * 200)
