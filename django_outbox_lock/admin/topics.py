"""Why messages wait: keys on hold behind their head, and topics whose breaker is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import OuterRef, Subquery, Value
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_outbox_lock.admin import databases, shown
from django_outbox_lock.admin.actions import HoldActions
from django_outbox_lock.admin.base import ReadOnlyAdmin, outside_transactions
from django_outbox_lock.admin.filters import DatabaseFilter
from django_outbox_lock.models import Hold, OutboxMessage, TopicState
from django_outbox_lock.querysets.freeing import NOBODY

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest, HttpResponse

_BADGES = {
    TopicState.Breaker.CLOSED: "good",
    TopicState.Breaker.OPEN: "bad",
    TopicState.Breaker.HALF_OPEN: "waiting",
}


@admin.register(Hold)
class HoldAdmin(HoldActions, ReadOnlyAdmin):
    list_display = ("topic", "key", "shown_head", "shown_state", "shown_since", "shown_reason")
    fields = list_display
    list_display_links = None
    list_filter = (DatabaseFilter,)

    @outside_transactions
    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return super().changelist_view(request, extra_context)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """With a few columns of the head, looked up by its id."""
        rows = super().get_queryset(request)
        head = OutboxMessage.objects.using(rows.db).filter(pk=OuterRef("head_id"))
        found: QuerySet[Any] = rows.annotate(
            head_topic=Subquery(head.values("topic")),
            head_key=Subquery(head.values("key")),
            head_state=Subquery(head.values("state")),
            using=Value(rows.db),
        )
        return found

    @admin.display(description=_("topic"))
    def topic(self, hold: Any) -> str:
        return shown.shortened(hold.head_topic or shown.NOTHING)

    @admin.display(description=_("key"))
    def key(self, hold: Any) -> str:
        return shown.shortened(hold.head_key or shown.NOTHING, 40)

    @admin.display(description=_("head"))
    def shown_head(self, hold: Any) -> str:
        if hold.head_id == NOBODY:
            return gettext("gone: the key is let go")
        if hold.head_state is None:
            gone = gettext("%(id)s, which was deleted: let the key go on")
            return gone % {"id": hold.head_id}
        name = f"{self.admin_site.name}:{self.opts.app_label}_outboxmessage_change"
        try:
            url = reverse(name, args=[hold.head_id], query={databases.USING_VAR: hold.using})
        except NoReverseMatch:  # a site of the project's own that has no messages
            return str(hold.head_id)
        return format_html('<a href="{}">{}</a>', url, hold.head_id)

    @admin.display(description=_("state of the head"))
    def shown_state(self, hold: Any) -> str:
        if hold.head_state is None:
            return shown.NOTHING
        return str(OutboxMessage.State(hold.head_state).label)

    @admin.display(description=_("since"))
    def shown_since(self, hold: Hold) -> str:
        return shown.moment(hold.since)

    @admin.display(description=_("reason"))
    def shown_reason(self, hold: Hold) -> str:
        return shown.shortened(hold.reason)


@admin.register(TopicState)
class TopicStateAdmin(ReadOnlyAdmin):
    list_display = (
        "shown_topic",
        "shown_breaker",
        "failures",
        "openings",
        "shown_open_until",
        "shown_paused",
        "shown_error",
    )
    list_display_links = ("shown_topic",)
    list_filter = (DatabaseFilter,)
    fields = (
        "topic",
        "shown_breaker",
        "failures",
        "openings",
        "shown_open_until",
        "shown_paused",
        "last_error",
    )

    @admin.display(description=_("topic"))
    def shown_topic(self, topic: TopicState) -> str:
        return shown.shortened(topic.topic)

    @admin.display(description=_("breaker"))
    def shown_breaker(self, topic: TopicState) -> str:
        if topic.unroutable_since is not None:
            return shown.badge("waiting", gettext("no route"))
        return shown.choice(_BADGES, TopicState.Breaker, topic.breaker)

    @admin.display(description=_("next try"))
    def shown_open_until(self, topic: Any) -> str:
        return shown.when(topic.open_until, topic.server_now)

    @admin.display(description=_("paused"))
    def shown_paused(self, topic: TopicState) -> str:
        if topic.paused_at is None:
            return shown.NOTHING
        return f"{shown.moment(topic.paused_at)} ({topic.paused_by})"

    @admin.display(description=_("last error"))
    def shown_error(self, topic: TopicState) -> str:
        return shown.shortened(topic.last_error)
