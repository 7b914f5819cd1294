"""Which names this process holds or is about to take: asked before the store."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_outbox_lock.backends.locks.handle import LockHandle


class Register:
    """One entry for each key of the store: the acquisition, by its lock id, that has it."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._entries: dict[str, tuple[str, LockHandle | None]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def reserve(self, key: str, lock_id: str) -> bool:
        """Note that the key is about to be taken; False when it is held or reserved already."""
        with self._mutex:
            return self._entries.setdefault(key, (lock_id, None))[0] == lock_id

    def enter(self, handle: LockHandle) -> None:
        """Note that the key which was reserved is held."""
        with self._mutex:
            self._entries[handle.store_key] = (handle.lock_id, handle)

    def handle(self, key: str) -> LockHandle | None:
        """The handle that holds the key."""
        with self._mutex:
            return self._entries.get(key, ("", None))[1]

    def has(self, key: str, lock_id: str) -> bool:
        """Whether it is this acquisition that the key is held by or reserved for."""
        with self._mutex:
            return self._entries.get(key, ("", None))[0] == lock_id

    def forget(self, key: str, lock_id: str) -> None:
        """Let the key go, unless it is another acquisition's by now."""
        with self._mutex:
            if self._entries.get(key, ("", None))[0] == lock_id:
                del self._entries[key]
