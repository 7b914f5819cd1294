"""A publisher for processes: writes a line for each message into a file that tests read."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from django_outbox_lock.backends.publishers.base import BasePublisher
from django_outbox_lock.outcomes import Outcome, Sent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django_outbox_lock.envelope import Envelope


class Recording(BasePublisher):
    """Takes ``seconds`` for a message; a line has the process id and the payload."""

    one_by_one = True

    def __init__(self, *, path: str, seconds: float = 0.0) -> None:
        self._path = path
        self._seconds = seconds

    def publish_batch(self, envelopes: Sequence[Envelope]) -> Iterator[Outcome]:
        for envelope in envelopes:
            with Path(self._path).open("a", encoding="utf-8") as file:
                file.write(f"{os.getpid()} {envelope.json()}\n")
            time.sleep(self._seconds)
            yield Sent()
