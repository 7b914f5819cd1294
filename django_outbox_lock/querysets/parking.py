"""Due times beyond any clock: which row is parked, why, and for what."""

from __future__ import annotations

from django_outbox_lock.keys import parking_hash, topic_id

# 2^60 µs are 36,000 years. Below: the reason in the next bits, the key or topic in the last 48.
PARKED = 1 << 60
_REASON = 1 << 48
BEHIND_KEY = PARKED
BEHIND_TOPIC = PARKED + _REASON


def behind_key(order_key: int) -> int:
    """Due time of a row that waits for an earlier message of its key."""
    return BEHIND_KEY + parking_hash(order_key)


def behind_topic(topic: str) -> int:
    """Due time of a row whose topic's breaker is open, or which has no route."""
    return BEHIND_TOPIC + parking_hash(int(topic_id(topic)[:16], 16))
