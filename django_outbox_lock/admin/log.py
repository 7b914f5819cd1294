"""The processing log: what consumers have done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from django_outbox_lock import keys
from django_outbox_lock.admin import body, shown, window
from django_outbox_lock.admin.base import ReadOnlyAdmin, may
from django_outbox_lock.admin.filters import BeforeFilter, DatabaseFilter, text_filter
from django_outbox_lock.models import ProcessingLog

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest

_BADGES = {ProcessingLog.Status.DONE: "good", ProcessingLog.Status.FAILED: "bad"}


@admin.register(ProcessingLog)
class ProcessingLogAdmin(ReadOnlyAdmin):
    heavy = ("result",)
    list_display = (
        "shown_status",
        "shown_consumer",
        "short_key",
        "attempts",
        "shown_updated_at",
        "shown_error",
    )
    list_display_links = ("short_key",)
    list_filter = (DatabaseFilter, text_filter("consumer", _("consumer")), BeforeFilter)
    search_fields = ("key",)
    search_help_text = _(
        "An exact key (a message id, mostly): at once with a consumer in the filter, else among "
        "the newest entries. Nothing else is searched."
    )
    fieldsets = (
        (None, {"fields": ("shown_status", "consumer", "shown_key", "correlation_id")}),
        (_("Result"), {"fields": ("result_type", "shown_result", "last_error")}),
        (
            _("Course"),
            {"fields": ("attempts", "shown_created_at", "shown_updated_at", "body_digest")},
        ),
    )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """By the unique hash where the consumer is known, else by key among the newest."""
        key = search_term.strip()
        if not key:
            return queryset, False
        consumer = request.GET.get("consumer")
        if consumer:
            return queryset.filter(entry_hash=keys.entry_hash(consumer, key)), False
        return window.narrowed(request, queryset).filter(key=key), False

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        """The entry, which knows what this user may see of it."""
        entry: Any = super().get_object(request, object_id, from_field)
        if entry is not None:
            entry.may_be_read = may(request, body.PERMISSION)
        return entry

    @admin.display(description=_("status"))
    def shown_status(self, entry: ProcessingLog) -> str:
        return shown.choice(_BADGES, ProcessingLog.Status, entry.status)

    @admin.display(description=_("key"))
    def shown_key(self, entry: ProcessingLog) -> str:
        return shown.code(entry.key)

    @admin.display(description=_("consumer"))
    def shown_consumer(self, entry: ProcessingLog) -> str:
        return shown.shortened(entry.consumer)

    @admin.display(description=_("key"))
    def short_key(self, entry: ProcessingLog) -> str:
        return shown.code(shown.shortened(entry.key))

    @admin.display(description=_("last error"))
    def shown_error(self, entry: ProcessingLog) -> str:
        return shown.shortened(entry.last_error)

    @admin.display(description=_("result"))
    def shown_result(self, entry: Any) -> str:
        if not entry.may_be_read:
            return body.hidden()
        return shown.NOTHING if entry.result is None else body.content(bytes(entry.result))

    @admin.display(description=_("created at"))
    def shown_created_at(self, entry: ProcessingLog) -> str:
        return shown.moment(entry.created_at)

    @admin.display(description=_("updated at"))
    def shown_updated_at(self, entry: ProcessingLog) -> str:
        return shown.moment(entry.updated_at)
