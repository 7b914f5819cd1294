"""``publish``: record a message in the transaction of the business change that it announces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import router
from django.utils.asyncio import async_unsafe

from django_outbox_lock import conf
from django_outbox_lock.checked import count
from django_outbox_lock.draft import Draft, values
from django_outbox_lock.exceptions import NotInTransaction, PublishError
from django_outbox_lock.handlers import PublishOptions, publish_options
from django_outbox_lock.transactions import aliases_in_transaction, in_transaction

if TYPE_CHECKING:
    import datetime as dt
    import uuid
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Draft", "PublishOptions", "publish", "publish_many"]


def publish(
    topic: str,
    payload: object,
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    content_type: str | None = None,
    correlation_id: str | uuid.UUID | None = None,
    causation_id: str | uuid.UUID | None = None,
    available_at: dt.datetime | None = None,
    expires_at: dt.datetime | None = None,
    using: str | None = None,
) -> uuid.UUID:
    """Record a message in the current transaction and return its message id.

    ``payload``: bytes are sent as they are, with ``content_type``; anything else, a ``str``
    included, is sent as JSON. Messages of one ``topic`` and ``key`` are sent in the order of
    writing. The message is not sent before ``available_at`` and dies unsent at ``expires_at``.

    ``correlation_id`` names the flow that the message belongs to, ``causation_id`` the message
    that caused it. While a message is being handled both are taken from it unless given; else a
    new flow begins, named by the message's own id. OpenTelemetry's headers are added unless
    ``headers`` has a ``traceparent``.

    ``using`` is a database alias; without it the routers choose. Raises ``NotInTransaction``
    outside a transaction on it, ``InvalidAlias`` when there is no outbox, ``PublishError`` for an
    argument that cannot be sent, ``SynchronousOnlyOperation`` in an event loop.
    """
    draft = Draft(
        topic,
        payload,
        key=key,
        headers=headers,
        content_type=content_type,
        correlation_id=correlation_id,
        causation_id=causation_id,
        available_at=available_at,
        expires_at=expires_at,
    )
    alias = _open_outbox("publish", using)
    max_bytes = publish_options(alias).max_bytes
    return _insert([values(draft, max_bytes)], alias, 1, max_bytes)[0]


def publish_many(
    drafts: Iterable[Draft], *, using: str | None = None, batch_size: int = 1000
) -> list[uuid.UUID]:
    """Record many messages, in their order, and return their message ids in the same order.

    Nothing is written when one of them is refused. ``batch_size`` bounds the messages of one
    statement; it is cut further where the database takes fewer. Raises what ``publish`` raises.
    """
    count("batch_size", batch_size)
    alias = _open_outbox("publish_many", using)
    max_bytes = publish_options(alias).max_bytes
    rows = [_numbered(number, draft, max_bytes) for number, draft in enumerate(drafts)]
    return _insert(rows, alias, batch_size, max_bytes) if rows else []


@async_unsafe(
    "publish() cannot be called in an event loop. Put the business change and publish() together "
    "into one function with transaction.atomic(), and call that one through sync_to_async()."
)
def _open_outbox(caller: str, using: str | None) -> str:
    """The alias to write to, which has an outbox and an open transaction."""
    from django_outbox_lock.models import OutboxMessage

    alias = using or router.db_for_write(OutboxMessage)
    conf.outbox_settings(alias)
    if not in_transaction(alias):
        others = ", ".join(map(repr, aliases_in_transaction())) or "none"
        raise NotInTransaction(
            f"{caller}() was called outside a transaction on {alias!r}. Put it and the business "
            f"change into one transaction.atomic(using={alias!r}) block. "
            f"Aliases in a transaction now: {others}."
        )
    return alias


def _numbered(number: int, draft: Draft, max_bytes: int) -> dict[str, object]:
    if not isinstance(draft, Draft):
        raise PublishError(f"drafts[{number}] must be a Draft, not {type(draft).__name__}.")
    try:
        return values(draft, max_bytes)
    except PublishError as error:
        raise PublishError(f"drafts[{number}]: {error}") from error


def _insert(
    rows: Sequence[Mapping[str, object]], alias: str, batch_size: int, batch_bytes: int
) -> list[uuid.UUID]:
    from django_outbox_lock.models import OutboxMessage
    from django_outbox_lock.querysets import writing

    messages = [OutboxMessage(**row) for row in rows]
    sizes = {"batch_size": batch_size, "batch_bytes": batch_bytes}
    writing.insert(messages, list(rows[0]), alias, **sizes)
    return [message.message_id for message in messages]
