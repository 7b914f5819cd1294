"""UUID version 7, as RFC 9562 has it."""

from __future__ import annotations

import time
import uuid

from django_outbox_lock import keys
from django_outbox_lock.ids import uuid7


def test_version_variant_and_time() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid7()
    after = time.time_ns() // 1_000_000
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    # The stdlib's own may be ahead of the clock when many are made in one millisecond.
    assert before <= made.int >> 80 <= after + 1


def test_no_two_are_the_same_and_slots_are_spread() -> None:
    made = [uuid7() for _ in range(20_000)]
    assert len(set(made)) == len(made)
    assert len({keys.slot(None, message_id) for message_id in made}) > 0.95 * keys.SLOTS
