"""The tables of ``manage.py outbox``."""

from __future__ import annotations

from django_outbox_lock.holder import Holder, LockState
from django_outbox_lock.management.commands._tables import holders_table


def test_a_name_cannot_break_the_table_or_steer_the_terminal() -> None:
    """It is shown with escapes: an operator may have to type it."""
    names = ("two\nlines", "red\x1b[31m", "caf\u00e9 at night", "\u202ebackwards")
    table = holders_table([Holder(name, LockState.FREE) for name in names])
    heading, *rows = table.split("\n")
    assert [row[: heading.index("STATE")].rstrip() for row in rows] == [
        r"two\nlines",
        r"red\x1b[31m",
        "caf\u00e9 at night",
        r"\u202ebackwards",
    ]
