"""Every error this package raises on its own account."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    import datetime as dt

    from django_outbox_lock.holder import Holder


class OutboxLockError(Exception):
    """Root of the errors that occur at run time."""


class InvalidSettings(ImproperlyConfigured):
    """``OUTBOX_LOCK`` is wrong; the message names the full path of the key."""


class InvalidAlias(InvalidSettings, KeyError):
    """There is no outbox on the database alias that was asked for."""

    __str__ = InvalidSettings.__str__


class LockError(OutboxLockError):
    """Root of the errors about locks."""


class LockNotObtained(LockError):
    """Somebody else holds the resource. ``holder`` tells who, where that is known."""

    def __init__(self, message: str, *, resource: str = "", holder: Holder | None = None) -> None:
        super().__init__(message)
        self.resource = resource
        self.holder = holder


class LockTimeout(LockNotObtained):
    """Somebody else held the resource during the whole of ``timeout`` seconds."""


class LockLost(LockError):
    """The handle does not hold any more: whatever it was about to write is refused."""

    def __init__(
        self, message: str, *, resource: str = "", token: int = 0, holder: Holder | None = None
    ) -> None:
        super().__init__(message)
        self.resource = resource
        self.token = token
        self.holder = holder


class LockUnavailable(LockError):
    """The lock's store could not be asked, or must not be used as it is; nothing was obtained."""


class PublishError(OutboxLockError, ValueError):
    """A message was refused at the call of ``publish``; the message names the argument."""


class NotInTransaction(OutboxLockError, RuntimeError):
    """``publish`` was called outside a transaction, so it could not be atomic with anything."""


class TransportDown(OutboxLockError):
    """The way to the broker is broken: none of the messages not yet answered was decided."""


class TooManyHangingSends(OutboxLockError):
    """Calls of publishers hang, each in a thread that was given up: the process has to end."""


class AlreadyProcessed(OutboxLockError):
    """The consumer has done this message before: ``status``, ``result`` and ``when`` say how.

    ``result`` is what the first delivery stored: bytes, what JSON gives back, or None.
    """

    def __init__(
        self, message: str, *, status: str, result: Any = None, when: dt.datetime | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.result = result
        self.when = when


class ProcessingBusy(OutboxLockError):
    """Another delivery of the message is being processed, or the database asked to try again.

    Have the message delivered again; nothing was applied by this call.
    """
