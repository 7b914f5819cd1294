"""DynamoDB Local, by AWS: for holders of an AWS account, under AWS's own licence.

So it is never fetched: it runs only where DYNAMODB_LOCAL_JAR names it. It may listen on every
address of the machine, for it has no option that says otherwise.
"""

from __future__ import annotations

from pathlib import Path

from tests.servers import wire
from tests.servers.java import JavaServer


class DynamoDBLocal(JavaServer):
    """In memory. Any credentials and any region will do; ``url`` is the client's endpoint."""

    name = "dynamodb-local"
    title = "DynamoDB Local"
    variable = "DYNAMODB_LOCAL_JAR"
    hint = f"set {variable}, if AWS's licence allows you its use"

    def command(self) -> list[str]:
        java, jar = self.program()
        libraries = f"-Djava.library.path={Path(jar).with_name('DynamoDBLocal_lib')}"
        options = ["-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(self.port)]
        return [java, libraries, "-jar", jar, *options]

    @property
    def version(self) -> str:
        headers, _ = wire.http(self.port)
        return headers["Server"] or "unknown"

    def wall_clock(self) -> float:
        return wire.http_date(self.port)
