"""Goes through many cycles in one process and prints its memory on the way: a process of a test.

``python -m tests.engines.steady CYCLES``, with DEBUG set, on the database of the environment.
"""

from __future__ import annotations

import json
import sys

import django
import psutil
from django.db import transaction

EVERY = 20  # one message each so many cycles


def main(cycles: int) -> None:
    """Print, as JSON, the resident memory in bytes after a tenth of the cycles, and at the end."""
    django.setup()
    from django_outbox_lock import publish
    from django_outbox_lock.backends.publishers.memory import MemoryPublisher
    from django_outbox_lock.engines.sweeper import Sweeper

    sweeper = Sweeper.from_settings("default", linger=0)
    memory = {}
    for cycle in range(1, cycles + 1):
        if cycle % EVERY == 0:
            with transaction.atomic():
                publish("steady", {"cycle": cycle})
        sweeper.tick()
        MemoryPublisher.outbox.clear()
        if cycle in {cycles // 10, cycles}:
            memory[cycle] = psutil.Process().memory_info().rss
    print(json.dumps({"memory": memory, "sent": sweeper.totals.sent}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
