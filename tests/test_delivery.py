"""The identity of a delivery is the same in every process and version."""

from __future__ import annotations

import hashlib

import pytest

from django_outbox_lock import keys
from django_outbox_lock.delivery import Delivery
from tests.deliveries import envelope


def test_an_envelope_is_known_by_its_message_id() -> None:
    message = envelope(correlation_id="flow-7")
    delivery = Delivery.of("billing", message, None)
    assert delivery.key == str(message.message_id)
    assert delivery.entry_hash == keys.entry_hash("billing", delivery.key)
    assert delivery.entry_hash == Delivery.of("billing", delivery.key, None).entry_hash
    assert delivery.body_digest == hashlib.sha256(message.body).hexdigest()
    assert delivery.correlation_id == "flow-7"
    assert Delivery.of("billing", message, "other").correlation_id == "other"


def test_a_string_is_taken_as_it_is() -> None:
    composed, decomposed = "é", "e\u0301"
    assert Delivery.of("billing", composed, None).key == composed
    assert (
        len({Delivery.of("billing", one, None).entry_hash for one in (composed, decomposed)}) == 2
    )
    assert Delivery.of("billing", "m-1", None).body_digest == ""


def test_the_locks_names_are_few_and_golden() -> None:
    assert Delivery.of("billing", "m-1", None).lock_name == "idempotency-1021"
    names = {Delivery.of("billing", str(n), None).lock_name for n in range(20_000)}
    assert len(names) == 1024


def test_a_bad_correlation_id_is_named() -> None:
    with pytest.raises(ValueError, match="correlation_id must have 1 to 200 characters, not 201"):
        Delivery.of("billing", "m-1", "c" * 201)
