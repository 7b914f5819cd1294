"""Tables on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils import timezone

from django_outbox_lock.holder import LockState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_outbox_lock.holder import Holder

HEADINGS = ("RESOURCE", "STATE", "TOKEN", "HOLDER", "SINCE", "LEASE", "BACKEND")


def holders_table(holders: Sequence[Holder]) -> str:
    """Who holds what, a line for each resource."""
    return table([HEADINGS, *map(_row, holders)])


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """The cells in columns, as wide as they need to be, each row on one line."""
    rows = [tuple(map(_printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _printable(cell: str) -> str:
    """A name may have whatever it likes, and a terminal obeys some of that."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in cell)


def _row(holder: Holder) -> tuple[str, ...]:
    who = f"{holder.host} pid {holder.pid or '?'} {holder.application}".strip()
    return (
        holder.resource,
        holder.state.value,
        str(holder.token),
        f"last: {who}" if holder.state is LockState.FREE and holder.host else who,
        f"{holder.acquired_at:%Y-%m-%d %H:%M:%S}" if holder.acquired_at else "-",
        _lease(holder),
        holder.backend,
    )


def _lease(holder: Holder) -> str:
    if holder.state is LockState.FREE:
        return "-"
    if holder.expires_at is None:
        return "session-bound"
    return f"{(holder.expires_at - timezone.now()).total_seconds():+.0f} s"
