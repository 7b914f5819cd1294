"""SecantusDB: MongoDB's protocol on WiredTiger, of another maker.

GPL-2.0-only: a process of its own, for tests alone. Dates are compared wrongly with ``$$NOW`` in
expressions, unless both sides go through ``$toLong``; there is one node, so nothing fails over.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.servers.python import PythonServer


class SecantusDB(PythonServer):
    """A replica set of one node, as MongoDB is for transactions; needs pymongo, as it does."""

    name = "secantusdb"
    title = "SecantusDB"
    distribution = "secantusdb"
    module = "secantus"

    def program(self) -> list[str]:
        python = Path(*super().program())
        return [str(python), str(python.with_name("secantusd-py"))]

    def command(self) -> list[str]:
        places = ["--host", "127.0.0.1", "--port", str(self.port), "--storage-path", "data"]
        return [*self.program(), *places, "--cache-size", "128M"]

    def ping(self) -> None:
        self.run("ping")

    @property
    def url(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}/?directConnection=true"

    def wall_clock(self) -> float:
        now: float = self.run("hello")["localTime"].timestamp()
        return now

    def run(self, command: str) -> dict[str, Any]:
        """The answer to one command on the database ``admin``."""
        from pymongo import MongoClient

        with MongoClient[dict[str, Any]](self.url, timeoutMS=5000, tz_aware=True) as client:
            return client.admin.command(command)
