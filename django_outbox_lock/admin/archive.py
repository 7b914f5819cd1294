"""The archive in a table: what was dispatched and moved out of the outbox."""

from __future__ import annotations

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from django_outbox_lock.admin import shown
from django_outbox_lock.admin.filters import BeforeFilter, DatabaseFilter, text_filter
from django_outbox_lock.admin.immutable import ImmutableMessageAdmin
from django_outbox_lock.models import ArchivedMessage


@admin.register(ArchivedMessage)
class ArchivedMessageAdmin(ImmutableMessageAdmin):
    list_display = (
        "shown_topic",
        "shown_key",
        "short_message_id",
        "attempts",
        "shown_created_at",
        "shown_settled_at",
        "shown_archived_at",
    )
    list_display_links = ("short_message_id",)
    list_filter = (DatabaseFilter, text_filter("topic", _("topic")), BeforeFilter)
    fieldsets = (
        (None, {"fields": ("topic", "whole_key", "shown_message_id")}),
        (_("Body"), {"fields": ("content_type", "shown_headers", "shown_body")}),
        (
            _("Delivery"),
            {"fields": ("attempts", "shown_settled_at", "shown_archived_at")},
        ),
        (
            _("Origin"),
            {"fields": ("shown_created_at", "correlation_id", "causation_id")},
        ),
    )

    @admin.display(description=_("settled at"))
    def shown_settled_at(self, message: ArchivedMessage) -> str:
        return shown.moment(message.settled_at)

    @admin.display(description=_("archived at"))
    def shown_archived_at(self, message: ArchivedMessage) -> str:
        return shown.moment(message.archived_at)
