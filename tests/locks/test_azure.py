"""Leases on blobs of Azure Storage: on Azurite, Microsoft's emulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from django_outbox_lock.backends.locks.azure import AzureBlobLock
from tests.locks.storefaults import StoreFaults
from tests.locks.stores import StoreContract

if TYPE_CHECKING:
    from tests import servers
    from tests.servers.azurite import Azurite


def provisioned(server: servers.Server) -> dict[str, Any]:
    options: dict[str, Any] = {"connection_string": cast("Azurite", server).connection_string}
    AzureBlobLock("default", namespace="any", **options).provision()
    return options


@pytest.mark.server("azurite")
class TestContract(StoreContract):
    backend_class = AzureBlobLock
    server_name = "azurite"

    def options_for(self, server: servers.Server) -> dict[str, Any]:
        return provisioned(server)


@pytest.mark.server("azurite")
class TestFaults(StoreFaults):
    backend_class = AzureBlobLock
    server_name = "azurite"
    short = 15.0
    requests = {
        "acquire": b"x-ms-lease-action: acquire",
        "extend": b"x-ms-lease-action: renew",
        "vacate": b"x-ms-lease-action: release",
    }

    def options_for(self, server: servers.Server) -> dict[str, Any]:
        return provisioned(server)
