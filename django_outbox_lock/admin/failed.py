"""The page that stands in for one whose database is away, or has not been migrated."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from django.core.exceptions import PermissionDenied
from django.db import Error
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _

from django_outbox_lock import conf
from django_outbox_lock.admin import databases
from django_outbox_lock.errortext import clean

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest, HttpResponse

    from django_outbox_lock.admin.base import ReadOnlyAdmin

logger = logging.getLogger("django_outbox_lock.admin")

_TEMPLATE = "admin/django_outbox_lock/failed.html"


def told(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Let a page of a ModelAdmin say what its database says instead."""

    @functools.wraps(view)
    def page_or_error(self: Any, request: HttpRequest, *args: Any, **named: Any) -> HttpResponse:
        try:
            return view(self, request, *args, **named)
        except Error as error:
            return _page(self, request, error)

    return page_or_error


def _page(model_admin: ReadOnlyAdmin, request: HttpRequest, error: Exception) -> TemplateResponse:
    """Which database has failed, what it said, and the way to the others; with the status 503.

    If users and sessions are on that database, this fails in its turn, as any page of the admin.
    """
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    alias = databases.alias_of(request, model_admin.model)
    others = conf.outbox_aliases() if model_admin.of_one_database else ()
    logger.error("A page of %r could not be shown.", alias, exc_info=error)
    request.current_app = model_admin.admin_site.name
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "media": model_admin.media,
        "title": _("The database has failed"),
        "alias": alias,
        "others": [each for each in others if each != alias],
        "using": databases.USING_VAR,
        "error": clean(str(error)) or type(error).__name__,
    }
    return TemplateResponse(request, _TEMPLATE, context, status=503)
