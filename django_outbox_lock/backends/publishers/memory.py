"""Messages are kept in a list: for tests."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, ClassVar

from django.utils.module_loading import import_string

from django_outbox_lock.backends.publishers.base import BasePublisher
from django_outbox_lock.outcomes import Outcome, Sent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from django_outbox_lock.envelope import Envelope

    Decide = Callable[[Envelope], Outcome | None]


class MemoryPublisher(BasePublisher):
    """Keeps what it accepts in ``MemoryPublisher.outbox``, shared by all instances of the process.

    ``decide``, a callable or a dotted path to one, is asked about every message: it returns an
    outcome (None means ``Sent``) or raises. ``script`` comes before it. ``seen`` has every message
    in the order in which it was handed over, whatever became of it.
    """

    one_by_one = True
    outbox: ClassVar[list[Envelope]] = []
    seen: ClassVar[list[Envelope]] = []
    _script: ClassVar[deque[Outcome | Exception]] = deque()

    def __init__(self, *, decide: Decide | str | None = None) -> None:
        self._decide = import_string(decide) if isinstance(decide, str) else decide

    @classmethod
    def reset(cls) -> None:
        """Forget all messages and what is left of the script."""
        cls.outbox.clear()
        cls.seen.clear()
        cls._script.clear()

    @classmethod
    def script(cls, *outcomes: Outcome | Exception) -> None:
        """Say what becomes of the next messages, one each; what is no outcome is raised."""
        cls._script.extend(outcomes)

    def publish_batch(self, envelopes: Sequence[Envelope]) -> Iterator[Outcome]:
        """The scripted outcome of each message, else the decided one, else ``Sent``."""
        for envelope in envelopes:
            self.seen.append(envelope)
            outcome = self._outcome(envelope)
            if isinstance(outcome, Sent):
                self.outbox.append(envelope)
            yield outcome

    def _outcome(self, envelope: Envelope) -> Outcome:
        if self._script:
            scripted = self._script.popleft()
            if isinstance(scripted, Outcome):
                return scripted
            raise scripted
        return (self._decide(envelope) if self._decide else None) or Sent()
