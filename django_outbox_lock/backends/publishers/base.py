"""The contract of publishers: what carries messages to where they are consumed."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django.core.checks import CheckMessage

    from django_outbox_lock.envelope import Envelope
    from django_outbox_lock.outcomes import Outcome


class BasePublisher(abc.ABC):
    """Carries envelopes and says of each what became of it.

    A room takes its options as keyword arguments and raises ``ValueError`` or ``TypeError`` for
    a wrong one. It neither logs nor touches the outbox. ``docs/publishers.md`` tells how to write
    one; ``django_outbox_lock.testing.PublisherContract`` tells whether it is right.
    """

    preserves_order: ClassVar[bool] = False
    """Whether, within one call, a message whose earlier neighbour of the same key was not
    accepted is certain not to be accepted either. Where it is not, keys go out in waves."""

    one_by_one: ClassVar[bool] = False
    """Whether a message leaves only when its outcome is asked for. Such a call can be stopped
    between two messages; any other is let finish, for what it has sent ahead would go twice."""

    max_batch: int | None = None
    """The most envelopes that one call may be given; None for any number."""

    @abc.abstractmethod
    def publish_batch(self, envelopes: Sequence[Envelope]) -> Iterable[Outcome]:
        """One outcome for each envelope, in the order given, each as soon as it is known.

        ``Sent`` means that the broker has confirmed that it keeps the message. Raises
        ``TransportDown`` out of the call or the iteration when the way to the broker is broken:
        what has no outcome yet was not decided. The caller may stop iterating at any point, and
        may call from any thread, one at a time.
        """

    def handles(self, topic: str) -> bool:
        """Whether the topic leads anywhere from here; False is no verdict on its messages."""
        return True

    def close(self) -> None:
        """Give up connections and threads; the next ``publish_batch`` opens them again."""

    def check(self) -> list[CheckMessage]:
        """What a system check should say about these options; opens no connection."""
        return []
