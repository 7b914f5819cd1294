"""Reads a page: bounded in rows and bytes, and not stopped by a row that cannot be read."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django_outbox_lock import dberrors
from django_outbox_lock.errortext import describe
from django_outbox_lock.models import OutboxMessage

if TYPE_CHECKING:
    from django_outbox_lock.engines.options import SweeperOptions
    from django_outbox_lock.querysets import MessageQuerySet
    from django_outbox_lock.querysets.page import PageRow

logger = logging.getLogger("django_outbox_lock.engines")


@dataclass(slots=True)
class Page:
    """``rows`` in the order of writing; ``bodies`` and ``errors`` by id.

    ``more`` may be due; ``cut``: not all that was read fitted in.
    """

    rows: list[PageRow]
    more: bool
    cut: bool = False
    bodies: dict[int, bytes] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)


def read_page(using: str, options: SweeperOptions, limit: int) -> Page:
    """At most ``limit`` due rows with at most ``batch_bytes`` of bodies, or a single longer one."""
    messages: MessageQuerySet = OutboxMessage.objects.using(using)
    rows, errors = _rows(messages, limit, options.inline_bytes)
    page = Page(sorted(rows), len(rows) == limit, errors=errors)
    if any(row.size > options.inline_bytes for row in page.rows):
        _bound(page, messages, options)
    return page


def _bound(page: Page, messages: MessageQuerySet, options: SweeperOptions) -> None:
    """Fetch the long bodies as far as they fit; what does not fit is left for the next page."""
    total, kept = 0, 0
    for row in page.rows:
        total += row.size
        if kept and total > options.batch_bytes:
            page.more = page.cut = True
            break
        kept += 1
    page.rows = page.rows[:kept]
    long = [row.id for row in page.rows if row.size > options.inline_bytes]
    page.bodies = messages.bodies(long) if long else {}


def _rows(
    messages: MessageQuerySet, limit: int, inline_bytes: int
) -> tuple[list[PageRow], dict[int, str]]:
    try:
        return messages.page(limit, inline_bytes), {}
    except Exception as error:
        # A damaged value (of an id, a time, a text) makes the driver or Django give up the page.
        if dberrors.is_connection_lost(error) or dberrors.is_transient(error):
            raise
        rows, errors = _one_by_one(messages, limit, inline_bytes)
        if not errors:
            raise
        logger.warning("%s rows of a page cannot be read: %s", len(errors), describe(error))
        return rows, errors


def _one_by_one(
    messages: MessageQuerySet, limit: int, inline_bytes: int
) -> tuple[list[PageRow], dict[int, str]]:
    rows: list[PageRow] = []
    errors: dict[int, str] = {}
    for message_id in messages.due_ids(limit):
        row = messages.filter(id=message_id)
        try:
            rows += row.page(1, inline_bytes)
        except Exception as error:  # noqa: BLE001 (of whatever kind: it is the row's)
            errors[message_id] = describe(error)
            rows += row.page(1, inline_bytes, damaged=True)
    return rows, errors
