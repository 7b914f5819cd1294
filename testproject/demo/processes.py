"""The processes of the demonstration, each in the environment of its own service."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = Path(os.environ.get("DEMO_FOLDER", ROOT / ".dev" / "demo"))

LEASE = 3
INTERVAL = 1
PAGE = 200

SETTINGS = {
    "default": {
        "LOCK": {"OPTIONS": {"lease": LEASE}},
        "PUBLISHERS": {
            "default": {
                "BACKEND": "django_outbox_lock.backends.publishers.callables.CallablePublisher",
                "OPTIONS": {"handlers": {"order.*": "testproject.shop.handlers.post_order"}},
            }
        },
        "ARCHIVER": {"minimum_age": 0},
    }
}


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def shop_environment(port: int) -> dict[str, str]:
    """The shop, its sweepers and its archiver: one database, one outbox."""
    return {
        "DJANGO_SETTINGS_MODULE": "testproject.settings",
        "DATABASE_URL": f"sqlite:///{FOLDER / 'shop.sqlite3'}",
        "OUTBOX_LOCK": json.dumps(SETTINGS),
        "CONSUMER_URL": f"http://127.0.0.1:{port}/billing/messages/",
    }


def consumer_environment() -> dict[str, str]:
    """The consumer: another service with another database."""
    return {
        "DJANGO_SETTINGS_MODULE": "testproject.settings",
        "DATABASE_URL": f"sqlite:///{FOLDER / 'billing.sqlite3'}",
    }


class Processes:
    """What was started; everything that still runs is killed at the end."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []

    def start(
        self, name: str, arguments: Sequence[str], environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start ``python …`` with its output in a file of its name."""
        log = (FOLDER / f"{name}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=os.environ | environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        self._logs.append(log)
        self._running.append(process)
        return process

    def run(self, name: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
        """Run to the end; a failure ends the demonstration with the file to look into."""
        process = self.start(name, arguments, environment)
        if process.wait():
            raise SystemExit(f"{name} failed with status {process.returncode}:\n{tail(name)}")

    def close(self) -> None:
        """Kill what runs."""
        for process in self._running:
            process.kill()
            process.wait()
        for log in self._logs:
            log.close()


def tail(name: str) -> str:
    """The last lines that a process wrote."""
    text = (FOLDER / f"{name}.log").read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.splitlines()[-15:])


def wait_for_port(port: int, process: subprocess.Popen[bytes], seconds: float = 20) -> None:
    """Return when somebody listens on the port."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"Nobody listens on the consumer's port:\n{tail('consumer')}")
