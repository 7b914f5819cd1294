"""Commands in processes that were started without an output, as a wrapper's ``>&-`` does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command

from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

MEMORY = {"BACKEND": "django_outbox_lock.backends.publishers.memory.MemoryPublisher"}
SETTINGS = json.dumps({"default": {"PUBLISHERS": {"default": MEMORY}}})


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "command",
    [
        "runsweeper --once",
        "runarchiver --once",
        "outbox status",
        "outbox requeue --all",
        "runlocked nightly -- outbox status",
    ],
)
def test_without_any_output_the_work_is_done(
    command: str, database_urls: Callable[[], dict[str, str]]
) -> None:
    """The same exit code as with one: whoever started it must not take it for a failure."""
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" "$1" {command} >&- 2>&-', sys.executable, ROOT / "manage.py"],
        env={**os.environ, **database_urls(), "OUTBOX_LOCK": SETTINGS},
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0


class Refusing:
    """A caller's own stream, which takes nothing."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def isatty(self) -> bool:
        return False


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("command", [("runarchiver", "--once"), ("outbox", "status")])
def test_stream_of_a_caller_that_is_gone_leaves_the_process_its_own(
    command: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    stream: Any = Refusing()
    call_command(*command, stdout=stream)
    os.write(1, b"still heard")
    assert "still heard" in capfd.readouterr().out
