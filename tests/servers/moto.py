"""Moto: DynamoDB in Python, of another maker: a second opinion beside dynalite.

It has what dynalite lacks: TTL settings, transactions, the old item in a failed condition's
answer. It takes no lock of its own and loses races; here requests are served one at a time.
"""

from __future__ import annotations

from pathlib import Path

from tests.servers import wire
from tests.servers.python import PythonServer


class Moto(PythonServer):
    """In memory. Any credentials and any region will do; ``url`` is the client's endpoint."""

    name = "moto"
    title = "moto"
    distribution = "moto"
    module = "moto"

    def command(self) -> list[str]:
        return [*self.program(), str(self.port)]

    def program(self) -> list[str]:
        return [*super().program(), "-P", str(Path(__file__).with_name("moto_serial.py"))]

    def ping(self) -> None:
        wire.http(self.port, "/moto-api/")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wall_clock(self) -> float:
        return wire.http_date(self.port)
