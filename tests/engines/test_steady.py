"""Cases 081 and 083: a process that runs for months does not grow, with DEBUG set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

CYCLES = 20_000
ALLOWED = 3_000_000  # bytes; a list of 18,000 statements takes more than that

OUTBOX_LOCK = {
    "default": {
        "PUBLISHERS": {
            "default": {"BACKEND": "django_outbox_lock.backends.publishers.memory.MemoryPublisher"}
        }
    }
}


@pytest.mark.server("sqlite")
@pytest.mark.timeout(300)
@pytest.mark.django_db(transaction=True)
def test_case_083_memory_is_flat_over_twenty_thousand_cycles(
    database_urls: Callable[[], dict[str, str]],
) -> None:
    """Case 083, and case 081: every thread's log of statements is emptied or off."""
    environment = {
        **os.environ,
        **database_urls(),
        "DEBUG": "1",
        "LOG_LEVEL": "ERROR",
        "DJANGO_SETTINGS_MODULE": "testproject.settings",
        "OUTBOX_LOCK": json.dumps(OUTBOX_LOCK),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.engines.steady", str(CYCLES)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )
    seen = json.loads(done.stdout)
    early, late = seen["memory"].values()
    assert seen["sent"] == CYCLES // 20
    assert late - early < ALLOWED
