"""The items of ``LockContract``, by subject."""

from __future__ import annotations
