"""Leases on blobs of Azure Storage: on Azurite, Microsoft's emulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from django_outbox_lock.backends.locks.azure import AzureBlobLock
from tests.locks.stores import StoreContract

if TYPE_CHECKING:
    from tests import servers
    from tests.servers.azurite import Azurite


@pytest.mark.server("azurite")
class TestContract(StoreContract):
    backend_class = AzureBlobLock
    server_name = "azurite"

    def options_for(self, server: servers.Server) -> dict[str, Any]:
        options = {"connection_string": cast("Azurite", server).connection_string}
        AzureBlobLock("default", namespace="any", **options).provision()
        return options
