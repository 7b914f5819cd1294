"""Filters that never scan: by index, or through the newest rows only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.admin import SimpleListFilter
from django.utils.translation import gettext_lazy as _

from django_outbox_lock import conf
from django_outbox_lock.admin import databases, window
from django_outbox_lock.models import OutboxMessage
from django_outbox_lock.querysets.sametext import SameText

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from django.contrib.admin.views.main import ChangeList
    from django.db.models import QuerySet
    from django.http import HttpRequest
    from django.utils.functional import _StrPromise


class DatabaseFilter(SimpleListFilter):
    """Shown only where there are several outboxes."""

    title = _("database")
    parameter_name = databases.USING_VAR

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        aliases = conf.outbox_aliases()
        return [(alias, alias) for alias in aliases] if len(aliases) > 1 else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset  # the admin has chosen the database before

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """No choice "All": a list is of one database."""
        shown = changelist.queryset.db if hasattr(changelist, "queryset") else self.value()
        for alias, title in self.lookup_choices:
            yield {
                "selected": alias == shown,
                "query_string": changelist.get_query_string({self.parameter_name: alias}),
                "display": title,
            }


class StateFilter(SimpleListFilter):
    """Outstanding and dead messages are found through their indexes."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [(state.name.lower(), str(state.label)) for state in OutboxMessage.State]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        rows: Any = queryset
        match self.value():
            case "outstanding":
                return queryset.filter(due_at__isnull=False)
            case "dead":
                return rows.dead()  # type: ignore[no-any-return]
            case "dispatched":
                state = OutboxMessage.State.DISPATCHED
                return window.narrowed(request, queryset).filter(state=state)
        return queryset


class TextFilter(SimpleListFilter):
    """One exact value, typed by the user: listing the values would scan the table."""

    template = "admin/django_outbox_lock/text_filter.html"
    parameter_name: str

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [("", "")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if not value:
            return queryset
        if "\0" in value:
            return queryset.none()  # no text has one, and PostgreSQL takes none as a parameter
        return window.narrowed(request, queryset).filter(SameText(self.parameter_name, value))

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """The form's other fields, and the way back to all."""
        others = {k: v for k, v in changelist.params.items() if k != self.parameter_name}
        yield {
            "name": self.parameter_name,
            "value": self.value() or "",
            "others": others,
            "query_string": changelist.get_query_string(remove=[self.parameter_name]),
        }


class BeforeFilter(SimpleListFilter):
    """Not shown: the link to older rows carries it, see ``window``."""

    title = _("older")
    parameter_name = window.BEFORE_VAR

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return []


def text_filter(field: str, label: str | _StrPromise) -> type[TextFilter]:
    """A filter for exact values of ``field``."""
    return type(f"{field}_filter", (TextFilter,), {"title": label, "parameter_name": field})
