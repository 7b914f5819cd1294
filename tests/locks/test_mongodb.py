"""Leases in MongoDB: on SecantusDB, which speaks its protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_outbox_lock.backends.locks.mongodb import MongoDBLock
from tests.locks.storefaults import StoreFaults
from tests.locks.stores import StoreContract

if TYPE_CHECKING:
    from tests import servers


@pytest.mark.server("secantusdb")
class TestContract(StoreContract):
    backend_class = MongoDBLock
    server_name = "secantusdb"

    def options_for(self, server: servers.Server) -> dict[str, Any]:
        return {"url": server.url}


@pytest.mark.server("secantusdb")
class TestFaults(StoreFaults):
    backend_class = MongoDBLock
    server_name = "secantusdb"
    requests = {"acquire": b"$replaceWith", "extend": b"$toDate", "vacate": b"released_by"}

    def options_for(self, server: servers.Server) -> dict[str, Any]:
        return {"url": server.url}
