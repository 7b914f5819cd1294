"""Dynalite: DynamoDB's conditions and answers on LevelDB, of another maker.

It has no TTL, no transactions and no old item in a failed condition's answer.
"""

from __future__ import annotations

from tests.servers import wire
from tests.servers.node import NodeServer


class Dynalite(NodeServer):
    """Any credentials and any region will do; ``url`` is the client's endpoint.

    A table is being made, and being deleted, for ``table_delay`` seconds.
    """

    name = "dynalite"
    title = "dynalite"
    package = "dynalite"
    script = "cli.js"

    def __init__(self, *, table_delay: float = 0.0, clock: bool = False) -> None:
        super().__init__(clock=clock)
        self._milliseconds = int(table_delay * 1000)

    def command(self) -> list[str]:
        places = ["--host", "127.0.0.1", "--port", str(self.port), "--path", "data"]
        delays = [
            f"--{verb}TableMs={self._milliseconds}" for verb in ("create", "delete", "update")
        ]
        return [*self.program(), *places, *delays]

    def ping(self) -> None:
        wire.http(self.port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wall_clock(self) -> float:
        return wire.http_date(self.port)
