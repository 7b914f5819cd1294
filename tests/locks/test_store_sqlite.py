"""What store locks share and no server is needed for; the registry in SQLite, with one writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from django.core import checks
from django.db import transaction
from django.db.transaction import TransactionManagementError
from django.test import override_settings

from django_outbox_lock import locking
from django_outbox_lock.backends.locks.store import Owner, StoreLockBackend
from django_outbox_lock.conf import BackendSettings, outbox_settings
from django_outbox_lock.exceptions import InvalidSettings
from django_outbox_lock.models import Lock
from django_outbox_lock.testing.lock_items.base import SLACK
from tests.locks.stores import deferred

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django_outbox_lock.backends.locks.base import Live
    from tests.locks.conftest import AddAlias, Make

pytestmark = [
    pytest.mark.server("sqlite"),
    pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"]),
]


class Shelf(StoreLockBackend):
    """A store that is a dict: what is tested here is the registry."""

    label = "shelf"
    extra: ClassVar[str] = ""
    owners: ClassVar[dict[str, str]] = {}

    def acquire(self, key: str, owner: Owner) -> bool:
        return self.owners.setdefault(key, owner.lock_id) == owner.lock_id

    def extend(self, key: str, owner_id: str) -> bool:
        return self.owners.get(key) == owner_id

    def vacate(self, key: str, owner_id: str) -> bool:
        return self.extend(key, owner_id) and self.owners.pop(key) == owner_id

    def live(self) -> Iterable[Live]:
        return []


@pytest.fixture
def room(make: Make) -> Shelf:
    Shelf.owners.clear()
    room = make(Shelf, namespace="any")
    assert isinstance(room, Shelf)
    return room


def test_inside_a_transaction_that_writes(room: Shelf) -> None:
    """An error says so instead of "busy", and nothing stays held."""
    with transaction.atomic():
        Lock.objects.update(application="written")
        with pytest.raises(TransactionManagementError, match=r"nightly-report.*one writer"):
            room.obtain("nightly-report")
    handle = room.obtain("nightly-report", timeout=SLACK)
    assert handle is not None
    assert handle.token == 1


def test_inside_a_transaction_that_does_not_write(room: Shelf) -> None:
    """Its own connection may write, and the token is committed at once."""
    with deferred("default"), transaction.atomic():
        handle = room.obtain("nightly-report")
        assert handle is not None
        transaction.set_rollback(True)
    assert room.prove(handle)
    assert Lock.objects.get().token == 1
    assert handle.release()


def test_a_registry_in_memory_is_refused(add_alias: AddAlias) -> None:
    """A second connection would find another database there, or none."""
    alias = add_alias("memory", NAME=":memory:")
    dotted = f"{Shelf.__module__}.{Shelf.__qualname__}"
    settings = BackendSettings("OUTBOX_LOCK['memory']['LOCK']", dotted, {"namespace": "any"})
    with pytest.raises(InvalidSettings, match=r"OUTBOX_LOCK.*SQLite database in memory"):
        locking.choose(alias, settings)


def test_a_namespace_is_needed(make: Make) -> None:
    (error,) = make(Shelf).check()
    assert isinstance(error, checks.Error)
    assert error.id == "django_outbox_lock.E009"
    assert make(Shelf, namespace="any").check() == []


def test_two_outboxes_need_two_namespaces() -> None:
    """With one, the sweeper of one alias would never let that of the other begin."""
    dotted = f"{Shelf.__module__}.{Shelf.__qualname__}"

    def errors(*names: str, **options: Any) -> list[str]:
        given: tuple[dict[str, Any], ...] = ({}, options)
        outboxes = {
            alias: {"LOCK": {"BACKEND": dotted, "OPTIONS": {"namespace": name, **others}}}
            for alias, name, others in zip(("default", "other"), names, given, strict=True)
        }
        with override_settings(OUTBOX_LOCK=outboxes):
            room = locking.build("default", outbox_settings("default").lock)
            return [f"{error.id}: {error.msg}" for error in room.check()]

    (error,) = errors("shop", "shop", lease=30)
    assert error.startswith("django_outbox_lock.E009")
    assert "that of 'other', too" in error
    assert errors("shop", "archive") == []


def test_nothing_to_provision(room: Shelf) -> None:
    assert room.missing() is None
    assert room.provision() == "shelf: there is nothing to provision"


def test_a_wrong_option() -> None:
    with pytest.raises(TypeError, match="leave_to_expire"):
        Shelf("default", namespace="any", leave_to_expire="yes")  # type: ignore[arg-type]
