"""What operators can do to selected rows, and the words for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.utils.functional import _StrPromise


@dataclass(frozen=True, slots=True)
class Verb:
    """An action: which rows it concerns (by index), what it does, and how that is told.

    ``act`` takes the rows and how many it may change at most; ``noun`` is for the admin's log.
    """

    action: str
    concerned: Callable[[Any], Any]
    act: Callable[[Any, int], int]
    title: _StrPromise
    question: Callable[[int], str]
    none: _StrPromise
    effect: _StrPromise
    button: _StrPromise
    done: Callable[[int], str]
    log: str
    noun: str = "messages"
    harmless: bool = False


REQUEUE = Verb(
    action="requeue",
    concerned=lambda rows: rows.dead(),
    act=lambda rows, limit: rows.requeue(limit=limit),
    title=_("Requeue messages"),
    question=lambda count: ngettext(
        "%(count)s dead message is to be requeued.",
        "%(count)s dead messages are to be requeued.",
        count,
    ),
    none=_("None of the selected messages is dead: there is nothing to requeue."),
    effect=_(
        "They become due now with all attempts left, and the sweeper sends them, also those that "
        "have expired: an expiry that has passed is removed. "
        "A dead message may have arrived after all: consumers that use the processing log "
        "notice a second delivery."
    ),
    button=_("Requeue"),
    done=lambda count: ngettext(
        "%(count)s message was requeued: the sweeper sends it.",
        "%(count)s messages were requeued: the sweeper sends them.",
        count,
    ),
    log="Requeued.",
    harmless=True,
)
KILL = Verb(
    action="kill",
    concerned=lambda rows: rows.filter(due_at__isnull=False),
    act=lambda rows, limit: rows.kill(limit=limit),
    title=_("Mark messages dead"),
    question=lambda count: ngettext(
        "%(count)s outstanding message is to be marked dead.",
        "%(count)s outstanding messages are to be marked dead.",
        count,
    ),
    none=_("None of the selected messages is outstanding: there is nothing to mark dead."),
    effect=_(
        "They are not sent any more, unless they are requeued. One that is being sent at this "
        "moment may still arrive. A dead message that held its key goes on holding it until the "
        "key is let go, unless the policy of its topic is to skip."
    ),
    button=_("Mark dead"),
    done=lambda count: ngettext(
        "%(count)s message was marked dead.", "%(count)s messages were marked dead.", count
    ),
    log="Marked dead.",
)
_OVERTAKE = _(
    "The messages behind them come back and are sent, in order. The dead ones stay dead: if one is "
    "requeued later, it arrives after those that have overtaken it."
)


def _question(count: int) -> str:
    return ngettext(
        "%(count)s key is to go on without its dead message.",
        "%(count)s keys are to go on without their dead messages.",
        count,
    )


def _done(count: int) -> str:
    return ngettext(
        "%(count)s key goes on: the sweeper sends what waited.",
        "%(count)s keys go on: the sweeper sends what waited.",
        count,
    )


LET_GO = Verb(
    action="let_go",
    concerned=lambda rows: rows.dead().holding(),
    act=lambda rows, limit: rows.let_go(limit=limit),
    title=_("Let keys go on"),
    question=_question,
    none=_("None of the selected messages is dead and holds its key: nothing waits for them."),
    effect=_OVERTAKE,
    button=_("Let go"),
    done=_done,
    log="Let the key go.",
)
LET_HOLDS_GO = Verb(
    action="let_go",
    concerned=lambda rows: rows.stuck(),
    act=lambda rows, limit: rows.let_keys_go(limit=limit),
    title=_("Let keys go on"),
    question=_question,
    none=_("None of the selected holds has a dead or deleted message at its head."),
    effect=_OVERTAKE,
    button=_("Let go"),
    done=_done,
    log="Let the key go.",
    noun="keys",
)
