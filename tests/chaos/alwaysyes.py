"""The negative control: a lock that is given to everybody."""

from __future__ import annotations

from django.db.models import F

from django_outbox_lock import keys
from django_outbox_lock.backends.locks.base import BaseLockBackend, Grant, Live
from django_outbox_lock.models import Lock


class AlwaysYes(BaseLockBackend):
    """Counts the token up, so that only who looks at the order of things notices anything."""

    label = "always-yes"

    def take(self, resource: str, lock_id: str) -> Grant:
        row, _ = Lock.objects.get_or_create(
            pk=keys.resource_id(resource), defaults={"resource": resource, "token": 0}
        )
        Lock.objects.filter(pk=row.pk).update(token=F("token") + 1, owner=lock_id)
        return Grant(Lock.objects.get(pk=row.pk).token)

    def prove_once(self, handle: object) -> bool:
        return True

    def drop(self, handle: object) -> bool:
        return True

    def live(self) -> tuple[Live, ...]:
        return ()
