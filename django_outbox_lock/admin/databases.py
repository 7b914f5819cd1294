"""Which outbox a page shows: projects may have one on each of several databases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from django.db import router

from django_outbox_lock import conf

if TYPE_CHECKING:
    from django.db.models import Model
    from django.http import HttpRequest

USING_VAR = "using"
# Where Django's admin carries the list's filters over to the page of one row.
PRESERVED = "_changelist_filters"


def alias_of(request: HttpRequest, model: type[Model]) -> str:
    """The alias that the request names, else the routers' choice, else the first outbox."""
    aliases = conf.outbox_aliases()
    preserved = parse_qs(request.GET.get(PRESERVED, ""))
    asked = request.GET.get(USING_VAR) or next(iter(preserved.get(USING_VAR, [])), None)
    candidates: list[Any] = [asked, router.db_for_write(model)]
    return next((alias for alias in candidates if alias in aliases), aliases[0])
