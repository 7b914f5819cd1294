"""The Locks page: the changelist of ``Lock``, joined with what the databases show now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_outbox_lock import conf
from django_outbox_lock.admin import shown
from django_outbox_lock.admin.base import ReadOnlyAdmin, outside_transactions
from django_outbox_lock.admin.force import ForceRelease, Seen
from django_outbox_lock.admin.looking import Look, look_at
from django_outbox_lock.clock import to_microseconds
from django_outbox_lock.holder import Holder, LockState
from django_outbox_lock.models import Lock

if TYPE_CHECKING:
    import datetime as dt

    from django.http import HttpRequest, HttpResponse

_BADGES = {
    LockState.HELD: ("good", _("held")),
    LockState.FREE: ("quiet", _("free")),
    LockState.EXPIRED: ("waiting", _("expired")),
    LockState.STALE: ("bad", _("stale")),
    LockState.FOREIGN: ("waiting", _("foreign")),
    LockState.UNVERIFIED: ("waiting", _("not verified")),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: a holder at the moment ``now`` of its database."""

    alias: str
    holder: Holder
    now: dt.datetime | None

    @property
    def held(self) -> bool:
        """Whether the registry has an owner, so that there is something to release."""
        return self.holder.lock_id is not None

    @property
    def seen(self) -> Seen:
        """What a force release is compared with."""
        return Seen(self.alias, self.holder.token, self.holder.resource)

    @property
    def state(self) -> str:
        return shown.badge(*_BADGES[self.holder.state])

    @property
    def backend(self) -> str:
        """The kind only: the key in the store says nothing to people."""
        return self.holder.backend.partition(":")[0] or shown.NOTHING

    @property
    def obtained(self) -> str:
        return shown.moment(self.holder.acquired_at)

    @property
    def lease(self) -> str:
        """When it ends, or that it lives as long as its session."""
        if not self.held:
            return shown.NOTHING
        if self.holder.expires_at is None:
            return gettext("session-bound")
        return self._when(self.holder.expires_at)

    @property
    def last_seen(self) -> str:
        seen = self.holder.last_seen_at
        return shown.NOTHING if seen is None else self._when(seen)

    def _when(self, moment: dt.datetime) -> str:
        if self.now is None:
            return shown.moment(moment)
        return shown.when(to_microseconds(moment), to_microseconds(self.now))


@dataclass(frozen=True, slots=True)
class Table:
    """What is shown of one database."""

    look: Look

    @property
    def rows(self) -> list[Row]:
        return [Row(self.look.alias, holder, self.look.now) for holder in self.look.holders]

    @property
    def foreign(self) -> list[Row]:
        return [Row(self.look.alias, holder, self.look.now) for holder in self.look.foreign]


class LockChangeList(ChangeList):
    """Has no query of its own: the rows are what ``holders()`` says of each database."""

    def get_results(self, request: HttpRequest) -> None:
        self.tables = [Table(look) for look in look_at(conf.outbox_aliases())]
        rows = [row for table in self.tables for row in table.rows]
        self.result_list = rows
        self.result_count = self.full_result_count = len(rows)
        self.show_full_result_count = False
        self.show_admin_actions = any(row.held for row in rows)
        self.can_show_all = True
        self.multi_page = False
        self.paginator = Paginator(rows, max(1, len(rows)))


@admin.register(Lock)
class LockAdmin(ForceRelease, ReadOnlyAdmin):
    list_display = ("resource",)
    of_one_database = False
    list_display_links = None
    fields = (
        "resource",
        "shown_token",
        "backend",
        "host",
        "shown_pid",
        "application",
        "session_id",
    )

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LockChangeList

    @outside_transactions
    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return super().changelist_view(request, extra_context)

    @admin.display(description=_("fencing token"))
    def shown_token(self, lock: Lock) -> str:
        """Never with the separators of a language: it is copied into commands."""
        return shown.code(lock.token)

    @admin.display(description=_("pid"))
    def shown_pid(self, lock: Lock) -> str:
        return shown.NOTHING if lock.pid is None else shown.code(lock.pid)
