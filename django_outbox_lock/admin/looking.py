"""Asks each database for its holders without letting a page wait for one that does not answer."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from django.db import connections
from django.utils.translation import gettext

from django_outbox_lock import registry
from django_outbox_lock.clock import ServerTime, to_datetime
from django_outbox_lock.errortext import clean
from django_outbox_lock.holder import Holder, LockState
from django_outbox_lock.locking import locks
from django_outbox_lock.models import Lock
from django_outbox_lock.steady import time

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

logger = logging.getLogger("django_outbox_lock.admin")

LIMIT = 2.0


@dataclass(slots=True)
class Look:
    """What one database showed. ``now`` is its clock; ``problem`` says why it is not verified."""

    alias: str
    holders: Sequence[Holder] = ()
    now: dt.datetime | None = None
    problem: str = ""
    foreign: list[Holder] = field(default_factory=list)


class _Asking(threading.Thread):
    """A question on connections of its own, which may be left behind when it takes too long."""

    def __init__(self, alias: str) -> None:
        super().__init__(name=f"outbox-admin-{alias}", daemon=True)
        self.look = Look(alias)

    def run(self) -> None:
        try:
            ask(self.look)
        finally:
            connections.close_all()  # this thread's


_unanswered: dict[str, _Asking] = {}


def look_at(aliases: Sequence[str], limit: float = LIMIT) -> list[Look]:
    """What the databases show within ``limit`` seconds, all together."""
    give_up = time.monotonic() + limit
    asked = [(alias, _start(alias)) for alias in aliases]
    return [_answer(alias, asking, give_up) for alias, asking in asked]


def ask(look: Look) -> None:
    """Read the registry, then what the lock store shows of it; never raises."""
    try:
        look.holders = [_unverified(row) for row in registry.holders(connections[look.alias])]
        look.now = _server_time(look.alias)
        joined = locks[look.alias].holders()
    except Exception as error:  # whatever a driver or a store raises, the page is to say it
        logger.warning("The locks of %r could not be verified.", look.alias, exc_info=error)
        look.problem = clean(str(error)) or type(error).__name__
        return
    look.holders = [row for row in joined if row.state is not LockState.FOREIGN]
    look.foreign = [row for row in joined if row.state is LockState.FOREIGN]


def _start(alias: str) -> _Asking | None:
    """None where a second connection cannot be had: SQLite, which has no network to wait for."""
    if not connections[alias].features.test_db_allows_multiple_connections:
        return None
    earlier = _unanswered.get(alias)
    if earlier is not None and earlier.is_alive():
        return earlier  # one thread at most waits for a database that does not answer
    asking = _Asking(alias)
    asking.start()
    return asking


def _answer(alias: str, asking: _Asking | None, give_up: float) -> Look:
    if asking is None:
        look = Look(alias)
        ask(look)
        return look
    asking.join(max(0.0, give_up - time.monotonic()))
    if not asking.is_alive():
        return asking.look
    _unanswered[alias] = asking
    late = gettext("no answer within %(limit)s s") % {"limit": f"{LIMIT:g}"}
    # A copy: the thread may still write into its own.
    return Look(alias, list(asking.look.holders), asking.look.now, late)


def _server_time(alias: str) -> dt.datetime | None:
    now = Lock.objects.using(alias).values_list(ServerTime())[:1]
    return next((to_datetime(microseconds) for (microseconds,) in now), None)


def _unverified(row: Holder) -> Holder:
    held = row.state is LockState.HELD
    return replace(row, state=LockState.UNVERIFIED) if held else row
