"""Azurite: Azure Storage's blobs, by Microsoft, for development.

Leases run in real time, but metadata is written lazily: a crash loses leases and young blobs.
"""

from __future__ import annotations

import base64
import functools
import secrets
from typing import TYPE_CHECKING

from tests.servers import wire
from tests.servers.node import NodeServer

if TYPE_CHECKING:
    from collections.abc import Mapping

_ACCOUNT = "outbox"


class Azurite(NodeServer):
    """``url`` is the account's; ``key`` is its secret, made for this server alone."""

    name = "azurite"
    title = "Azurite"
    label = "vendor emulator"
    package = "azurite"
    script = "dist/src/blob/main.js"

    def command(self) -> list[str]:
        places = ["--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--location", "."]
        # The client's API version is younger than the emulator.
        switches = ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        return [*self.program(), *places, *switches]

    def environment(self) -> Mapping[str, str]:
        return {"AZURITE_ACCOUNTS": f"{_ACCOUNT}:{self.key}"}

    def ping(self) -> None:
        wire.http(self.port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{_ACCOUNT}"

    @functools.cached_property
    def key(self) -> str:
        return base64.b64encode(secrets.token_bytes(64)).decode()

    @property
    def connection_string(self) -> str:
        """``url`` and ``key`` in the one line that Azure's clients read."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={self.key};"
            f"BlobEndpoint={self.url};"
        )

    def wall_clock(self) -> float:
        return wire.http_date(self.port)
