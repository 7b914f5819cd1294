"""What every check says: an id that is never used again, a hint, and an anchor in the docs."""

from __future__ import annotations

from django.core import checks

from django_outbox_lock import conf
from django_outbox_lock.exceptions import InvalidSettings
from django_outbox_lock.models import (
    ArchivedMessage,
    Hold,
    Lock,
    OutboxMessage,
    ProcessingLog,
    TopicState,
)

LABEL = "django_outbox_lock"  # of the ids, always
APP = OutboxMessage._meta.app_label  # which a project may have changed

# Written in one transaction by an engine that has one connection.
TOGETHER = (OutboxMessage, Lock, Hold, TopicState)
ALL = (*TOGETHER, ArchivedMessage, ProcessingLog)

Messages = list[checks.CheckMessage]


def an_error(number: int, text: str, hint: str) -> checks.CheckMessage:
    return checks.Error(text, hint=_anchored(hint, f"e{number:03}"), id=f"{LABEL}.E{number:03}")


def a_warning(number: int, text: str, hint: str) -> checks.CheckMessage:
    return checks.Warning(text, hint=_anchored(hint, f"w{number:03}"), id=f"{LABEL}.W{number:03}")


def _anchored(hint: str, anchor: str) -> str:
    return f"{hint} (docs: checks.html#{anchor})"


def outbox_aliases() -> tuple[str, ...]:
    try:
        return conf.outbox_aliases()
    except InvalidSettings:  # E001 tells
        return ()
