"""Whether a connection is inside somebody's transaction."""

from __future__ import annotations

from django.db import connections


def in_transaction(using: str) -> bool:
    """True inside a transaction that the application itself has opened on the alias ``using``.

    The blocks that a ``TestCase`` wraps round each test do not count, as with ``durable=True``;
    a connection whose autocommit is off is always inside one. The answer never opens a connection.
    """
    connection = connections[using]
    if connection.in_atomic_block:
        blocks = connection.atomic_blocks
        return any(not getattr(block, "_from_testcase", False) for block in blocks)
    if connection.connection is None:
        return not connection.settings_dict["AUTOCOMMIT"]
    return not connection.autocommit


def aliases_in_transaction() -> list[str]:
    """The aliases on which the current thread is inside a transaction."""
    return [c.alias for c in connections.all(initialized_only=True) if in_transaction(c.alias)]
