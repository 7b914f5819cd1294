"""The other end of ``peer.Peer``: reads one command a line, answers each with one line."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

from django.db import connections
from django.utils.module_loading import import_string

from django_outbox_lock import fence
from django_outbox_lock.models import Hold
from django_outbox_lock.signals import lock_lost

if TYPE_CHECKING:
    from django_outbox_lock.backends.locks.base import BaseLockBackend
    from django_outbox_lock.backends.locks.handle import LockHandle


class Actor:
    """What the other process can be asked to do, with one backend and one handle at a time."""

    def __init__(self, backend: BaseLockBackend, answers: TextIO) -> None:
        self.answers = answers
        self.backend = backend
        self.handle: LockHandle | None = None
        self.losses: list[int] = []
        lock_lost.connect(self._on_loss)

    def obtain(self, resource: str, timeout: float = 0.0) -> int | None:
        """Obtain; returns the token or None."""
        self.handle = self.backend.obtain(resource, timeout=timeout)
        return None if self.handle is None else self.handle.token

    def release(self) -> bool:
        """Release what was obtained."""
        return self._held.release()

    def lost(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds for the loss, and say whether it is lost."""
        return self._held.wait_lost(timeout)

    def told_losses(self) -> list[int]:
        """The tokens of all losses that were signalled."""
        return self.losses

    def store_key(self, resource: str) -> str:
        """The key of a name in the store."""
        return self.backend.store_key(resource)

    def mark(self, number: int) -> None:
        """Write a row in a fenced transaction."""
        self._write(number, pause=False)

    def mark_slowly(self, number: int) -> None:
        """The same, but between the fence and the commit say so and wait for a line."""
        self._write(number, pause=True)

    def _write(self, number: int, *, pause: bool) -> None:
        ticket, using = self._held.ticket, self.backend.alias
        with fence.held(ticket, using=using, idle_limit=self.backend.lease):
            Hold.objects.using(using).create(order_key=number, head_id=number)
            if pause:
                self.answer("fenced")
                sys.stdin.readline()

    def answer(self, value: Any) -> None:
        """One line to the process that asked."""
        print(json.dumps(value), file=self.answers, flush=True)

    def _on_loss(self, *, token: int, **_: Any) -> None:
        self.losses.append(token)

    @property
    def _held(self) -> LockHandle:
        if self.handle is None:
            raise RuntimeError("nothing was obtained")
        return self.handle


def main() -> None:
    """Serve until standard input ends."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what a library prints must not be taken for an answer
        actor = Actor(_backend(json.loads(sys.stdin.readline())), answers)
        for line in iter(sys.stdin.readline, ""):
            command = json.loads(line)
            if "do" in command:  # else it is what mark_slowly was to wait for, after it had failed
                actor.answer(_done(actor, command))


def _done(actor: Actor, command: dict[str, Any]) -> Any:
    try:
        return getattr(actor, command["do"])(*command["args"])
    except Exception as error:  # noqa: BLE001 (told to the process that asked)
        return f"!{type(error).__name__}"


def _backend(start: dict[str, Any]) -> BaseLockBackend:
    for alias, database in start["databases"].items():
        connections[alias].settings_dict.update(database)
    backend: BaseLockBackend = import_string(start["backend"])(start["using"], **start["options"])
    return backend
