"""Handlers that start processes of their own, as ``multiprocessing`` does by default on Linux."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from django_outbox_lock.outcomes import Rejected

if TYPE_CHECKING:
    from django_outbox_lock.envelope import Envelope


def ends_its_children(_envelope: Envelope) -> None:
    """Forked children, ended with SIGTERM as soon as they are there; rejects what survives that."""
    for _ in range(100):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        child.terminate()
        child.join(5)
        if child.exitcode != -signal.SIGTERM:
            child.kill()
            raise Rejected(f"SIGTERM left the child with the exit code {child.exitcode}.")


def has_garbage_collected(_envelope: Envelope) -> None:
    """A forked child throws away what belonged to the threads that it does not have."""
    child = multiprocessing.get_context("fork").Process(target=gc.collect)
    child.start()
    child.join()


def forks_by_hand(_envelope: Envelope) -> None:
    """The child leaves with ``sys.exit``; rejects one that does not end."""
    child = os.fork()
    if child == 0:
        sys.exit(3)
    for _ in range(50):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid and os.waitstatus_to_exitcode(status) == 3:
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    raise Rejected("The child went on.")
