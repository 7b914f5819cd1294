"""Real servers for tests, benchmarks and scripts: each private, on its own port and data.

``get(name, **options)`` gives a server that is not started yet. Needs neither pytest nor Django;
a driver is imported only when a method needs one.
"""

from __future__ import annotations

from tests.servers.base import Label, Server, ServerError, ServerMissing
from tests.servers.registry import NAMES, get

__all__ = ["NAMES", "Label", "Server", "ServerError", "ServerMissing", "get"]
