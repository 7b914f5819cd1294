"""Times, states and texts as people read them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from django.utils import formats, timezone
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_outbox_lock.clock import SECOND, to_datetime
from django_outbox_lock.querysets.parking import BEHIND_TOPIC, PARKED

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from django.db.models import Choices
    from django.utils.functional import _StrPromise

NOTHING = "\N{EN DASH}"
SHORT = 60
_UNITS = ((60, 1), (60 * 60, 60), (48 * 60 * 60, 60 * 60))
_DAY = 24 * 60 * 60


def badge(kind: str, text: str | _StrPromise) -> str:
    """A state as a word in a coloured frame; ``kind`` chooses the colour."""
    return format_html('<span class="outbox-badge outbox-{}">{}</span>', kind, text)


def choice(kinds: Mapping[Any, str], choices: type[Choices], value: object) -> str:
    """A state of ``choices`` in its colour; one that this version does not know, as stored."""
    if value not in choices.values:
        return badge("bad", str(value))
    chosen: Any = choices(value)
    return badge(kinds[chosen], chosen.label)


def quiet(text: str) -> str:
    """What is of less interest."""
    return format_html('<span class="quiet">{}</span>', text)


def code(text: object) -> str:
    """An id, key or number, in a font that tells its characters apart."""
    return format_html('<span class="outbox-code">{}</span>', text)


def shortened(text: str, length: int = SHORT) -> str:
    """One line, which breaks anywhere if it is long; the whole text is shown on hovering."""
    if len(text) <= length:
        return text
    return format_html('<span class="outbox-long" title="{}">{}…</span>', text, text[: length - 1])


def moment(when: dt.datetime | int | None) -> str:
    """To the second, in the current time zone; a number is microseconds since 1970 UTC.

    One that no calendar has, as only a hand can write it, is shown as the number.
    """
    if when is None:
        return NOTHING
    if isinstance(when, int):
        try:
            when = to_datetime(when)
        except OverflowError:
            return str(when)
    if timezone.is_aware(when):
        with contextlib.suppress(OverflowError):  # the last hours of the year 9999
            when = timezone.localtime(when)
    return formats.date_format(when, "Y-m-d H:i:s")


def distance(microseconds: int) -> str:
    """How far away a moment is: "in 42 s", "18 s ago"."""
    amount = _amount(abs(microseconds) // SECOND)
    if microseconds < 0:
        return gettext("%(amount)s ago") % {"amount": amount}
    return gettext("in %(amount)s") % {"amount": amount}


def when(at: int | None, now: int) -> str:
    """The distance from ``now``, with the moment on hovering."""
    if at is None:
        return NOTHING
    return format_html('<span title="{}">{}</span>', moment(at), distance(at - now))


def due(due_at: int | None, now: int) -> str:
    """When a message may be sent: now, in a while, or parked and for what."""
    if due_at is None:
        return NOTHING
    if due_at >= PARKED:
        reason = _("its topic waits") if due_at >= BEHIND_TOPIC else _("its key waits")
        return gettext("parked: %(reason)s") % {"reason": reason}
    return when(due_at, now) if due_at > now else gettext("now")


def size(count: int) -> str:
    """A number of bytes."""
    return ngettext("%(count)s byte", "%(count)s bytes", count) % {"count": f"{count:,}"}


def _amount(amount: int) -> str:
    for below, unit in _UNITS:
        if amount < below:
            name = {1: gettext("s"), 60: gettext("min"), 3600: gettext("h")}[unit]
            return f"{amount // unit} {name}"
    days = amount // _DAY
    return ngettext("%(count)s day", "%(count)s days", days) % {"count": days}
