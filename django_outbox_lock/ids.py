"""Identities of messages: UUID version 7 (RFC 9562), which says who, never in which order."""

from __future__ import annotations

import os
import sys
import time
import uuid

if sys.version_info >= (3, 14):
    from uuid import uuid7
else:

    def uuid7() -> uuid.UUID:
        """48 bits of milliseconds since 1970, then 74 bits of chance."""
        milliseconds = time.time_ns() // 1_000_000
        value = milliseconds << 80 | int.from_bytes(os.urandom(10), "big")
        version = value & ~(0xF << 76) | 0x7 << 76
        return uuid.UUID(int=version & ~(0x3 << 62) | 0x2 << 62)


__all__ = ["uuid7"]
