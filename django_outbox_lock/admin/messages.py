"""The outbox: what waits, what was sent, what is dead; requeue and mark dead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from django_outbox_lock.admin import shown
from django_outbox_lock.admin.actions import MessageActions
from django_outbox_lock.admin.base import outside_transactions
from django_outbox_lock.admin.filters import BeforeFilter, DatabaseFilter, StateFilter, text_filter
from django_outbox_lock.admin.immutable import ImmutableMessageAdmin
from django_outbox_lock.models import OutboxMessage

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

_BADGES = {
    OutboxMessage.State.OUTSTANDING: "waiting",
    OutboxMessage.State.DISPATCHED: "good",
    OutboxMessage.State.DEAD: "bad",
}


@admin.register(OutboxMessage)
class OutboxMessageAdmin(MessageActions, ImmutableMessageAdmin):
    list_display = (
        "shown_state",
        "shown_topic",
        "shown_key",
        "short_message_id",
        "attempts",
        "shown_due",
        "age",
        "shown_error",
    )
    list_display_links = ("short_message_id",)
    list_filter = (DatabaseFilter, StateFilter, text_filter("topic", _("topic")), BeforeFilter)
    fieldsets = (
        (None, {"fields": ("shown_state", "topic", "whole_key", "shown_message_id", "shown_id")}),
        (_("Body"), {"fields": ("content_type", "shown_headers", "shown_body")}),
        (
            _("Delivery"),
            {
                "fields": (
                    "shown_due",
                    "attempts",
                    "last_error",
                    "dead_reason",
                    "shown_settled_at",
                    "shown_expires_at",
                )
            },
        ),
        (
            _("Origin"),
            {"fields": ("shown_created_at", "correlation_id", "causation_id")},
        ),
    )

    @outside_transactions
    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return super().changelist_view(request, extra_context)

    @admin.display(description=_("state"))
    def shown_state(self, message: OutboxMessage) -> str:
        return shown.choice(_BADGES, OutboxMessage.State, message.state)

    @admin.display(description=_("id"))
    def shown_id(self, message: OutboxMessage) -> str:
        """Never with the separators of a language: it is copied into commands."""
        return shown.code(message.pk)

    @admin.display(description=_("due"))
    def shown_due(self, message: Any) -> str:
        return shown.due(message.due_at, message.server_now)

    @admin.display(description=_("last error"))
    def shown_error(self, message: OutboxMessage) -> str:
        return shown.shortened(message.last_error or message.dead_reason)

    @admin.display(description=_("settled at"))
    def shown_settled_at(self, message: OutboxMessage) -> str:
        return shown.moment(message.settled_at)

    @admin.display(description=_("expires at"))
    def shown_expires_at(self, message: Any) -> str:
        return shown.when(message.expires_at, message.server_now)
