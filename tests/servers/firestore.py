"""Google's Firestore emulator, where it is found: no package registry has it.

In memory: a crash loses everything. Under contention its transactions abort each other for long.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers import wire
from tests.servers.java import JavaServer

if TYPE_CHECKING:
    from collections.abc import Iterator

_JAR = Path("platform/cloud-firestore-emulator/cloud-firestore-emulator.jar")
_CLASS = "com.google.cloud.datastore.emulator.firestore.CloudFirestore"
PROJECT = "outbox"


class Firestore(JavaServer):
    """``host`` is what clients read in FIRESTORE_EMULATOR_HOST."""

    name = "firestore"
    title = "Firestore emulator"
    variable = "FIRESTORE_EMULATOR_JAR"
    hint = (
        f"set {variable}, or install the component cloud-firestore-emulator of the Google Cloud CLI"
    )

    def places(self) -> Iterator[Path]:
        if gcloud := shutil.which("gcloud"):
            yield Path(gcloud).resolve().parent.parent / _JAR
        yield Path("/usr/lib/google-cloud-sdk") / _JAR
        yield Path.home() / "google-cloud-sdk" / _JAR

    def command(self) -> list[str]:
        return [*self._main(), "--host", "127.0.0.1", "--port", str(self.port)]

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def version(self) -> str:
        argv = [*self._main(), "--version"]
        done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30)
        return done.stdout.split()[-1]

    def wall_clock(self) -> float:
        """The time at which it read a document that is not there."""
        path = f"/v1/projects/{PROJECT}/databases/(default)/documents"
        wanted = {"documents": [f"{path.removeprefix('/v1/')}/none/none"]}
        _, text = wire.http(self.port, f"{path}:batchGet", json.dumps(wanted))
        (answer,) = json.loads(text)
        return datetime.fromisoformat(answer["readTime"]).timestamp()

    def _main(self) -> list[str]:
        java, jar = self.program()
        return [java, "-Xmx256m", "-Duser.language=en", "-cp", jar, _CLASS]
