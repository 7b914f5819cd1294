"""Force release: compare with what the operator saw, then act."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, InterfaceError, connections
from django.template.response import TemplateResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_outbox_lock import conf, keys, registry
from django_outbox_lock.admin import window
from django_outbox_lock.admin.actions import NOT_OF_THE_PAGE
from django_outbox_lock.admin.base import ModelAdmin, may
from django_outbox_lock.errortext import clean
from django_outbox_lock.exceptions import LockUnavailable
from django_outbox_lock.locking import locks
from django_outbox_lock.models import Lock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.db.models import QuerySet
    from django.http import HttpRequest

    from django_outbox_lock.holder import Holder

CONFIRMED = "confirmed"
_TEMPLATE = "admin/django_outbox_lock/lock/confirm.html"
_FAILURES = (DatabaseError, InterfaceError, LockUnavailable, ImproperlyConfigured)


@dataclass(frozen=True, slots=True)
class Seen:
    """A holder as the page showed it: the token says whether it is still the same."""

    alias: str
    token: int
    resource: str

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """None for what no page of ours has written."""
        alias, _, rest = text.partition(":")
        token, _, resource = rest.partition(":")
        number = window.number(token)
        if alias not in conf.outbox_aliases() or number is None or not _is_resource(resource):
            return None
        return cls(alias, number, resource)

    def __str__(self) -> str:
        return f"{self.alias}:{self.token}:{self.resource}"


def _is_resource(text: str) -> bool:
    try:
        return keys.canonical_resource(text) == text
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Doomed:
    """A line of the confirmation page."""

    seen: Seen
    holder: Holder

    @property
    def consequence(self) -> str:
        """What will happen to the holder."""
        if self.holder.expires_at is None:
            return gettext("its database session is ended, which frees the lock")
        return gettext("its lease is broken")


class ForceRelease(ModelAdmin):
    """The action of the Locks page."""

    actions = ("force_release",)

    @admin.action(permissions=["force_release"], description=_("Release selected locks by force"))
    def force_release(
        self, request: HttpRequest, queryset: QuerySet[Any]
    ) -> TemplateResponse | None:
        """Ask first; then release what still has the token that was seen."""
        chosen = map(Seen.parse, request.POST.getlist(ACTION_CHECKBOX_NAME))
        seen = [one for one in chosen if one is not None]
        if not seen:
            self.message_user(request, NOT_OF_THE_PAGE, messages.WARNING)
        if request.POST.get(CONFIRMED):
            for one in seen:
                self._release(request, one)
            return None
        doomed = list(self._still_held(request, seen))
        return self._question(request, doomed) if doomed else None

    def has_force_release_permission(self, request: HttpRequest) -> bool:
        """Who may see and run the action."""
        return may(request, "force_release_lock")

    def _still_held(self, request: HttpRequest, seen: Iterable[Seen]) -> Iterable[Doomed]:
        for one in seen:
            try:
                holder = registry.holder(connections[one.alias], one.resource)
            except _FAILURES as error:
                self._failed(request, one, error)
                continue
            if holder is None or holder.lock_id is None or holder.token != one.token:
                self._changed(request, one)
            else:
                yield Doomed(one, holder)

    def _question(self, request: HttpRequest, doomed: list[Doomed]) -> TemplateResponse:
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": _("Release locks by force"),
            "doomed": doomed,
            "checkbox": ACTION_CHECKBOX_NAME,
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, _TEMPLATE, context)

    def _release(self, request: HttpRequest, one: Seen) -> None:
        name = request.user.get_username()
        try:
            released = locks[one.alias].force_release(one.resource, one.token, by=name)
        except _FAILURES as error:
            self._failed(request, one, error)
            return
        if not released:
            self._changed(request, one)
            return
        row = Lock(pk=keys.resource_id(one.resource), resource=one.resource)
        done = f"Released by force on {one.alias!r}: the holder had the token {one.token}."
        self.log_change(request, row, done)
        text = _("%(resource)s was released by force; token %(token)s can write nothing any more.")
        named = {"resource": one.resource, "token": one.token}
        self.message_user(request, text % named, messages.SUCCESS)

    def _changed(self, request: HttpRequest, one: Seen) -> None:
        text = _("%(resource)s has changed since the page was shown: nothing was done.")
        self.message_user(request, text % {"resource": one.resource}, messages.WARNING)

    def _failed(self, request: HttpRequest, one: Seen, error: Exception) -> None:
        text = _("%(resource)s was not released: %(error)s")
        named = {"resource": one.resource, "error": clean(str(error))}
        self.message_user(request, text % named, messages.ERROR)
