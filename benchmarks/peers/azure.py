"""Leases on blobs of Azure Storage: no library is known, so the official client by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.peers.base import LEASE, NAME

if TYPE_CHECKING:
    from benchmarks.peers.base import Work


def libraries(connection_string: str) -> dict[str, Work]:
    """The lease of a blob that is there, and its renewal."""
    from azure.core.exceptions import ResourceExistsError
    from azure.storage.blob import BlobServiceClient

    service = BlobServiceClient.from_connection_string(connection_string)
    container = service.get_container_client("by-hand")
    try:
        container.create_container()
    except ResourceExistsError:
        container.get_blob_client("proof").acquire_lease().break_lease(0)
    for name in (NAME, "proof"):
        container.upload_blob(name, b"", overwrite=True)
    blob, held = (container.get_blob_client(name) for name in (NAME, "proof"))
    return {
        "by hand (BlobLeaseClient)": lambda: blob.acquire_lease(LEASE).release(),
        "one proof": held.acquire_lease(-1).renew,
    }


def options(connection_string: str) -> dict[str, Any]:
    """Of our room, whose container is made."""
    from django_outbox_lock.backends.locks.azure import AzureBlobLock

    place: dict[str, Any] = {"connection_string": connection_string, "namespace": "bench"}
    room = AzureBlobLock("default", **place)
    room.provision()
    room.close()
    return place
