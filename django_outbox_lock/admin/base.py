"""What all pages have in common: nothing is added, changed or deleted here, and nothing scans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin import ShowFacets
from django.contrib.admin.templatetags.admin_list import pagination
from django.contrib.admin.views.main import ChangeList
from django.db import connections, transaction
from django.utils.text import capfirst

from django_outbox_lock.admin import databases, failed, shown, window
from django_outbox_lock.admin.paginator import LIMIT, BoundedPaginator
from django_outbox_lock.clock import ServerTime
from django_outbox_lock.models import OutboxMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.models import QuerySet
    from django.http import HttpRequest, HttpResponse

    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


class BoundedChangeList(ChangeList):
    """Tells the page what was counted and what was looked through."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.full_result_count = self.result_count  # else a search would be offered "Show all"
        self.more, self.limit = self.paginator.more, LIMIT
        self.paging = pagination(self)
        seen = window.recall(request)
        self.window_size = window.SIZE
        self.window = seen if seen and (seen.before or seen.floor) else None
        self.older_url = ""
        if seen and seen.older:
            self.older_url = self.get_query_string({window.BEFORE_VAR: str(seen.older)})
        self.newest_url = self.get_query_string(remove=[window.BEFORE_VAR])


class ReadOnlyAdmin(ModelAdmin):
    """A table to be looked at: on the chosen database, newest first, by primary key only.

    ``heavy`` are the columns that no list reads. ``of_one_database`` says whether the list takes
    the database that a request names; the list of locks shows all of them.
    """

    empty_value_display = shown.NOTHING
    heavy: tuple[str, ...] = ()
    of_one_database = True
    ordering = ("-pk",)
    sortable_by = ()
    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    list_max_show_all = 0

    class Media:
        css = {"all": ("django_outbox_lock/admin.css",)}

    def __init__(self, model: type[Any], admin_site: admin.AdminSite) -> None:
        super().__init__(model, admin_site)
        if self.change_list_template is None:  # Django looks below the label, which may be another
            folders = dict.fromkeys((self.opts.app_label, "django_outbox_lock"))
            names = (f"{self.opts.model_name}/change_list.html", "change_list.html")
            ours: Any = self
            ours.change_list_template = [f"admin/{at}/{name}" for at in folders for name in names]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return BoundedChangeList

    @failed.told
    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Named like the table: there is nothing to select."""
        title = {"title": capfirst(str(self.opts.verbose_name_plural))}
        return super().changelist_view(request, {**title, **(extra_context or {})})

    @failed.told
    def change_view(self, request: HttpRequest, *args: Any, **named: Any) -> HttpResponse:
        return super().change_view(request, *args, **named)

    @failed.told
    def history_view(self, request: HttpRequest, *args: Any, **named: Any) -> HttpResponse:
        return super().history_view(request, *args, **named)

    def get_preserved_filters(self, request: HttpRequest) -> str:
        """With the database that a link names: the links of its page stay there."""
        kept = super().get_preserved_filters(request)
        using = request.GET.get(databases.USING_VAR)
        if kept or not using or not self.of_one_database:
            return kept
        return urlencode({databases.PRESERVED: urlencode({databases.USING_VAR: using})})

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """With the server's clock beside every row, as it is what due times are compared with."""
        alias = databases.alias_of(request, self.model)
        rows: Any = self.model.objects.using(alias)
        found: QuerySet[Any] = rows.defer(*self.heavy).annotate(server_now=ServerTime())
        return found

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        """None for a key with a NUL character, too: PostgreSQL takes none as a parameter."""
        return None if "\0" in object_id else super().get_object(request, object_id, from_field)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """All fields that are shown."""
        fieldsets = self.get_fieldsets(request, obj)
        return [name for _, options in fieldsets for name in options["fields"]]

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """The filters' own only: any other would scan, and tell of a body what may not be seen."""
        filters: Any = self.list_filter
        return lookup in {each.parameter_name for each in filters}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def may(request: HttpRequest, permission: str) -> bool:
    """Whether the user has one of this app's permissions, whatever the project calls the app."""
    return request.user.has_perm(f"{OutboxMessage._meta.app_label}.{permission}")


def outside_transactions(view: Callable[..., Any]) -> Callable[..., Any]:
    """Let each batch and each lock's bump commit by itself, even with ``ATOMIC_REQUESTS``."""
    for alias in connections:
        view = transaction.non_atomic_requests(alias)(view)
    return view
