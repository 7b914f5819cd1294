"""What the outbox and the archive show of a message: identity, body, headers; and the search."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from django_outbox_lock import keys
from django_outbox_lock.admin import body, databases, failed, shown, window
from django_outbox_lock.admin.base import ReadOnlyAdmin, may
from django_outbox_lock.clock import to_microseconds

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern

    from django_outbox_lock.models import ImmutableMessage

_TAIL = 8


class ImmutableMessageAdmin(ReadOnlyAdmin):
    """The columns that never change."""

    heavy = ("body", "headers")
    search_fields = ("message_id", "key")
    search_help_text = _(
        "An exact message id, at once; or an exact key among the newest messages (with a topic in "
        "the filter the key is found faster). Nothing else is searched."
    )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """By message id where one is meant, else by key; never with LIKE."""
        term = search_term.strip()
        if not term:
            return queryset, False
        message_id = _uuid(term)
        if message_id is not None:
            found = queryset.filter(message_id=message_id)
            if found.exists():  # a key may be a UUID, too
                return found, False
        return self._with_key(request, queryset, term), False

    def get_urls(self) -> list[URLPattern]:
        """Ahead of Django's own: the last of those matches everything."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_body"
        view = self.admin_site.admin_view(self.body_view)
        return [path("<int:pk>/body/", view, name=name), *super().get_urls()]

    @failed.told
    def body_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """The body as it is stored, for download. 403 without the permission for bodies."""
        if not (self.has_view_permission(request) and may(request, body.PERMISSION)):
            raise PermissionDenied
        message = self.get_object(request, str(pk))
        if message is None:
            raise Http404
        return body.attachment(str(message.message_id), bytes(message.body))

    @admin.display(description=_("message id"))
    def shown_message_id(self, message: ImmutableMessage) -> str:
        return shown.code(message.message_id)

    @admin.display(description=_("message id"))
    def short_message_id(self, message: ImmutableMessage) -> str:
        """The random end of it: the beginning is the time, the same for all of a moment."""
        whole = str(message.message_id)
        return format_html('<span class="outbox-code" title="{}">…{}</span>', whole, whole[-_TAIL:])

    @admin.display(description=_("created"))
    def age(self, message: Any) -> str:
        return shown.when(to_microseconds(message.created_at), message.server_now)

    @admin.display(description=_("topic"))
    def shown_topic(self, message: ImmutableMessage) -> str:
        return shown.shortened(message.topic)

    @admin.display(description=_("key"))
    def shown_key(self, message: ImmutableMessage) -> str:
        return shown.NOTHING if message.key is None else shown.shortened(message.key, 40)

    @admin.display(description=_("key"))
    def whole_key(self, message: ImmutableMessage) -> str:
        return shown.NOTHING if message.key is None else message.key

    @admin.display(description=_("created at"))
    def shown_created_at(self, message: ImmutableMessage) -> str:
        return shown.moment(message.created_at)

    @admin.display(description=_("headers"))
    def shown_headers(self, message: ImmutableMessage) -> str:
        return body.headers_table(message.headers)

    @admin.display(description=_("body"))
    def shown_body(self, message: Any) -> str:
        if not message.may_be_read:
            return body.hidden()
        return body.show(bytes(message.body), message.download_url)

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        """The row, which knows what this user may see of it."""
        message: Any = super().get_object(request, object_id, from_field)
        if message is not None:
            message.may_be_read = may(request, body.PERMISSION)
            message.download_url = self._download_url(request, message)
        return message

    def _download_url(self, request: HttpRequest, message: Any) -> str:
        name = f"{self.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_body"
        alias = databases.alias_of(request, self.model)
        return reverse(name, args=[message.pk], query={databases.USING_VAR: alias})

    def _with_key(self, request: HttpRequest, queryset: QuerySet[Any], key: str) -> QuerySet[Any]:
        narrowed = window.narrowed(request, queryset).filter(key=key)
        topic = request.GET.get("topic")
        return narrowed.filter(order_key=keys.order_key(topic, key)) if topic else narrowed


def _uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
