"""A lease in Firestore: one document per resource, judged by the server's clock alone.

The server stamps each write (``update_time``) and each read (``read_time``). A lease runs from its
last write for the seconds that stand in the document. Every write is conditional on the version
that was read, and none is in a transaction: those lock, and a killed process would keep the lock.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, ClassVar

from django_outbox_lock import checked
from django_outbox_lock.backends.locks.base import Live
from django_outbox_lock.backends.locks.store import GARBLED, Owner, StoreLockBackend
from django_outbox_lock.exceptions import LockUnavailable

try:
    from google.api_core import exceptions as google_errors
    from google.auth.exceptions import GoogleAuthError
    from google.cloud import firestore
except ImportError as error:
    raise ImportError(
        "The Firestore lock needs google-cloud-firestore: "
        "pip install 'django-outbox-lock[firestore]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# The write was certainly not made: another one came before it, or is being made.
_REFUSALS = (
    google_errors.AlreadyExists,
    google_errors.FailedPrecondition,
    google_errors.NotFound,
    google_errors.Aborted,
)
_ATTEMPTS = 3
_PAUSE = 0.2


class FirestoreLock(StoreLockBackend):
    """Conditional writes of one document; the documents are never deleted.

    ``project``, ``database`` and the credentials are those of the client library, which also reads
    FIRESTORE_EMULATOR_HOST; ``collection`` is where the documents are. ``timeout`` in seconds
    bounds each answer. A document takes about one write a second, so renewals, at a third of the
    lease, must not come faster.
    """

    label = "firestore"
    extra: ClassVar[str] = "firestore"
    minimum_lease: ClassVar[float] = 3.0

    def __init__(
        self,
        alias: str,
        *,
        project: str | None = None,
        database: str | None = None,
        collection: str = "outbox-locks",
        timeout: float = 5.0,
        **options: Any,
    ) -> None:
        super().__init__(alias, **options)
        self.collection = checked.text("collection", collection)
        self._place = {
            "project": checked.optional("project", project),
            "database": checked.optional("database", database),
        }
        # The library must not repeat a write by itself: it would be refused by its own first try.
        self._call: dict[str, Any] = {
            "retry": None,
            "timeout": checked.positive("timeout", timeout),
        }

    def reset(self) -> None:
        super().reset()
        self._opened: Any = None
        self._opening = threading.Lock()
        self._calls = 0
        self._left: list[Any] = []
        self._written: dict[str, tuple[str, dt.datetime]] = {}

    def acquire(self, key: str, owner: Owner) -> bool:
        found = self._read(key)
        if not self._is_free(found, owner.lock_id):
            return False
        card = {
            "owner": owner.lock_id,
            "lease": self.lease,
            "resource": owner.resource,
            "namespace": self.namespace,
            "host": owner.host,
            "pid": owner.pid,
            "application": owner.application,
            "acquired_at": firestore.SERVER_TIMESTAMP,
        }
        return self._write(key, owner.lock_id, found.update_time, card)

    def extend(self, key: str, owner_id: str) -> bool:
        return self._change(key, owner_id, {"lease": self.lease})

    def vacate(self, key: str, owner_id: str) -> bool:
        vacated = self._change(key, owner_id, {"owner": None})
        self._written.pop(key, None)
        return vacated

    def live(self) -> Iterator[Live]:
        with self._telling():
            ours = firestore.FieldFilter("namespace", "==", self.namespace)
            query = self._client.collection(self.collection).where(filter=ours)
            for found in query.stream(**self._call):
                if not self._is_free(found, ""):
                    yield Live.of(found.id, found.to_dict())

    def missing(self) -> str | None:
        """Nothing ever is; but the database must answer, and know us."""
        self._read(self.store_key(""))
        return None

    def disconnect(self) -> None:
        with self._opening:
            opened, self._opened = self._opened, None
            if opened is not None:
                self._left.append(opened)
        self._close_left()

    def _is_free(self, found: Any, owner_id: str) -> bool:
        card = found.to_dict()
        if not card or card.get("owner") in {None, owner_id}:
            return True
        seconds = card.get("lease")
        if not checked.is_number(seconds) or not 0 < seconds <= checked.LONGEST:
            return True  # no lease of ours
        return bool(found.update_time + dt.timedelta(seconds=seconds) <= found.read_time)

    def _change(self, key: str, owner_id: str, change: Mapping[str, Any]) -> bool:
        """Change the owner's document; False when it is definitely not the owner's."""
        for _ in range(_ATTEMPTS):
            version = self._version(key, owner_id)
            if version is None:
                return False
            if self._write(key, owner_id, version, change):
                return True
            time.sleep(random.uniform(0, _PAUSE))  # noqa: S311 (to get out of each other's way)
        raise LockUnavailable(f"Firestore: too many write the document {key} at once")

    def _version(self, key: str, owner_id: str) -> dt.datetime | None:
        """The owner's last version of the document, as written by us or read anew."""
        writer, version = self._written.get(key, ("", None))
        if writer == owner_id:
            return version
        found = self._read(key)
        card = found.to_dict()
        return found.update_time if card and card.get("owner") == owner_id else None

    def _write(
        self, key: str, owner_id: str, version: dt.datetime | None, change: Mapping[str, Any]
    ) -> bool:
        """Write if the document still has the version (None: is not there).

        An answer that got lost is read back: the nonce tells whether the write is ours. Without a
        fresh one a write that changes nothing would not count as one.
        """
        nonce = uuid.uuid4().hex
        self._written.pop(key, None)
        try:
            with self._telling():
                written = self._put(key, version, {**change, "nonce": nonce})
        except LockUnavailable as error:
            found = self._read(key)
            if (found.to_dict() or {}).get("nonce") != nonce:
                if isinstance(error.__cause__, _REFUSALS):
                    return False
                raise
            written = found.update_time
        self._written[key] = (owner_id, written)
        return True

    # The client.

    def _put(self, key: str, version: dt.datetime | None, fields: dict[str, Any]) -> dt.datetime:
        document = self._document(key)
        if version is None:
            written = document.create(fields, **self._call)
        else:
            unchanged = self._client.write_option(last_update_time=version)
            written = document.update(fields, option=unchanged, **self._call)
        stamp: dt.datetime = written.update_time
        return stamp

    def _read(self, key: str) -> Any:
        with self._telling():
            return self._document(key).get(**self._call)

    def _document(self, key: str) -> Any:
        return self._client.collection(self.collection).document(key)

    @property
    def _client(self) -> Any:
        with self._opening:
            if self._opened is None:
                self._opened = firestore.Client(**self._place)
            return self._opened

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        with self._opening:
            self._calls += 1
        try:
            yield
        except (google_errors.GoogleAPIError, GoogleAuthError, OSError, *GARBLED) as error:
            raise LockUnavailable(f"Firestore failed: {error}") from error
        finally:
            with self._opening:
                self._calls -= 1
            self._close_left()

    def _close_left(self) -> None:
        """Close the channels of clients that were left, unless a call may still be using one."""
        with self._opening:
            if self._calls:
                return
            left, self._left = self._left, []
        for client in left:
            # The client's own close() leaves it to the garbage, which a kept error keeps away.
            if (api := client._firestore_api_internal) is not None:  # noqa: SLF001
                api.transport.close()
