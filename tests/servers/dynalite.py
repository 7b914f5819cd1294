"""Dynalite: DynamoDB's conditions and answers on LevelDB, of another maker.

It has no TTL, no transactions and no old item in a failed condition's answer.
"""

from __future__ import annotations

from tests.servers import wire
from tests.servers.node import NodeServer


class Dynalite(NodeServer):
    """Any credentials and any region will do; ``url`` is the client's endpoint."""

    name = "dynalite"
    title = "dynalite"
    package = "dynalite"
    script = "cli.js"

    def command(self) -> list[str]:
        places = ["--host", "127.0.0.1", "--port", str(self.port), "--path", "data"]
        delays = [f"--{verb}TableMs=0" for verb in ("create", "delete", "update")]
        return [*self.program(), *places, *delays]

    def ping(self) -> None:
        wire.http(self.port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wall_clock(self) -> float:
        return wire.http_date(self.port)
