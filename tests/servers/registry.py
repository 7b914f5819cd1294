"""Names to servers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.servers.base import Server

_CLASSES: Final = {
    "postgresql": "postgresql.PostgreSQL",
    "mariadb": "mariadb.MariaDB",
    "mysql": "mysql.MySQL",
    "pgbouncer": "pgbouncer.PgBouncer",
    "rabbitmq": "rabbitmq.RabbitMQ",
    "chromium": "chromium.Chromium",
    "spin": "spin.Spin",
    "redis": "redis.Redis",
    "dynalite": "dynalite.Dynalite",
    "moto": "moto.Moto",
    "dynamodb-local": "dynamodb_local.DynamoDBLocal",
    "azurite": "azurite.Azurite",
    "secantusdb": "secantusdb.SecantusDB",
    "firestore": "firestore.Firestore",
    "libfaketime": "libfaketime.Libfaketime",
}
NAMES: Final = tuple(_CLASSES)


def get(name: str, **options: Any) -> Server:
    """A fresh server, not started; ``options`` are the keyword arguments of its class."""
    if name not in _CLASSES:
        raise ValueError(f"unknown server {name!r}: choose from {', '.join(NAMES)}")
    module, _, attribute = _CLASSES[name].partition(".")
    server: Server = getattr(import_module(f"tests.servers.{module}"), attribute)(**options)
    return server
