"""Signals, sent with ``send_robust``: a receiver that raises is logged and stops nobody.

Lock signals have the backend's class as sender and carry ``handle``, ``resource``, ``token`` and
``using``; ``lock_lost`` adds ``reason``, ``lock_forced`` carries ``forced_by`` in place of the
handle. No receiver runs inside a transaction that this package has opened.
"""

from __future__ import annotations

from django.dispatch import Signal

lock_obtained = Signal()
lock_released = Signal()
lock_lost = Signal()
lock_forced = Signal()
