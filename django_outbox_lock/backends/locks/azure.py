"""A lease on a blob in Azure Storage: one empty blob per resource, never deleted."""

from __future__ import annotations

import contextlib
import threading
import uuid
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, unquote

from django_outbox_lock import checked
from django_outbox_lock.backends.locks.base import Live
from django_outbox_lock.backends.locks.store import GARBLED, Owner, StoreLockBackend
from django_outbox_lock.exceptions import LockUnavailable

try:
    from azure.core.exceptions import AzureError, HttpResponseError, ResourceExistsError
    from azure.storage.blob import BlobClient, BlobLeaseClient, BlobServiceClient, ContainerClient
except ImportError as error:
    raise ImportError(
        "The Azure lock needs azure-storage-blob: pip install 'django-outbox-lock[azure]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONGEST_LEASE = 60

_BUSY = {"LeaseAlreadyPresent", "LeaseIsBreakingAndCannotBeAcquired"}
# The service says that the lease is not the one that was named; anything else is "unknown".
_NOT_OURS = {
    "BlobNotFound",
    "LeaseIdMismatchWithBlobOperation",
    "LeaseIdMismatchWithLeaseOperation",
    "LeaseIsBreakingAndCannotBeChanged",
    "LeaseIsBrokenAndCannotBeRenewed",
    "LeaseLost",
    "LeaseNotPresentWithBlobOperation",
    "LeaseNotPresentWithLeaseOperation",
}


class AzureBlobLock(StoreLockBackend):
    """``lease`` is a whole number of seconds from 15 to 60, which the service counts.

    Either ``connection_string``, or ``account_url`` with a ``credential`` as azure-storage-blob
    takes it (an account key, a SAS token, an object of azure-identity). ``container`` must exist:
    ``manage.py outbox provision`` makes it. ``timeout`` in seconds bounds connecting and each
    answer.
    """

    label = "azure"
    extra: ClassVar[str] = "azure"
    minimum_lease = 15.0

    def __init__(
        self,
        alias: str,
        *,
        connection_string: str | None = None,
        account_url: str | None = None,
        credential: Any = None,
        container: str = "outbox-locks",
        timeout: float = 5.0,
        **options: Any,
    ) -> None:
        super().__init__(alias, **options)
        if self.lease > LONGEST_LEASE or not self.lease.is_integer():
            raise ValueError(f"lease must be a whole number from 15 to 60, not {self.lease!r}")
        if (connection_string is None) == (account_url is None):
            raise ValueError("give either connection_string or account_url")
        self._connection_string = checked.optional("connection_string", connection_string)
        self._account_url = checked.optional("account_url", account_url)
        self._credential = credential
        self._container_name = checked.text("container", container)
        self._timeout = checked.positive("timeout", timeout)
        self._new_client()  # refuses what it cannot read; no connection is opened

    def reset(self) -> None:
        super().reset()
        self._opened: ContainerClient | None = None
        self._opening = threading.Lock()

    def store_key(self, resource: str) -> str:
        return f"{self.space}/{super().store_key(resource)}"

    def acquire(self, key: str, owner: Owner) -> bool:
        # Perhaps only the answer got lost: the proposed id is ours, so it is granted again.
        return _twice(lambda: self._leased(key, owner.lock_id))

    def sign(self, key: str, owner: Owner) -> bool:
        """A lease carries its id only; the rest is written to the blob, under the lease."""
        return _twice(lambda: self._signed(key, owner))

    def extend(self, key: str, owner_id: str) -> bool:
        with self._telling():
            return _unless(_NOT_OURS, self._lease(key, owner_id).renew)

    def vacate(self, key: str, owner_id: str) -> bool:
        with self._telling():
            return _unless(_NOT_OURS, self._lease(key, owner_id).release)

    def live(self) -> Iterator[Live]:
        with self._telling():
            found = self._container.list_blobs(f"{self.space}/", include=["metadata"])
            for blob in found:
                if blob.lease.state in {"leased", "breaking"}:
                    card = {name: unquote(value) for name, value in blob.metadata.items()}
                    yield Live.of(blob.name, card)

    def missing(self) -> str | None:
        with self._telling():
            there = self._container.exists()
        return None if there else f"the blob container {self._container_name!r} does not exist"

    def provision(self) -> str:
        """Make the container."""
        with self._telling():
            try:
                self._container.create_container()
            except ResourceExistsError as error:
                if _code(error) != "ContainerAlreadyExists":
                    raise  # it is being deleted
                return f"the blob container {self._container_name!r} was there"
        return f"made the blob container {self._container_name!r}"

    def disconnect(self) -> None:
        with self._opening:
            container, self._opened = self._opened, None
        if container is not None:
            container.close()

    # The blob.

    def _leased(self, key: str, lock_id: str) -> bool:
        lease = self._lease(key, lock_id)
        seconds = int(self.lease)
        with self._telling():
            try:
                return _unless(_BUSY, lambda: lease.acquire(seconds))
            except HttpResponseError as error:
                if _code(error) != "BlobNotFound":
                    raise
            self._make(key)
            return _unless(_BUSY, lambda: lease.acquire(seconds))

    def _make(self, key: str) -> None:
        """Make the blob, unless somebody else did so first and perhaps holds it by now."""
        with contextlib.suppress(ResourceExistsError):
            self._blob(key).upload_blob(b"", overwrite=False)

    def _signed(self, key: str, owner: Owner) -> bool:
        fields = {name: quote(str(value)) for name, value in asdict(owner).items()}
        lease = _lease_id(owner.lock_id)
        with self._telling():
            return _unless(
                _NOT_OURS, lambda: self._blob(key).set_blob_metadata(fields, lease=lease)
            )

    # The client.

    def _lease(self, key: str, lock_id: str) -> BlobLeaseClient:
        return BlobLeaseClient(self._blob(key), lease_id=_lease_id(lock_id))

    def _blob(self, key: str) -> BlobClient:
        return self._container.get_blob_client(key)

    @property
    def _container(self) -> ContainerClient:
        with self._opening:
            if self._opened is None:
                self._opened = self._new_client()
            return self._opened

    def _new_client(self) -> ContainerClient:
        return self._service().get_container_client(self._container_name)

    def _service(self) -> BlobServiceClient:
        # A repetition by the client would hide what became of the first request.
        options: dict[str, Any] = {
            "retry_total": 0,
            "connection_timeout": self._timeout,
            "read_timeout": self._timeout,
        }
        if self._connection_string is not None:
            return BlobServiceClient.from_connection_string(self._connection_string, **options)
        return BlobServiceClient(str(self._account_url), self._credential, **options)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except (AzureError, *GARBLED) as error:
            if _code(error) == "ContainerNotFound":
                raise LockUnavailable(
                    f"The blob container {self._container_name!r} does not exist: "
                    "run 'manage.py outbox provision'."
                ) from error
            refused = (getattr(error, "status_code", None) or 500) < 500
            what = "refused" if refused else "gave no answer"
            raise LockUnavailable(f"Azure Storage {what}: {error}") from error


def _twice(request: Callable[[], bool]) -> bool:
    """The answer to a request that may be repeated: once more if none came."""
    try:
        return request()
    except LockUnavailable:
        return request()


def _unless(refusals: set[str], request: Any) -> bool:
    """Whether the request was carried out; False for the refusals, which are definite answers."""
    try:
        request()
    except HttpResponseError as error:
        if _code(error) in refusals:
            return False
        raise
    return True


def _code(error: Exception) -> str:
    # An enumeration for some operations, a text for others.
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code))


def _lease_id(lock_id: str) -> str:
    return str(uuid.UUID(lock_id))
