"""What every lock backend has to do, as a test class to be subclassed (pytest)."""

from __future__ import annotations

from typing import Any

import pytest

from django_outbox_lock.testing.lock_items.embedding import EmbeddingItems
from django_outbox_lock.testing.lock_items.exclusion import ExclusionItems
from django_outbox_lock.testing.lock_items.holding import HoldingItems
from django_outbox_lock.testing.lock_items.loss import LossItems
from django_outbox_lock.testing.lock_items.names import NameItems
from django_outbox_lock.testing.lock_items.processes import ProcessItems
from django_outbox_lock.testing.lock_items.tokens import TokenItems


# Of all tables only this app's are emptied after each item, which saves most of an item's time.
@pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"])
class LockContract(
    ExclusionItems, NameItems, TokenItems, LossItems, HoldingItems, EmbeddingItems, ProcessItems
):
    """Subclass it, name the backend, and pytest (with pytest-django) does the rest.

    ::

        class TestRedisLock(LockContract):
            backend_class = RedisLock
            options = {"url": "redis://127.0.0.1:6379/0", "namespace": "shop"}

    The class must be importable by its dotted path: some items start other processes. The tests
    run on the test database of the alias ``using``, in transactions of their own; processes need
    to reach it, so SQLite needs a file (``TEST["NAME"]``).

    An item whose subject does not exist for the backend is not collected; only its flags
    decide (``session_bound``, ``across_processes``, ``inside_atomic``). Where one waits for the end
    of a lease, the lease is two seconds, or ``minimum_lease`` if that is longer. A backend on a
    database session gives the hook ``end_session``, too.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        backend = getattr(cls, "backend_class", None)
        if backend is None:
            return
        for name in [name for name in dir(cls) if name.startswith("test_")]:
            when = getattr(getattr(cls, name), "applies", None)
            if when is not None and not when(backend):
                setattr(cls, name, None)  # pytest passes over what cannot be called
