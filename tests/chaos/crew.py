"""The workers of a run: started, stopped, killed and replaced."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.chaos.history import History
from tests.chaos.worker import Order

if TYPE_CHECKING:
    from tests.chaos.setups import Stage

ROOT = Path(__file__).resolve().parent.parent.parent
RESOURCES = ["first", "second"]
# What no emulator checks, but the client must have.
CREDENTIALS = dict.fromkeys(["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"], "outbox")


class Crew:
    """So many workers at a time; each has a file of the history in ``folder``."""

    def __init__(self, stage: Stage, folder: Path, size: int, seed: int) -> None:
        self.size = size
        self._stage, self._folder = stage, folder
        self._seeds = random.Random(seed)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._offsets: dict[Path, int] = {}
        self._obtained = 0
        self._number = 0
        self._errors = (folder / "errors.txt").open("wb")

    def __enter__(self) -> Self:
        for _ in range(self.size):
            self.start_one()
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait(10)
        self._errors.close()

    def start_one(self) -> None:
        self._number += 1
        name = f"worker-{self._number}"
        order = Order(
            name=name,
            backend=self._stage.setup.backend,
            options=self._stage.options,
            resources=RESOURCES,
            log=str(self._folder / f"{name}.jsonl"),
            lease=self._stage.setup.lease,
            long=self._stage.setup.long,
            fenced=self._stage.setup.fenced,
            seed=self._seeds.randrange(2**32),
        )
        command = [sys.executable, "-m", "tests.chaos.worker", json.dumps(asdict(order))]
        environment = {**os.environ, **CREDENTIALS, "LOG_LEVEL": "ERROR"}
        self._processes.append(
            subprocess.Popen(command, cwd=ROOT, env=environment, stderr=self._errors)
        )

    def some(self, count: int) -> list[subprocess.Popen[bytes]]:
        """So many of the living, by chance."""
        return self._seeds.sample(self._processes, min(count, len(self._processes)))

    def replace(self, process: subprocess.Popen[bytes]) -> None:
        """SIGKILL, and another one in its place."""
        process.kill()
        process.wait(10)
        self._processes.remove(process)
        self.start_one()

    def check(self) -> None:
        """Raises when a worker has ended by itself: there is no fault that it may not survive."""
        for process in self._processes:
            if process.poll() is not None:
                raise RuntimeError(f"A worker ended with status {process.returncode}.")

    def obtained(self) -> int:
        """How often anybody has obtained anything so far."""
        for path in self._folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            self._obtained += whole.count(b'"event": "obtained"')
        return self._obtained

    def end(self) -> None:
        """Let each finish what it is doing; raises when one does not end, or ends with an error."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            if process.wait(60) not in {0, -signal.SIGTERM}:  # one that has hardly begun just ends
                raise RuntimeError(f"A worker ended with status {process.returncode}.")
        self._processes.clear()

    def errors(self) -> str:
        """What the workers said before they ended."""
        return (self._folder / "errors.txt").read_text(encoding="utf-8")

    def history(self) -> History:
        """What they have written down."""
        history = History()
        for path in sorted(self._folder.glob("*.jsonl")):
            history.read(path)
        return history
