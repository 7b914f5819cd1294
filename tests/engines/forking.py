"""A handler that starts processes of its own, and ends them as ``multiprocessing`` does."""

from __future__ import annotations

import multiprocessing
import signal
import time
from typing import TYPE_CHECKING

from django_outbox_lock.outcomes import Rejected

if TYPE_CHECKING:
    from django_outbox_lock.envelope import Envelope


def ends_its_children(_envelope: Envelope) -> None:
    """Two forked children, each ended with SIGTERM; rejects what survives that."""
    for _ in range(2):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        time.sleep(0.3)
        child.terminate()
        child.join(5)
        if child.exitcode != -signal.SIGTERM:
            child.kill()
            raise Rejected(f"SIGTERM left the child with the exit code {child.exitcode}.")
