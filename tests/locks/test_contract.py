"""The contract itself: a backend that keeps no promise must fail it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest

from django_outbox_lock.backends.locks.base import BaseLockBackend, Grant, Live
from django_outbox_lock.backends.locks.lease import LeaseTableLock
from django_outbox_lock.backends.locks.memory import MemoryLock
from django_outbox_lock.testing.locks import LockContract

if TYPE_CHECKING:
    from django_outbox_lock.backends.locks.handle import LockHandle

pytestmark = pytest.mark.django_db(transaction=True)


class AlwaysYes(BaseLockBackend):
    """Grants everything to everybody, as a server's stub does."""

    label: ClassVar[str] = "yes"

    def take(self, resource: str, lock_id: str) -> Grant | None:
        return Grant(1)

    def prove_once(self, handle: LockHandle) -> bool:
        return True

    def drop(self, handle: LockHandle) -> bool:
        return True

    def live(self) -> list[Live]:
        return []


class Contract(LockContract):
    backend_class = AlwaysYes


MUST_FAIL = [
    "test_another_backend_is_refused",
    "test_exclusive",
    "test_failed_tries_leave_nothing",
    "test_forced_release",
    "test_holders",
    "test_one_winner_of_a_new_name",
    "test_renewal_extends",
    "test_tokens_grow_through_force",
    "test_tokens_grow_through_releases",
    "test_two_backends_side_by_side",
    "test_two_interpreters_agree_on_names",
]


@pytest.mark.parametrize("name", MUST_FAIL)
def test_a_backend_that_always_says_yes_fails(name: str) -> None:
    """The negative control."""
    contract = Contract()
    with contract.environment(), pytest.raises(AssertionError):
        getattr(contract, name)()


def collected(contract: type[LockContract]) -> set[str]:
    return {name for name in dir(contract) if name.startswith("test_") and getattr(contract, name)}


def test_flags_choose_the_items() -> None:
    """What does not exist for a backend is not collected; nothing else is left out."""

    class OfMemory(LockContract):
        backend_class = MemoryLock

    class OfLeases(LockContract):
        backend_class = LeaseTableLock

    of_memory, of_leases = collected(OfMemory), collected(OfLeases)
    assert "test_the_holder_is_killed" in of_leases - of_memory
    assert "test_inside_a_transaction" in of_memory - of_leases
    assert "test_the_session_is_ended_while_held" not in of_leases | of_memory
    assert collected(LockContract) > of_leases | of_memory
