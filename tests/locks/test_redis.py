"""Leases in Redis, on a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_outbox_lock.backends.locks.redis import RedisLock
from tests.locks.stores import StoreContract

if TYPE_CHECKING:
    from tests import servers


@pytest.mark.server("redis")
class TestContract(StoreContract):
    backend_class = RedisLock
    server_name = "redis"

    def options_for(self, server: servers.Server) -> dict[str, Any]:
        return {"url": server.url}
