"""What the lists do to any number of selected rows, after a confirmation.

Nothing is published here: a requeued message is due, and the sweeper sends it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import Error
from django.db.models import F, Max
from django.http import HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _

from django_outbox_lock import conf
from django_outbox_lock.admin import window
from django_outbox_lock.admin.base import ModelAdmin, may
from django_outbox_lock.admin.paginator import LIMIT, BoundedPaginator
from django_outbox_lock.admin.verbs import KILL, LET_GO, LET_HOLDS_GO, REQUEUE
from django_outbox_lock.errortext import clean

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest, HttpResponse

    from django_outbox_lock.admin.verbs import Verb

logger = logging.getLogger("django_outbox_lock.admin")

CONFIRMED = "confirmed"
UP_TO = "up_to"
# Of what was selected one by one, the log names so many.
LISTED = 100
NOT_OF_THE_PAGE = _("What was selected is not on the page: nothing was done.")
_TEMPLATE = "admin/django_outbox_lock/outboxmessage/confirm.html"


class ConfirmedActions(ModelAdmin):
    """Asks before it acts, and works in batches on what the filters choose."""

    def has_requeue_permission(self, request: HttpRequest) -> bool:
        """Who may see and run the actions that let messages be sent."""
        return may(request, "requeue_outboxmessage")

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **named: Any
    ) -> HttpResponse | None:
        """Django looks for what was selected, whatever it is, and fails over what is no id."""
        selected = request.POST.getlist(ACTION_CHECKBOX_NAME)
        if None in map(window.number, selected):
            self.message_user(request, NOT_OF_THE_PAGE, messages.WARNING)
            return HttpResponseRedirect(request.get_full_path())
        return super().response_action(request, queryset, *args, **named)

    def _confirmed(
        self, request: HttpRequest, rows: QuerySet[Any], verb: Verb
    ) -> TemplateResponse | None:
        concerned = verb.concerned(rows)
        up_to = window.number(request.POST.get(UP_TO))
        if request.POST.get(CONFIRMED) and up_to is not None:
            self._act(request, concerned.filter(pk__lte=up_to), verb)
            return None
        newest = concerned.aggregate(newest=Max("pk"))["newest"]
        if newest is None:
            self.message_user(request, verb.none, messages.WARNING)
            return None
        request.current_app = self.admin_site.name
        context = self._question(request, concerned, newest, verb)
        return TemplateResponse(request, _TEMPLATE, context)

    def _question(
        self, request: HttpRequest, concerned: QuerySet[Any], newest: int, verb: Verb
    ) -> dict[str, Any]:
        counted = BoundedPaginator(concerned, 1)
        up_to = _last_of_the_oldest(concerned, newest) if counted.more else newest
        across = request.POST.get("select_across") == "1"
        selected = request.POST.getlist(ACTION_CHECKBOX_NAME)
        return {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": verb.title,
            "verb": verb,
            "harmless": verb.harmless,
            "question": verb.question(counted.count) % {"count": f"{counted.count:,}"},
            "more": counted.more,
            "limit": LIMIT,
            "across": across,
            "rows": self.opts.verbose_name_plural,
            # "Select all" is repeated as such: thousands of ids would be refused with a 400.
            "selected": selected[:1] if across else selected,
            "up_to": up_to,
            "checkbox": ACTION_CHECKBOX_NAME,
        }

    def _act(self, request: HttpRequest, rows: QuerySet[Any], verb: Verb) -> None:
        only = list(rows.order_by()[:2])
        log = _with_alias(verb.log, rows.db)
        try:
            count = verb.act(rows, LIMIT)
        except Error as error:
            self._ended(request, only, log, error)
            return
        if not count:
            self.message_user(request, verb.none, messages.WARNING)
            return
        if len(only) == 1:
            self.log_change(request, only[0], log)
        else:
            self._log_many(
                request, f"{count:,}", f"{log} {count:,} {verb.noun}; {_chosen(request)}."
            )
        self.message_user(request, verb.done(count) % {"count": f"{count:,}"}, messages.SUCCESS)
        if count >= LIMIT:
            more = _("That is the most at once; choose the action again for the rest.")
            self.message_user(request, more, messages.WARNING)

    def _ended(self, request: HttpRequest, only: list[Any], log: str, error: Exception) -> None:
        """Batches before the error have committed, so the log is to say who did it."""
        logger.error("An action on %s was ended.", self.opts.verbose_name_plural, exc_info=error)
        reason = clean(str(error)).strip()
        ended = f"{log} Ended by an error, perhaps after a part: {reason}"
        if len(only) == 1:
            self.log_change(request, only[0], ended)
        else:
            self._log_many(request, "?", f"{ended}; {_chosen(request)}.")
        text = _(
            "The database ended it: %(error)s. What was done before stays; choose the action again."
        )
        self.message_user(request, text % {"error": reason}, messages.ERROR)

    def _log_many(self, request: HttpRequest, count: str, message: str) -> None:
        """One entry for all: thousands of them would say no more."""
        LogEntry.objects.create(
            user_id=str(request.user.pk),
            content_type=ContentType.objects.get_for_model(self.model),
            object_repr=f"{count} {self.opts.verbose_name_plural}",
            action_flag=CHANGE,
            change_message=message,
        )


def _last_of_the_oldest(rows: QuerySet[Any], newest: int) -> int:
    """The id up to which rows may be changed, so that a second click on the button does nothing.

    By an expression: an ORDER BY of the key itself makes MariaDB walk along the whole table.
    """
    ids = rows.order_by(F("pk") + 0).values_list("pk", flat=True)
    return next(iter(ids[LIMIT - 1 : LIMIT]), newest)


def _with_alias(log: str, alias: str) -> str:
    """Rows of two databases may have the same id, and the log has one history for both."""
    if len(conf.outbox_aliases()) == 1:
        return log
    return f"{log.removesuffix('.')} on {alias!r}."


def _chosen(request: HttpRequest) -> str:
    """What the action was for: all that the filters let through, or rows one by one."""
    if request.POST.get("select_across") == "1":
        return request.GET.urlencode() or "no filter"
    ids = request.POST.getlist(ACTION_CHECKBOX_NAME)
    more = f" and {len(ids) - LISTED} more" if len(ids) > LISTED else ""
    return f"selected: {', '.join(ids[:LISTED])}{more}"


class MessageActions(ConfirmedActions):
    """The actions of the outbox's list."""

    actions = ("requeue", "let_go", "kill")

    @admin.action(permissions=["requeue"], description=_("Requeue selected messages"))
    def requeue(self, request: HttpRequest, queryset: QuerySet[Any]) -> TemplateResponse | None:
        return self._confirmed(request, queryset, REQUEUE)

    @admin.action(
        permissions=["requeue"],
        description=_("Let the key of the selected dead messages go on"),
    )
    def let_go(self, request: HttpRequest, queryset: QuerySet[Any]) -> TemplateResponse | None:
        return self._confirmed(request, queryset, LET_GO)

    @admin.action(permissions=["kill"], description=_("Mark selected messages dead"))
    def kill(self, request: HttpRequest, queryset: QuerySet[Any]) -> TemplateResponse | None:
        return self._confirmed(request, queryset, KILL)

    def has_kill_permission(self, request: HttpRequest) -> bool:
        """Who may see and run the action "mark dead"."""
        return may(request, "kill_outboxmessage")


class HoldActions(ConfirmedActions):
    """The action of the list of holds."""

    actions = ("let_go",)

    @admin.action(permissions=["requeue"], description=_("Let the selected keys go on"))
    def let_go(self, request: HttpRequest, queryset: QuerySet[Any]) -> TemplateResponse | None:
        return self._confirmed(request, queryset, LET_HOLDS_GO)
