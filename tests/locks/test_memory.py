"""The in-memory lock keeps the contract as far as its flags go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import connection, transaction
from django.test import TestCase, override_settings

from django_outbox_lock import lock, locks
from django_outbox_lock.backends.locks.memory import MemoryLock
from django_outbox_lock.models import Lock
from django_outbox_lock.testing.locks import LockContract

if TYPE_CHECKING:
    from tests.conftest import RunManage

IN_MEMORY = {"BACKEND": f"{MemoryLock.__module__}.{MemoryLock.__qualname__}"}


@pytest.mark.server("sqlite")  # it asks the database for a token, and no more
class TestContract(LockContract):
    backend_class = MemoryLock


@override_settings(OUTBOX_LOCK={"default": {"LOCK": IN_MEMORY}})
class InTestCase(TestCase):
    """What a user's TestCase sees."""

    @classmethod
    def tearDownClass(cls) -> None:
        locks.close()
        super().tearDownClass()

    def test_a_lock_inside_and_outside_a_transaction(self) -> None:
        with lock("nightly-report") as handle, transaction.atomic():
            handle.fence()
        with transaction.atomic(), lock("nightly-report") as again:
            assert again.token > handle.token

    def test_nothing_is_left_of_other_tests(self) -> None:
        with lock("nightly-report") as handle:
            assert handle.token == 1
        assert Lock.objects.count() == 1


@pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"])
def test_a_rollback_takes_the_token_with_it() -> None:
    """And with it all that was written under it; the lock id of the next one is another."""
    backend = MemoryLock("default")
    with transaction.atomic():
        first = backend.obtain("nightly-report")
        assert first is not None
        transaction.set_rollback(True)
    assert first.release() is False
    second = backend.obtain("nightly-report")
    assert second is not None
    assert (second.token, second.lock_id == first.lock_id) == (first.token, False)
    backend.close()


@pytest.mark.django_db
def test_it_warns_beside_a_database_of_others() -> None:
    with override_settings(DEBUG=False):
        found = [message.id for message in MemoryLock("default").check()]
    assert found == ([] if connection.vendor == "sqlite" else ["django_outbox_lock.W002"])
    with override_settings(DEBUG=True):
        assert MemoryLock("default").check() == []


@pytest.mark.server("sqlite")
def test_a_project_on_an_in_memory_database(run_manage: RunManage) -> None:
    """E21: the whole of it, in a process of its own, without any setting."""
    code = (
        "from django.core.management import call_command; call_command('migrate', verbosity=0); "
        "from django_outbox_lock import lock, locks; "
        "handle = lock('x').__enter__(); print(type(locks['default']).__name__, handle.token)"
    )
    env = {"DATABASE_URL": "sqlite://:memory:", "SECOND_DATABASE_URL": "sqlite://:memory:"}
    assert run_manage("shell", "-c", code, env=env).stdout.endswith("\nMemoryLock 1\n")
