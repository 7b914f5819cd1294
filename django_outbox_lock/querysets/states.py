"""The numbers of a message's states, for statements; ``OutboxMessage.State`` has their names."""

from __future__ import annotations

OUTSTANDING, DISPATCHED, DEAD = 10, 20, 30
